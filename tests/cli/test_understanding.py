"""`embed`, `contexts` and `label --json`: what they print and write, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clearhead.bundle import load_bundle, save
from clearhead.decoding import embed
from clearhead.decoding.labels import class_probabilities, tag, tag_probabilities
from clearhead.explorer.contexts import contexts
from clearhead.explorer.session import Session
from clearhead.explorer.words import unpacked

from ..decoding.bundles import labeller
from .making import Run

LINES = ["the cat sleeps", "a dog eats the fish", "one bird sings", "a cat sleeps"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "corpus.txt"


def test_vectors_in_every_form(run: Run, corpus: Path) -> None:
    """All forms give back the same float32 numbers, bit for bit."""
    wanted = embed(load_bundle("labeller"), LINES).numpy()
    printed = run("embed", "labeller", "--file", corpus).lines
    assert np.array_equal(np.array([line.split("\t") for line in printed], np.float32), wanted)
    objects = run("embed", "labeller", *LINES, "--json").objects
    assert [one["text"] for one in objects] == LINES
    assert np.array_equal(np.array([one["vector"] for one in objects], np.float32), wanted)
    piped = run("embed", "labeller", given="".join(f"{line}\n" for line in LINES))
    assert piped.lines == printed
    for name in ("v.npy", "v.jsonl", "v.tsv"):
        ended = run("embed", "labeller", "--file", corpus, "--out", name)
        assert (ended.code, ended.stdout) == (0, "")
        assert "Wrote 4 vectors" in ended.stderr
    assert np.array_equal(np.load("v.npy"), wanted)
    assert Path("v.tsv").read_text() == "".join(f"{line}\n" for line in printed)
    stored = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    assert stored == objects
    other = run("embed", "labeller", "a dog", "--layer", "1", "--pooling", "first", "--normalise").lines
    [vector] = embed(load_bundle("labeller"), ["a dog"], layer=1, pooling="first", normalise=True)
    assert np.array_equal(np.array(other[0].split("\t"), np.float32), vector.numpy())


def test_a_search(run: Run, corpus: Path) -> None:
    found = run("embed", "labeller", "--file", corpus, "--nearest", "one bird sings", "-k", "2")
    first, second = (line.split("\t") for line in found.lines)
    assert first == ["1.0000", "3", "one bird sings"]
    assert float(second[0]) < 1
    asked = ["embed", "labeller", "--file", corpus, "--nearest", "a cat sleeps", "--json"]
    plain = run(*asked).objects
    vectors = embed(load_bundle("labeller"), LINES)
    cosines = torch.nn.functional.cosine_similarity(vectors[3].double(), vectors.double(), dim=-1)
    assert [one["line"] - 1 for one in plain] == cosines.argsort(descending=True, stable=True).tolist()
    assert [one["cosine"] for one in plain] == pytest.approx(sorted(cosines.tolist(), reverse=True))


def test_what_embed_refuses(run: Run, corpus: Path, tmp_path: Path) -> None:
    for arguments, sentence in (
        (["a", "--file", str(corpus)], "Give the texts either"),
        (["a", "--out", "v.bin"], "must be one of .npy"),
        (["a", "--out", "nowhere/v.npy"], "There is no folder 'nowhere'"),
        (["a", "--out", "v.npy", "--nearest", "b"], "leave out --nearest and --json"),
        (["a", "--layer", "9"], "not 9"),
        (["a", "--pooling", "max"], "There is no pooling 'max'"),
    ):
        ended = run("embed", "labeller", *arguments)
        assert (ended.code, ended.stdout) == (2, ""), arguments
        assert sentence in ended.stderr
    (tmp_path / "empty.txt").touch()
    ended = run("embed", "labeller", "--file", "empty.txt", "--nearest", "a cat")
    assert ended.code == 2
    assert "There is no text to search: the input is empty." in ended.stderr
    (tmp_path / "letters.txt").write_text("abc\n" + "a" * 40 + "\n")
    ended = run("embed", "writer", "--file", "letters.txt", "--out", "v.npy")
    assert ended.code == 2
    assert "Text 2 has" in ended.stderr
    assert not Path("v.npy").exists()


def test_contexts_as_a_table_as_json_and_as_a_page(run: Run) -> None:
    sentences = ["the cat sleeps", "a cat eats", "who sees the cat"]
    found = contexts(Session(load_bundle("translator")), "cat", sentences)
    shown = run("contexts", "translator", "cat", *sentences, "--out", "cat.html")
    assert shown.code == 0
    assert shown.lines[0] == "1  the cat sleeps  [cat]"
    titles = "layer static 1 static 2 static 3 1–2 1–3 2–3"
    assert " ".join(shown.lines[3].split()) == titles
    static, between = unpacked(found["static"]), unpacked(found["between"])
    for layer, line in enumerate(shown.lines[4:7]):
        pairs = [between[layer, a, b] for a, b in ((0, 1), (0, 2), (1, 2))]
        assert line.split()[-6:] == [f"{float(x):.3f}" for x in [*static[layer], *pairs]]
    page = Path("cat.html").read_text()
    assert page.count("<circle") == 3 * 3  # a point for each sentence and height
    assert "“cat” in 3 sentences" in page
    [plain] = run("contexts", "translator", "cat", *sentences, "--json").objects
    assert plain["between"] == between.tolist()
    assert plain["layers"] == found["layers"]
    for arguments, sentence in (
        (["bird", *sentences], "does not occur in sentence 1"),
        (["cat", "the cat"], "2 to 12 sentences"),
        (["cat", *sentences, "--out", "cat.png"], "must end in .html"),
    ):
        ended = run("contexts", "translator", *arguments)
        assert ended.code == 2
        assert sentence in ended.stderr


def test_all_classes_as_json(run: Run, tmp_path: Path) -> None:
    bundle = load_bundle("labeller")
    objects = run("label", "labeller", *LINES, "--json").objects
    for text, one, wanted in zip(LINES, objects, class_probabilities(bundle, LINES), strict=True):
        assert one == {"text": text, "label": max(wanted, key=wanted.__getitem__), "probabilities": wanted}
        assert sum(one["probabilities"].values()) == pytest.approx(1)
    save(labeller("classify", ["yes", "no"], "decoder", two=True), tmp_path / "pairs")
    [pair] = run("label", "pairs", "a cat", "a dog", "--json").objects
    assert pair["text"] == ["a cat", "a dog"]
    save(labeller("number", []), tmp_path / "numbers")
    assert set(run("label", "numbers", "a cat", "--json").objects[0]) == {"text", "number"}
    tagger = labeller("tag", ["NOUN", "DET", "VERB"])
    save(tagger, tmp_path / "tagger")
    tagged = run("label", "tagger", *LINES, "", "--json").objects
    shares = tag_probabilities(tagger, LINES)
    for text, one, tags, each in zip(LINES, tagged, tag(tagger, LINES), shares, strict=False):
        assert one["words"] == text.split()
        assert one["tags"] == tags == [max(share, key=share.__getitem__) for share in each]
        assert [sum(share.values()) for share in one["probabilities"]] == pytest.approx([1] * len(tags))
    assert tagged[-1] == {"text": "", "words": [], "tags": [], "probabilities": []}
    assert run("label", "tagger", *LINES).lines == [" ".join(tags) for tags in tag(tagger, LINES)]
