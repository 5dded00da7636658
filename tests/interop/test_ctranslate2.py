"""Bundles as CTranslate2 models, run by the real one: the same scores, the same greedy and beam outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead import build
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, save
from clearhead.cli.main import main
from clearhead.interop import export_folder
from clearhead.models import ModelConfig
from clearhead.text.tokenizer import Tokenizer

from .writers import DECODER, LLAMA, PRE, given, ours, program, taught, texts, tokenizer, untaught

ctranslate2: Any = pytest.importorskip(
    "ctranslate2", reason="needs ctranslate2 to run what was exported: pip install 'clearhead[export]'"
)

GPT2 = DECODER | {
    "position__name": "learned",
    "position__max_length": 40,
    "feedforward__activation": "gelu_tanh",
    "embedding__scale": False,
}
T5 = PRE | {
    "norm__kind": "rms",
    "position__name": "t5",
    "position__buckets": 8,
    "position__max_distance": 6,
    "attention__score": "dot",
    "attention__key_dim": 10,
    "attention__bias": False,
    "embedding__scale": False,
    "embedding__output_scale": 32**-0.5,
}

# Taught models whose whole searches are compared.
SEARCHED: dict[str, dict[str, Any]] = {
    "post-norm, sinusoidal": {},
    "pre-norm, rotary": PRE | {"position__name": "rotary"},
    "t5": T5,
    "gpt2": GPT2,
    "llama": LLAMA,
    "decoder, alibi": DECODER | {"position__name": "alibi"},
}


def scaled(**scaling: Any) -> dict[str, Any]:
    return DECODER | {"position__name": "rotary", "position__scaling": scaling}


# One dial each, compared token by token.
DIALS: dict[str, dict[str, Any]] = {
    "sines in halves": {"position__layout": "halves", "position__base": 100.0},
    "learned, norms wherever they go": {
        "position__name": "learned",
        "embedding__norm": True,
        "embedding__scale": False,
        "norm__final": True,
    },
    "pre-norm without a last norm": PRE | {"norm__final": False},
    "no positions, a scale": {"position__name": "none", "attention__scale": 0.7},
    "shaw": {"position__name": "shaw", "position__max_distance": 3},
    "shaw with values": {"position__name": "shaw", "position__max_distance": 3, "position__values": True},
    "rotary in halves, one key head": PRE
    | {"position__name": "rotary", "position__layout": "halves", "attention__kv_heads": 1},
    "layers differ, heads of their own size": {"decoder_layers": 1, "attention__key_dim": 6},
    "output of its own, with a bias": {"embedding__tie_output": False, "embedding__output_bias": True},
    "t5, gated": T5 | {"feedforward__gated": True, "feedforward__activation": "gelu_tanh"},
    "biases here and there": {"attention__bias": False, "attention__output_bias": True},
    "large epsilon": {"norm__eps": 0.1},
    "large epsilon, rms": PRE | {"norm__eps": 0.1, "norm__kind": "rms"},
    **{f"activation {name}": {"feedforward__activation": name} for name in ("gelu", "quick_gelu", "tanh")},
    "decoder, sinusoidal": DECODER,
    "decoder, none": DECODER | {"position__name": "none"},
    "decoder, shaw": DECODER | {"position__name": "shaw", "position__max_distance": 3},
    "decoder, post-norm": {"family": "decoder"},
    "decoder, six heads with alibi": DECODER
    | {"position__name": "alibi", "attention__heads": 6, "attention__key_dim": 8},
    "scaling linear": scaled(kind="linear", factor=3.0),
    "scaling ntk": scaled(kind="ntk", factor=3.0),
    "scaling yarn": scaled(kind="yarn", factor=4.0, original_length=8, slow_turns=0.1),
    "scaling yarn, temperature": scaled(kind="yarn", factor=4.0, original_length=8, temperature=1.7),
    "scaling llama3": scaled(kind="llama3", factor=8.0, original_length=8),
}


def names(ids: Any, known: Tokenizer | None = None) -> list[str]:
    return [(known or tokenizer()).token(id) for id in ids]


def exported(bundle: Bundle, folder: Path, **options: Any) -> Path:
    export_folder(bundle, folder / "out", "ctranslate2", **options)
    return folder / "out"


def their_search(bundle: Bundle, folder: Path, beams: int) -> list[tuple[list[str], float]]:
    """Tokens and log-probability of the best text for each of ours."""
    rows = texts()
    if bundle.config.family == "encoder-decoder":
        translator = ctranslate2.Translator(str(folder), intra_threads=1)
        done = translator.translate_batch(
            [names(ids) for ids in rows],
            beam_size=beams,
            length_penalty=0,
            min_decoding_length=0,
            return_scores=True,
        )
        return [(one.hypotheses[0], one.scores[0]) for one in done]
    generator = ctranslate2.Generator(str(folder), intra_threads=1)
    # One at a time: in a batch it takes what prompts have beyond the shortest for written text.
    done = [
        generator.generate_batch(
            [names(prompt)],
            beam_size=beams,
            length_penalty=0,
            min_length=0,
            max_length=30,
            return_scores=True,
            include_prompt_in_result=False,
        )[0]
        for prompt in given(bundle, rows)
    ]
    return [(one.sequences[0], one.scores[0]) for one in done]


@pytest.mark.parametrize("changes", SEARCHED.values(), ids=SEARCHED.keys())
def test_the_same_greedy_and_beam_outputs(changes: dict[str, Any], tmp_path: Path) -> None:
    bundle = taught(**changes)
    folder = exported(bundle, tmp_path)
    for beams in (1, 4):
        expected = ours(bundle, texts(), beams)
        for here, (tokens, logp) in zip(expected, their_search(bundle, folder, beams), strict=True):
            assert tokens == names(here.ids)
            assert logp == pytest.approx(here.logp, abs=1e-4)


def our_scores(bundle: Bundle, source: list[int], target: list[int]) -> list[float]:
    """Log-probabilities of the tokens CTranslate2 scores: a target with its end, or all but the first."""
    with torch.no_grad():
        if bundle.config.family == "encoder-decoder":
            logits = bundle.model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]])).logits[0]
            wanted = [*target, 2]
        else:
            logits, wanted = bundle.model(torch.tensor([target])).logits[0, :-1], target[1:]
    found: list[float] = logits.log_softmax(-1)[torch.arange(len(wanted)), wanted].tolist()
    return found


def their_scores(bundle: Bundle, folder: Path, sources: Any, targets: Any) -> list[list[float]]:
    reader = bundle.source_tokenizer
    into = [names(ids) for ids in targets]
    if bundle.config.family == "encoder-decoder":
        translator = ctranslate2.Translator(str(folder), intra_threads=1)
        done = translator.score_batch([names(ids, reader) for ids in sources], into)
    else:
        done = ctranslate2.Generator(str(folder), intra_threads=1).score_batch(into)
    return [one.log_probs for one in done]


def largest_difference(bundle: Bundle, folder: Path) -> float:
    sources, targets = texts(1), texts(2)
    theirs = their_scores(bundle, folder, sources, targets)
    here = [our_scores(bundle, *pair) for pair in zip(sources, targets, strict=True)]
    pairs = [pair for a, b in zip(here, theirs, strict=True) for pair in zip(a, b, strict=True)]
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("changes", DIALS.values(), ids=DIALS.keys())
def test_every_dial_gives_the_same_scores(changes: dict[str, Any], tmp_path: Path) -> None:
    bundle = untaught(**changes)
    assert largest_difference(bundle, exported(bundle, tmp_path)) < 1e-4


def test_two_vocabularies(tmp_path: Path) -> None:
    reader = Tokenizer.words("j i h g f e d c b a . , ; :")
    bundle = untaught(source_vocabulary=reader.vocabulary_size)
    bundle.source_tokenizer = reader
    folder = exported(bundle, tmp_path)
    assert largest_difference(bundle, folder) < 1e-4
    assert json.loads((folder / "source_vocabulary.json").read_text())[4] == "j"
    assert json.loads((folder / "target_vocabulary.json").read_text())[4] == "a"
    assert Tokenizer.load(folder / "source_tokenizer.json").encode("j") == [4]
    assert Tokenizer.load(folder / "tokenizer.json").encode("a") == [4]


def test_vocabularies_that_end_differently_are_refused(tmp_path: Path) -> None:
    bundle = untaught(source_vocabulary=10)
    bundle.source_tokenizer = Tokenizer(Tokenizer.words("a b c </s>").backend, {"stop": 7})
    with pytest.raises(UserError, match=r"call it '</s>' and '<stop>'"):
        exported(bundle, tmp_path)


def test_the_folder_holds_what_it_takes(tmp_path: Path) -> None:
    bundle = untaught(vocabulary=tokenizer().vocabulary_size + 2)  # rounded up, as training may do
    folder = exported(bundle, tmp_path)
    files = {"config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == files
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    assert tokens[:5] == ["<pad>", "<start>", "<stop>", "<unknown>", "a"]
    assert tokens[-2:] == ["<unused 15>", "<unused 16>"]
    settings = json.loads((folder / "config.json").read_text())
    assert settings["add_source_eos"]
    assert settings["layer_norm_epsilon"] == 1e-5
    named = {"bos": "<start>", "eos": "<stop>", "unk": "<unknown>"}
    assert {role: settings[f"{role}_token"] for role in named} == named
    assert settings["decoder_start_token"] == "<start>"


def test_without_a_tokenizer_tokens_are_their_ids(tmp_path: Path) -> None:
    bundle = Bundle(untaught().model, metadata={"special": {"pad": 0, "start": 1, "stop": 2}})
    folder = exported(bundle, tmp_path)
    translator = ctranslate2.Translator(str(folder), intra_threads=1)
    [theirs] = translator.score_batch([["5", "7"]], [["9", "4"]])
    assert theirs.log_probs == pytest.approx(our_scores(bundle, [5, 7], [9, 4]), abs=1e-4)
    with pytest.raises(UserError, match="needs the start token"):
        exported(Bundle(bundle.model), tmp_path / "other")


@pytest.mark.parametrize("kind, share", [("int8", 0.5), ("int16", 0.7), ("float16", 0.6), ("bfloat16", 0.6)])
def test_weights_in_fewer_bits(kind: str, share: float, tmp_path: Path) -> None:
    bundle = untaught(width=64, feedforward__width=256)
    whole = exported(bundle, tmp_path / "whole")
    folder = exported(bundle, tmp_path / "small", quantize=kind)
    sizes = [(path / "model.bin").stat().st_size - 4 * 2048 * 64 for path in (folder, whole)]
    if kind in ("float16", "bfloat16"):
        sizes[0] += 2 * 2048 * 64  # the table of positions is halved as well
    assert sizes[0] < share * sizes[1]
    difference = largest_difference(bundle, folder)
    assert 0 < difference < 0.2


def test_half_precision_stays_half(tmp_path: Path) -> None:
    bundle = untaught()
    full = (exported(bundle, tmp_path / "full") / "model.bin").stat().st_size
    bundle.model.to(torch.bfloat16)
    folder = exported(bundle, tmp_path / "half")
    assert (folder / "model.bin").stat().st_size < 0.6 * full
    bundle.model.float()
    assert largest_difference(bundle, folder) < 5e-3  # the positions are halved, too


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"attention__score": "additive"}, "attention.score='additive'"),
        ({"attention__softcap": 5.0}, "attention.softcap=5.0"),
        ({"attention__value_dim": 3}, "attention.value_dim=3 beside key_dim=8"),
        ({"position__name": "alibi"}, "position.name='alibi' in an encoder"),
        ({"position__name": "music"}, "position.name='music'"),
        ({"position__name": "transformer_xl"}, "position.name='transformer_xl'"),
        (DECODER | {"position__name": "t5"}, "position.name='t5' in a decoder"),
        ({"embedding__token_types": 2}, "embedding.token_types=2"),
    ],
)
def test_what_it_cannot_represent_is_named(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="CTranslate2 has no") as caught:
        exported(untaught(**changes), tmp_path)
    assert named in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_other_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="family 'encoder' cannot be exported to CTranslate2"):
        exported(untaught(family="encoder"), tmp_path)
    with pytest.raises(UserError, match="did you mean 'int8'"):
        exported(untaught(), tmp_path, quantize="int7")
    with pytest.raises(UserError, match="has no weights"):
        exported(Bundle(build("tiny", device="meta"), tokenizer()), tmp_path)
    with pytest.raises(UserError, match="do not belong together"):
        exported(Bundle(build(ModelConfig.from_dict({"vocabulary": 5, "width": 8})), tokenizer()), tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty"):
        exported(untaught(), tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package 'ctranslate2'.*`pip install ctranslate2`"):
        exported(untaught(), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = save(untaught(), tmp_path / "bundle")
    out = tmp_path / "there"
    command = ["export", str(bundle), "--to", "ctranslate2", "--out", str(out)]
    assert main([*command, "--quantize", "int8"]) == 0
    assert capsys.readouterr().out == f"Wrote {out}\n"
    assert ctranslate2.contains_model(str(out))
    assert main(command) == 2
    assert "is not empty" in capsys.readouterr().err
    other = ["export", str(bundle), "--to", "huggingface", "--out", str(tmp_path / "x")]
    assert main([*other, "--quantize", "int8"]) == 2
    assert "'--quantize' is only for ctranslate2" in capsys.readouterr().err


def test_the_program_in_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = taught()
    export_folder(bundle, tmp_path / "en-de-ct2", "ctranslate2")
    monkeypatch.chdir(tmp_path)
    text = tokenizer().decode(texts()[0])
    exec(program("import ctranslate2").replace("the cat sleeps", text), {})
    assert capsys.readouterr().out.strip() == tokenizer().decode(ours(bundle, texts(), beams=4)[0].ids)
