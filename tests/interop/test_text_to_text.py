"""Text in, text out: the same here and in `transformers`, its tokenizer included, on the way in and out."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, load_bundle, save
from clearhead.bundle.folder import framings_of
from clearhead.bundle.metadata import write_metadata
from clearhead.cli.main import main
from clearhead.decoding import Options, Writer, classify, score, tag
from clearhead.decoding.defaults import options_of
from clearhead.decoding.labels import class_probabilities, regress
from clearhead.evaluation.loss import corpus_loss
from clearhead.interop import export_folder, import_folder
from clearhead.text.framing import Framings
from clearhead.text.tokenizer import Tokenizer
from clearhead.verify import verify
from clearhead.verify.text_to_text import TEXTS as CHECK

from .foreign_texts import FAMILIES, TEXTS, Foreign, save_foreign
from .test_export import SMALL, random_bundle
from .writers import LLAMA, taught, tokenizer, untaught

STEPS = 10


class There:
    """A folder as `transformers` uses it: whatever it says by itself, and nothing else."""

    def __init__(self, transformers: Any, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        [name] = transformers.AutoConfig.from_pretrained(folder).architectures
        self.model = getattr(transformers, name).from_pretrained(folder).eval()

    def write(self, text: str, **settings: Any) -> str:
        return self.write_as_it_says(text, do_sample=False, num_beams=1, **settings)

    @torch.no_grad()
    def write_as_it_says(self, text: str, **settings: Any) -> str:
        given = self.tokenizer(text, return_tensors="pt")
        written = self.model.generate(**given, **settings)[0]
        begun = 0 if self.model.config.is_encoder_decoder else given["input_ids"].shape[1]
        return str(self.tokenizer.decode(written[begun:], skip_special_tokens=True))

    @torch.no_grad()
    def number(self, *texts: str) -> float:
        return float(self.model(**self.tokenizer(*texts, return_tensors="pt")).logits)

    @torch.no_grad()
    def shares(self, *texts: str) -> list[float]:
        logits = self.model(**self.tokenizer(*texts, return_tensors="pt")).logits[0]
        return [float(share) for share in logits.softmax(-1)]

    @torch.no_grad()
    def tags(self, text: str) -> list[str]:
        given = self.tokenizer(text.split(), is_split_into_words=True, return_tensors="pt")
        best = self.model(**given).logits[0].argmax(-1).tolist()
        places = given.word_ids(0)
        firsts = [places.index(word) for word in range(len(text.split()))]
        return [self.model.config.id2label[best[first]] for first in firsts]


def written_here(bundle: Bundle, texts: Sequence[str], options: Options | None = None) -> list[str]:
    asked = options or Options(max_length=STEPS)
    return [found[0].text for found in Writer(bundle).in_order(texts, asked)]


def ids_here(bundle: Bundle, text: str) -> list[int]:
    """What a model is fed for one text."""
    assert bundle.tokenizer is not None
    framings = framings_of(bundle)
    own = framings.target if bundle.config.family == "decoder" else framings.source
    return own.around(bundle.tokenizer.encode(text))


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def folder(
    request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    family: Foreign = request.param
    made = tmp_path_factory.mktemp("foreign") / "model"
    save_foreign(transformers, family, made)
    return made


def test_text_to_text_on_the_way_in_and_out(folder: Path, transformers: Any, tmp_path: Path) -> None:
    """Imported, kept as a bundle, and exported again: ids, texts, classes and tags are theirs every time."""
    there = There(transformers, folder)
    bundle = load_bundle(save(import_folder(folder), tmp_path / "ours"))
    export_folder(bundle, tmp_path / "back")
    assert bundle.tokenizer is not None
    for other in (there, There(transformers, tmp_path / "back")):
        fed = [other.tokenizer(text)["input_ids"] for text in TEXTS]
        assert [ids_here(bundle, text) for text in TEXTS] == fed
        read = [other.tokenizer.decode(ids, skip_special_tokens=True) for ids in fed]
        assert [bundle.tokenizer.decode(ids) for ids in fed] == read
        if bundle.config.family != "encoder":
            assert written_here(bundle, TEXTS) == [other.write(text, max_new_tokens=STEPS) for text in TEXTS]
        elif bundle.config.head.kind == "tag":
            assert tag(bundle, TEXTS) == [other.tags(text) for text in TEXTS]
        elif bundle.config.head.kind == "number":
            pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
            wanted = [other.number(text) for text in TEXTS] + [other.number(*pair) for pair in pairs]
            assert regress(bundle, [*TEXTS, *pairs]) == pytest.approx(wanted, abs=1e-5)
        else:
            pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
            found = class_probabilities(bundle, [*TEXTS, *pairs])
            wanted = [other.shares(text) for text in TEXTS] + [other.shares(*pair) for pair in pairs]
            rows = [(text, str(bundle.metadata["labels"][1])) for text in TEXTS]
            loss = -sum(math.log(one[1]) for one in wanted[: len(TEXTS)])
            assert corpus_loss(bundle, rows).nats == pytest.approx(loss, rel=1e-4)
            assert [list(one.values()) for one in found] == [pytest.approx(one, abs=1e-5) for one in wanted]
    assert import_folder(tmp_path / "back").metadata["framing"] == bundle.metadata["framing"]
    [check] = verify(bundle, TEXTS, quick=True, only=[CHECK]).checks
    assert check.passed, check.sentence


@pytest.mark.parametrize("name", ["bart", "llama"])
def test_the_settings_of_a_folder_are_in_force(name: str, transformers: Any, tmp_path: Path) -> None:
    """Without a word about decoding, texts are those of `generate` without a word; also after an export."""
    save_foreign(transformers, next(one for one in FAMILIES if one.name == name), tmp_path / "in")
    place = tmp_path / "in" / "generation_config.json"
    settings = json.loads(place.read_text()) if place.exists() else {}
    stop = settings.get("eos_token_id", 2)
    settings |= {"num_beams": 3, "length_penalty": 0.4, "early_stopping": True, "no_repeat_ngram_size": 2}
    # a stop that is no special token would be a part of the text there, and is none here
    settings |= {"eos_token_id": [stop, {"bart": 3, "llama": 0}[name]]}
    settings |= {"max_new_tokens": 9, "min_new_tokens": 2}
    place.write_text(json.dumps(settings))
    bundle = import_folder(tmp_path / "in")
    export_folder(bundle, tmp_path / "back")
    here = [found[0].text for found in Writer(bundle).in_order(TEXTS)]
    for other in (There(transformers, tmp_path / "in"), There(transformers, tmp_path / "back")):
        assert here == [other.write_as_it_says(text) for text in TEXTS]
    assert here != written_here(bundle, TEXTS, Options(max_length=9))
    [check] = verify(bundle, TEXTS, quick=True, only=[CHECK]).checks
    assert check.passed, check.sentence
    assert check.details["its texts by its own settings"] == 0


def test_verify_finds_a_framing_that_is_not_the_toolkits(
    transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_foreign(transformers, next(one for one in FAMILIES if one.name == "llama"), tmp_path / "in")
    bundle = import_folder(tmp_path / "in")
    bundle.metadata["framing"] = Framings().to_dict()  # as if there were no start token
    with monkeypatch.context() as absent:
        absent.setattr("importlib.util.find_spec", lambda name: None)
        [check] = verify(bundle, TEXTS, quick=True, only=[CHECK]).checks
    assert not check.passed
    assert "4 by tokenizer.json differ; transformers, which gives the expected output" in check.sentence
    del bundle.metadata["source"]  # one of ours: no other toolkit to compare with
    with pytest.raises(UserError, match="no check"):
        verify(bundle, TEXTS, quick=True, only=[CHECK])


def test_verify_says_what_cannot_be_compared(transformers: Any, tmp_path: Path) -> None:
    save_foreign(transformers, next(one for one in FAMILIES if one.name == "llama"), tmp_path / "in")
    bundle = import_folder(tmp_path / "in")
    model: Any = bundle.model
    model.config = model.config.replace(position__name="sinusoidal")  # no family is like it
    [check] = verify(bundle, TEXTS, quick=True, only=[CHECK]).checks
    assert check.passed
    assert "equal; transformers cannot be compared: This model cannot be exported" in check.sentence


# -- losses and scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bart"])
@torch.no_grad()
def test_losses_and_scores_count_what_theirs_counts(name: str, transformers: Any, tmp_path: Path) -> None:
    """Labels are a target with all that its tokenizer puts around it: BART's begins with <s>, too."""
    save_foreign(transformers, next(one for one in FAMILIES if one.name == name), tmp_path / "in")
    there, bundle = There(transformers, tmp_path / "in"), import_folder(tmp_path / "in")
    pairs = [(TEXTS[0], TEXTS[3]), (TEXTS[3], TEXTS[1])]
    wanted = []
    for source, target in pairs:
        labels = there.tokenizer(text_target=target, return_tensors="pt")["input_ids"]
        loss = there.model(**there.tokenizer(source, return_tensors="pt"), labels=labels).loss
        wanted.append(float(loss) * labels.numel())
    assert [-one.logp for one in score(bundle, pairs)] == pytest.approx(wanted, rel=1e-4)
    assert corpus_loss(bundle, pairs).nats == pytest.approx(sum(wanted), rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.no_grad()
def test_losses_of_continuations(name: str, transformers: Any, tmp_path: Path) -> None:
    save_foreign(transformers, next(one for one in FAMILIES if one.name == name), tmp_path / "in")
    there, bundle = There(transformers, tmp_path / "in"), import_folder(tmp_path / "in")
    stop, start = there.tokenizer.eos_token_id, there.tokenizer.bos_token_id
    nats = 0.0
    for text in TEXTS[:2]:
        ids = torch.tensor([[start, *there.tokenizer(text, add_special_tokens=False)["input_ids"], stop]])
        nats += float(there.model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        one = corpus_loss(bundle, [("", text)], documents=True)
        assert one.tokens == ids.shape[1] - 1
    whole = [corpus_loss(bundle, [("", text)], documents=True).nats for text in TEXTS[:2]]
    assert sum(whole) == pytest.approx(nats, rel=1e-4)


# -- bundles of ours ----------------------------------------------------------------------------------------

SENTENCES = ["a b c", "d", "j i h g", "b b e"]
TRAINED: dict[str, dict[str, Any]] = {
    "translate": {},
    "summarise": {"source_limit": 4},
    "generate": {"documents": True},
}


@pytest.mark.parametrize("task", TRAINED)
def test_bundles_of_ours_write_the_same_there(task: str, transformers: Any, tmp_path: Path) -> None:
    """Without a setting given there: the folder says how long texts get and what is never written."""
    plain = taught(**(LLAMA if task == "generate" else {}))
    bundle = Bundle(plain.model, plain.tokenizer, dict(TRAINED[task]))
    export_folder(bundle, tmp_path / "out")
    there = There(transformers, tmp_path / "out")
    texts = [f"{text} ." for text in SENTENCES] if task == "generate" else SENTENCES
    wanted = written_here(bundle, texts, Options())
    if task == "summarise":  # there a text is cut only where one asks for it
        cut = there.tokenizer(texts, truncation=True)["input_ids"]
        texts = [there.tokenizer.decode(ids, skip_special_tokens=True) for ids in cut]
        assert texts == ["a b c", "d", "j i h", "b b e"]
    assert [there.write(text) for text in texts] == wanted
    assert len(set(wanted)) == len(wanted)
    again = import_folder(tmp_path / "out")
    assert written_here(again, texts, Options(max_length=30)) == wanted


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_labels_of_ours_are_the_same_there(kind: str, transformers: Any, tmp_path: Path) -> None:
    size = tokenizer().vocabulary_size
    bundle = random_bundle(
        "bert-base", SMALL | {"vocabulary": size, "head__kind": kind, "head__classes": len(LABELS)}
    )
    bundle.tokenizer, bundle.metadata = tokenizer(), {"labels": LABELS}
    export_folder(bundle, tmp_path / "out")
    there = There(transformers, tmp_path / "out")
    before = [1] if kind == "classify" else []
    assert there.tokenizer("a b")["input_ids"] == [*before, *tokenizer().encode("a b")]
    if kind == "tag":
        found = tag(bundle, SENTENCES)
        assert found == [there.tags(text) for text in SENTENCES]
        assert len({name for names in found for name in names}) > 1
    else:
        for text, (name, share) in zip(SENTENCES, classify(bundle, SENTENCES), strict=True):
            shares = there.shares(text)
            assert share == pytest.approx(max(shares), abs=1e-5)
            assert name == LABELS[shares.index(max(shares))]


LABELS = ["x", "y", "z"]


# -- what is stored, and what is not ------------------------------------------------------------------------


def test_bundles_of_0_1_keep_their_framing() -> None:
    """They note nothing: what stood around their texts in training stands there still."""
    for settings, metadata, source, target in (
        ({}, {}, [4, 2], [4, 2]),
        ({"family": "decoder"}, {}, [4], [4]),
        ({"family": "decoder"}, {"documents": True}, [4], [1, 4]),
        ({"family": "encoder", "head__kind": "classify"}, {}, [1, 4], [4]),
        ({"family": "encoder", "head__kind": "tag"}, {}, [4], [4]),
    ):
        bundle = Bundle(untaught(**settings).model, tokenizer(), metadata)
        framings = framings_of(bundle)
        assert (framings.source.around([4]), framings.target.around([4])) == (source, target)


def test_a_framing_that_cannot_be_used_is_a_sentence(tmp_path: Path, capsys: Any) -> None:
    bundle = untaught()
    for noted, reason in (
        ({"source": {"single": []}}, "exactly once"),
        ({"source": {"single": [["A", 0], [99, 0]]}}, "the token id 99, but the vocabulary ends at 14"),
        (7, "must be a table"),
    ):
        bundle.metadata = {"framing": noted}
        with pytest.raises(UserError, match=f"'framing' in this bundle's metadata.*{reason}"):
            Writer(bundle)
    folder = save(untaught(), tmp_path / "bundle")
    (folder / "metadata.json").unlink()
    write_metadata(folder, 1, bundle.metadata)
    assert main(["inspect", str(folder)]) == 2
    assert "The 'framing' in this bundle's metadata cannot be used" in capsys.readouterr().err
    with pytest.raises(UserError, match="must be a table"):
        load_bundle(folder)


def test_inspect_names_an_unusable_tokenizer(tmp_path: Path, capsys: Any) -> None:
    folder = save(untaught(), tmp_path / "bundle")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "metadata.json").unlink()
    write_metadata(folder, 1, {})  # every checksum is right
    assert main(["inspect", str(folder)]) == 2
    assert "tokenizer.json' is damaged" in capsys.readouterr().err


def test_flags_and_ids_of_a_folder(transformers: Any, tmp_path: Path) -> None:
    """A file without a template leaves it to `add_bos_token`; an id beyond the vocabulary is refused."""
    save_foreign(transformers, next(one for one in FAMILIES if one.name == "llama"), tmp_path / "in")
    path = tmp_path / "in" / "tokenizer.json"
    plain = json.loads(path.read_text())
    settings = json.loads((tmp_path / "in" / "tokenizer_config.json").read_text())
    path.write_text(json.dumps(plain | {"post_processor": None}))
    for flags, around in (
        ({}, [9]),
        ({"add_bos_token": True}, [1, 9]),
        ({"add_bos_token": False, "add_eos_token": True}, [9, 2]),
    ):
        (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps(settings | flags))
        assert framings_of(import_folder(tmp_path / "in")).target.around([9]) == around
    odd = Tokenizer.words(["the cat"]).backend
    odd.add_tokens(["«begin»", "«end»", "«fill»"])  # names that nobody could guess
    odd.save(str(path))
    roles = {"bos_token": {"content": "«begin»"}, "eos_token": "«end»", "pad_token": "not in there"}
    (tmp_path / "in" / "special_tokens_map.json").write_text(json.dumps(roles))
    (tmp_path / "in" / "tokenizer_config.json").write_text('{"pad_token": "«fill»", "add_bos_token": true}')
    known = import_folder(tmp_path / "in")
    assert known.tokenizer is not None
    assert known.tokenizer.specials == {"pad": 8, "start": 6, "stop": 7, "unknown": 3}
    assert framings_of(known).target.around([9]) == [6, 9]
    template = plain["post_processor"]["processors"][1]
    template["special_tokens"]["<s>"]["ids"] = [5000]
    path.write_text(json.dumps(plain | {"post_processor": template}))
    with pytest.raises(UserError, match="the token id 5000, but the vocabulary ends at"):
        import_folder(tmp_path / "in")


# -- with the folder's own settings -------------------------------------------------------------------------

BEAMS: dict[str, dict[str, Any]] = {
    "bart": {
        "num_beams": 4,
        "early_stopping": True,
        "length_penalty": 2.0,
        "min_length": 6,
        "max_length": 14,
        "no_repeat_ngram_size": 2,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "eos_token_id": [2, 3],
    },
    "marian": {"num_beams": 3, "bad_words_ids": [[2], [9, 10]], "max_length": 12, "forced_eos_token_id": 0},
}


def with_settings(transformers: Any, name: str, settings: dict[str, Any], folder: Path) -> There:
    """A family's folder with these settings for decoding beside the ids it has."""
    save_foreign(transformers, next(one for one in FAMILIES if one.name == name), folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return There(transformers, folder)


@pytest.mark.parametrize("name", BEAMS)
@torch.no_grad()
def test_text_to_text_with_the_folders_own_settings(name: str, transformers: Any, tmp_path: Path) -> None:
    there = with_settings(transformers, name, BEAMS[name], tmp_path / "in")
    bundle = load_bundle(save(import_folder(tmp_path / "in"), tmp_path / "ours"))
    found = [one[0].text for one in Writer(bundle).in_order(TEXTS, options_of(bundle))]
    for text, written in zip(TEXTS, found, strict=True):
        given = there.tokenizer(text, return_tensors="pt")
        begun = 0 if there.model.config.is_encoder_decoder else given["input_ids"].shape[1]
        ids = there.model.generate(**given)[0][begun:]
        assert written == there.tokenizer.decode(ids, skip_special_tokens=True)


@torch.no_grad()
def test_what_is_drawn_has_their_distribution(transformers: Any, tmp_path: Path) -> None:
    """The first token after a prompt, drawn often on both sides: one and the same distribution."""
    draws = 2000
    drawn = {"do_sample": True, "temperature": 0.7, "top_k": 6, "top_p": 0.95, "max_new_tokens": 1}
    there = with_settings(transformers, "llama", drawn, tmp_path / "in")
    bundle = import_folder(tmp_path / "in")
    torch.manual_seed(0)
    given = there.tokenizer([TEXTS[0]] * draws, return_tensors="pt")
    theirs = Counter(there.model.generate(**given)[:, -1].tolist())
    writer, options = Writer(bundle), options_of(bundle)
    ours: Counter[int] = Counter()
    for _, [one] in writer.write([TEXTS[0]] * draws, options, range(draws)):
        ours[one.ids[0]] += 1
    assert len(ours) > 2
    counts = torch.tensor([[side[id] for id in sorted({*ours, *theirs})] for side in (ours, theirs)])
    expected = counts.double().mean(0)
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((counts.shape[1] - 1) / 2)
    assert torch.special.gammaincc(freedom.double(), statistic / 2) > 1e-3


def test_ctranslate2_puts_the_same_around_sources(transformers: Any, tmp_path: Path) -> None:
    """Of bare tokens it makes what we make of the text: BART's <s> before them, and </s> after."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    save_foreign(transformers, next(one for one in FAMILIES if one.name == "bart"), tmp_path / "in")
    bundle = import_folder(tmp_path / "in")
    export_folder(bundle, tmp_path / "out", to="ctranslate2")
    assert bundle.tokenizer is not None
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    tokens = [bundle.tokenizer.tokens(text) for text in TEXTS]
    found = translator.translate_batch(
        tokens, beam_size=1, max_decoding_length=STEPS, min_decoding_length=0, suppress_sequences=[]
    )
    texts = [
        bundle.tokenizer.decode([bundle.tokenizer.id(name) for name in one.hypotheses[0]]) for one in found
    ]
    assert texts == written_here(bundle, TEXTS)
