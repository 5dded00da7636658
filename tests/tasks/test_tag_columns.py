"""Several tags a word: CoNLL files, labels by column, a loss for each, and a bundle that gives them all."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.bundle import load_bundle, save
from clearhead.cli.main import main
from clearhead.data.batch import IGNORED, Widths
from clearhead.data.columns import Row
from clearhead.data.config import CorpusConfig
from clearhead.data.encoding import Answers, Encoder, Tokenizers
from clearhead.data.layouts import halves, pack_batch, pack_into
from clearhead.data.packing import Packing
from clearhead.data.read import read_rows
from clearhead.decoding.labels import tag, tag_names, tag_probabilities
from clearhead.evaluation.judges import WordTags
from clearhead.evaluation.loss import corpus_loss
from clearhead.models.config import HeadConfig
from clearhead.models.heads import columns_apart
from clearhead.tasks import TASKS
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.objectives import LabelObjective

from ..decoding.bundles import labeller

pytestmark = pytest.mark.usefixtures("no_curves")
TAGS = TASKS["tag"].columns
UNIVERSAL = """# sent_id = 1
1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2-3\tcats\t_\t_\t_\t_\t_\t_\t_\t_
2\tcat\tcat\tNOUN\t_\tNumber=Sing\t3\tnsubj\t_\t_
2.1\tghost\t_\t_\t_\t_\t_\t_\t_\t_
3\t10 000\tsleep\tVERB\t_\t_\t0\troot\t_\t_


# sent_id = 2
1\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_
"""
SHARED_TASK = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nGerman JJ I-NP B-MISC\n"
LABELS = ("upos=DET", "upos=NOUN", "upos=VERB", "ner=B", "ner=O")


def rows(tmp_path: Path, name: str, text: str, **corpus: Any) -> list[Row]:
    (tmp_path / name).write_text(text, "utf-8")
    return list(read_rows(CorpusConfig(file=str(tmp_path / name), **corpus), TAGS))


def test_files_of_universal_dependencies(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.conllu", UNIVERSAL) == [
        Row("the cat 10000", "DET NOUN VERB", 2),
        Row("dog", "NOUN", 10),
    ]
    both = rows(tmp_path, "a.conllu", UNIVERSAL, target_column="upos,feats")
    assert both[0].target == "upos=DET feats=_ upos=NOUN feats=Number=Sing upos=VERB feats=_"
    assert rows(tmp_path, "a.conllu", UNIVERSAL, source_column="lemma", target_column="deprel")[0] == Row(
        "the cat sleep", "det nsubj root", 2
    )


def test_files_of_shared_tasks(tmp_path: Path) -> None:
    assert rows(tmp_path, "a.conll", SHARED_TASK) == [
        Row("EU rejects", "B-ORG O", 3),
        Row("German", "B-MISC", 6),
    ]
    assert rows(tmp_path, "a.iob", SHARED_TASK, target_column="2, 4")[1].target == "2=JJ 4=B-MISC"
    lines = '{"words": ["a", "b"], "pos": ["X", "Y"], "ner": ["O", "P"]}\n'
    assert rows(tmp_path, "a.jsonl", lines, target_column="pos,ner") == [
        Row("a b", "pos=X ner=O pos=Y ner=P", 1)
    ]


@pytest.mark.parametrize(
    "name, text, column, sentence",
    [
        ("a.conll", "EU NNP\nrejects\n", None, "line 2 has 1 column, but column 2 is needed"),
        ("a.conll", "EU NNP\nrejects VBZ O\n", None, "line 2 has 3 columns, and the first word 2"),
        ("a.conllu", UNIVERSAL, "upos,pos", "has no column 'pos'; its columns: 'id', 'form'"),
        ("a.conll", "a\tX\nb\t\n", None, "line 2 has no tag: every word needs one tag"),
        ("a.conll", "EU NNP B\n", "1", "are the same column"),
        ("a.conll", "EU NNP B\n", "2,2", "names no column of tags, or one of them twice"),
        ("a.jsonl", '{"words": "a b", "x": "X Y", "y": "Z"}\n', "x,y", "line 1 has 2 words but 1 tag"),
        ("a.jsonl", '{"words": "a", "x=y": "X", "y": "Z"}\n', "x=y,y", "cannot be called 'x=y'"),
    ],
)
def test_files_that_cannot_be_read(
    name: str, text: str, column: str | None, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        rows(tmp_path, name, text, target_column=column)


WIDTHS = Widths(3, 0, 8)


def batch_of(texts: list[tuple[str, str]]) -> Any:
    """Pieces of two letters, so that words have several."""
    tokenizer = Tokenizer.characters("abcdefgh ")
    encoding, both = TASKS["tag"].encoding(), Tokenizers.of(tokenizer)
    encode = Encoder(encoding, both, None, Answers(LABELS, None, (3, 2)))
    columns = encode([Row(a, b, line) for line, (a, b) in enumerate(texts, start=1)])
    return encoding.collate(columns, WIDTHS, both.specials())


EXAMPLES = [
    ("ab c", "upos=DET ner=O upos=NOUN ner=B"),
    ("d", "ner=B upos=VERB"),  # columns may come in any order
]


def test_labels_stand_at_first_pieces_by_column() -> None:
    batch = batch_of(EXAMPLES)
    assert batch.labels.shape == (3, 8, 2)
    none = [IGNORED, IGNORED]
    assert batch.labels[0].tolist() == [[0, 1], none, [1, 0], *[none] * 5]
    assert batch.labels[1].tolist() == [[2, 0], *[none] * 7]
    assert (batch.labels[2] == IGNORED).all()
    assert batch.tokens == 6
    flat = pack_batch(batch)
    assert flat.labels.shape == (int(sum(flat.lengths)), 2)
    shaped = pack_into(
        batch, Packing(rows=4, source=0, target=12, source_longest=0, target_longest=8, most=3)
    )
    assert shaped.labels.shape == (12, 2)
    assert torch.equal(shaped.labels[: len(flat.labels)], flat.labels)
    assert (shaped.labels[len(flat.labels) :] == IGNORED).all()
    first, second = halves(batch)
    assert torch.equal(first.labels, batch.labels[:1])
    assert torch.equal(second.labels, batch.labels[1:2])
    with pytest.raises(UserError, match=r"Line 1 has 2 words but 2 tags: every word \(.*\) needs 2"):
        batch_of([("ab c", "upos=DET upos=NOUN")])
    with pytest.raises(UserError, match="The tag 'ner=Q' on line 1 does not occur"):
        batch_of([("ab", "upos=DET ner=Q")])


def test_the_loss_is_that_of_each_column_by_itself() -> None:
    torch.manual_seed(0)
    batch = batch_of(EXAMPLES)
    plain = torch.randn(3, 8, 5, requires_grad=True)
    losses = LabelObjective()(lambda *_, **__: _Output(columns_apart(plain, (3, 2))), batch)
    parts = zip(plain.split([3, 2], -1), batch.labels.unbind(-1), strict=True)
    by_hand = sum(
        F.cross_entropy(one.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        for one, labels in parts
    )
    torch.testing.assert_close(losses.objective, by_hand)
    [ours] = torch.autograd.grad(losses.objective, plain, retain_graph=True)
    [theirs] = torch.autograd.grad(by_hand, plain)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs)


class _Output:
    extras = None

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def test_a_head_of_columns() -> None:
    with pytest.raises(UserError, match=r"add up to head\.classes=4"):
        HeadConfig(kind="tag", classes=4, columns=(3, 2))
    bundle = labeller("tag", list(LABELS), head__columns=(3, 2))
    texts = ["the cat sleeps", "", "a dog"]
    names, shares = tag_names(bundle, texts), tag_probabilities(bundle, texts)
    assert [len(words) for words in names] == [3, 0, 2]
    for words, each in zip(names, shares, strict=True):
        for chosen, share in zip(words, each, strict=True):
            assert list(share) == list(LABELS)
            for labels, name in ((LABELS[:3], chosen[0]), (LABELS[3:], chosen[1])):
                assert sum(share[label] for label in labels) == pytest.approx(1)
                assert name == max(labels, key=lambda label: share[label])
    joined = [["|".join(name.split("=")[1] for name in word) for word in words] for words in names]
    assert tag(bundle, texts) == joined
    rows = [
        (text, " ".join(name for word in words for name in word))
        for text, words in zip(texts, names, strict=True)
    ]
    rows = [rows[0], rows[2]]
    found = WordTags("tag")(bundle, rows)
    assert found.metrics["exact match"] == found.metrics["ner accuracy"] == 100
    swapped = [("the cat sleeps", " ".join(f"{b} {a}" for a, b in names[0]))]
    assert WordTags("tag")(bundle, swapped).metrics["upos accuracy"] == 100
    # every word's next tag in the first column, and its own in the second
    turned = dict(zip(LABELS[:3], (*LABELS[1:3], LABELS[0]), strict=True))
    other = " ".join(turned.get(name, name) for name in rows[0][1].split())
    figures = WordTags("tag")(bundle, [(texts[0], other)]).metrics
    assert (figures["upos accuracy"], figures["ner accuracy"], figures["accuracy"]) == (0, 100, 50)
    nats = corpus_loss(bundle, rows).nats
    wanted = [
        share[name]
        for words, each in zip(names, shares, strict=True)
        for ns, share in zip(words, each, strict=True)
        for name in ns
    ]
    assert nats == pytest.approx(-sum(torch.tensor(wanted, dtype=torch.float64).log().tolist()), rel=1e-5)
    with pytest.raises(UserError, match="In row 1, the label 'upos=X' is not one of the model's labels"):
        WordTags("tag")(bundle, [("dog", "upos=X ner=O")])
    with pytest.raises(UserError, match="this model predicts upos, ner"):
        WordTags("tag")(bundle, [("dog", "upos=DET feats=_")])


def test_a_tagger_is_trained_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A letter's first tag is the letter, its second whether it is a vowel."""
    draw = random.Random(0)
    lines = []
    for _ in range(120):
        for letter in draw.choices("abcde", k=draw.randint(2, 5)):
            lines.append(f"{letter}\t{letter.upper()}\t{'V' if letter in 'ae' else 'C'}")
        lines.append("")
    (tmp_path / "train.conll").write_text("\n".join(lines) + "\n", "utf-8")
    sized = {"model.width": 16, "model.layers": 1, "model.attention.heads": 2, "model.feedforward.width": 32}
    given = {**sized, "steps": 60, "batch.tokens": 256, "tokenizer.kind": "words", "schedule.rate": 0.02}
    settings = [one for name, value in given.items() for one in ("--set", f"{name}={value}")]
    out = str(tmp_path / "run")
    file = ["--file", str(tmp_path / "train.conll"), "--target-column", "2,3"]
    assert main(["train", "--task", "tag", *file, "--out", out, "--view", "quiet", *settings, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["bundle"], report["steps"], report["failed"]) == (out, 60, [])
    assert set(report["validation"]) >= {"last", report["chosen"]}
    bundle = load_bundle(out)
    assert report["test"] == {
        name: value for name, value in bundle.metadata["test"].items() if name in report["test"]
    }
    assert bundle.config.head.columns == (5, 2)
    assert bundle.metadata["labels"][-2:] == ["3=C", "3=V"]
    capsys.readouterr()
    assert main(["label", out, "a b e"]) == 0
    assert capsys.readouterr().out == "A|V B|C E|V\n"
    assert main(["label", out, "a b e", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tags"] == {"2": ["A", "B", "E"], "3": ["V", "C", "V"]}
    assert main(["evaluate", out, *file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["3 accuracy"] == 100
    assert main(["explain", out, "a b", "--out", str(tmp_path / "a.html")]) == 0
    assert "A|V" in (tmp_path / "a.html").read_text(encoding="utf-8")
    capsys.readouterr()
    smooth = ["--out", str(tmp_path / "smooth"), "--set", "objective.label_smoothing=0.1"]
    assert main(["train", "--task", "tag", *file, *settings, *smooth]) == 2
    assert "only work with one tag per word" in capsys.readouterr().err
    assert not (tmp_path / "smooth").exists()
    same = tmp_path / "same.conll"
    same.write_text("\n\n".join(f"a{n}\tX{n % 2}\tY" for n in range(30)) + "\n", "utf-8")
    capsys.readouterr()
    assert (
        main(["train", "--task", "tag", "--file", str(same), *file[2:], "--out", str(tmp_path / "no")]) == 2
    )
    assert "have the tag 'Y' in the column '3'" in capsys.readouterr().err
    save(bundle, tmp_path / "again")
    assert tag(load_bundle(tmp_path / "again"), ["c d"]) == [["C|C", "D|C"]]
