"""Bundles as ONNX graphs, run by onnxruntime: step by step, padded, greedy and with a beam, as ours."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, save
from clearhead.cli.main import main
from clearhead.interop import export_folder
from clearhead.text.tokenizer import Tokenizer

from .writers import LONGEST, given, ours, program, taught, texts, tokenizer, untaught

WHY = "needs onnx and onnxruntime to run what was exported: pip install 'clearhead[export]'"
pytest.importorskip("onnx", reason=WHY)
onnxruntime: Any = pytest.importorskip("onnxruntime", reason=WHY)

Array = np.ndarray[Any, Any]
PRE = {"norm__place": "pre"}
DECODER = {"family": "decoder", **PRE}
SEARCHED: dict[str, dict[str, Any]] = {
    "post-norm, sinusoidal": {},
    "pre-norm, rotary": PRE | {"position__name": "rotary"},
    "gpt2": DECODER
    | {
        "position__name": "learned",
        "position__max_length": 40,
        "feedforward__activation": "gelu_tanh",
        "embedding__scale": False,
    },
    "llama": DECODER
    | {
        "norm__kind": "rms",
        "position__name": "rotary",
        "attention__kv_heads": 2,
        "attention__bias": False,
        "feedforward__gated": True,
        "feedforward__activation": "silu",
        "feedforward__bias": False,
        "embedding__tie_output": False,
    },
}
DIALS: dict[str, dict[str, Any]] = {
    "t5": PRE | {"position__name": "t5", "position__buckets": 8, "position__max_distance": 6},
    "alibi, soft cap": {"position__name": "alibi", "attention__softcap": 5.0, "attention__scale": 0.7},
    "transformer-xl": {"position__name": "transformer_xl", "attention__score": "dot"},
    "shaw with values": {"position__name": "shaw", "position__max_distance": 2, "position__values": True},
    "music, values of their own size": DECODER
    | {"position__name": "music", "position__max_distance": 3, "attention__value_dim": 5},
    "learned, additive score": {
        "position__name": "learned",
        "attention__score": "additive",
        "embedding__norm": True,
        "embedding__token_types": 2,
        "attention__kv_heads": 1,
    },
    "decoder, t5": DECODER | {"position__name": "t5"},
    "decoder, yarn": DECODER
    | {
        "position__name": "rotary",
        "position__scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8},
    },
}


class Exported:
    """The graphs of a folder, driven as `docs/interop.md` tells it."""

    def __init__(self, folder: Path) -> None:
        self.settings = json.loads((folder / "config.json").read_text())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        names = self.settings["graphs"]
        self.graphs = {
            name: onnxruntime.InferenceSession(str(folder / name), options, ["CPUExecutionProvider"])
            for name in names
        }
        self.past_names = [name for name in names["decoder.onnx"]["inputs"] if name.startswith("past_")]
        shapes = {one.name: one.shape for one in self.graphs["decoder.onnx"].get_inputs()}
        self.shapes = [shapes[name] for name in self.past_names]

    def begin(self, rows: list[list[int]], left: bool = False) -> tuple[Array, dict[str, Array]]:
        """Log-probabilities (B, W) of the first token of each row, and what comes after needs."""
        ids, mask = padded(rows, left)
        state: dict[str, Array] = {
            name: np.zeros((len(rows), shape[1], 0, shape[3]), np.float32)
            for name, shape in zip(self.past_names, self.shapes, strict=True)
        }
        if "encoder.onnx" in self.graphs:
            names = self.settings["graphs"]["encoder.onnx"]["outputs"]
            made = self.graphs["encoder.onnx"].run(names, {"source": ids, "source_mask": mask})
            state |= dict(zip(names, made, strict=True))
            state["source_mask"] = mask
            start = np.full((len(rows), 1), self.settings["special"]["start"])
            return self.step(start, state)
        last = np.array([len(row) - 1 for row in rows]) if not left else np.full(len(rows), -1)
        return self.step(ids, state | {"mask": mask}, last)

    def step(
        self, tokens: Array, state: dict[str, Array], last: Array | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Log-probabilities (B, W) after the last new token of each row (`last`: where that stands)."""
        if last is None and "mask" in state:
            state = state | {"mask": np.concatenate([state["mask"], np.ones_like(tokens)], axis=1)}
        logits, *new = self.graphs["decoder.onnx"].run(None, {"tokens": tokens, **state})
        state = state | dict(zip(self.past_names, new, strict=True))
        chosen = logits[np.arange(len(logits)), -1 if last is None else last]
        return torch.tensor(chosen).log_softmax(-1).numpy(), state


def padded(rows: list[list[int]], left: bool) -> tuple[Array, Array]:
    """Ids filled up with something, and the mask that says where the real ones are."""
    width = max(len(row) for row in rows)
    ids, mask = np.full((len(rows), width), 3), np.zeros((len(rows), width), np.int64)
    for row, line, shown in zip(rows, ids, mask, strict=True):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        line[place], shown[place] = row, 1
    return ids, mask


def written_greedily(
    model: Exported, rows: list[list[int]], left: bool
) -> list[tuple[tuple[int, ...], float]]:
    """All rows together; one that has stopped goes on and is not listened to."""
    logp, state = model.begin(rows, left)
    texts, totals, going = [[] for _ in rows], np.zeros(len(rows)), [True] * len(rows)
    for _ in range(LONGEST):
        logp[:, [0, 1]] = -np.inf
        chosen = logp.argmax(axis=1)
        for row, id in enumerate(chosen.tolist()):
            if going[row]:
                totals[row] += logp[row, id]
                texts[row].append(id)
                going[row] = id != 2
        logp, state = model.step(chosen[:, None], state)
    return [(tuple(text[:-1]), total) for text, total in zip(texts, totals.tolist(), strict=True)]


def best_of_a_beam(model: Exported, row: list[int], places: int) -> tuple[tuple[int, ...], float]:
    """The text with the highest log-probability that a beam meets; live texts all have one length."""
    logp, state = model.begin([row])
    live: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[tuple[tuple[int, ...], float]] = []
    for _ in range(LONGEST):
        logp[:, [0, 1]] = -np.inf
        every = np.array([total for _, total in live])[:, None] + logp
        order = np.argsort(-every, axis=None, kind="stable")[: 2 * places]
        moves = [(int(at) // logp.shape[1], int(at) % logp.shape[1], float(every.flat[at])) for at in order]
        done += [(live[parent][0], total) for parent, id, total in moves[:places] if id == 2]
        moves = [move for move in moves if move[1] != 2][:places]
        live = [((*live[parent][0], id), total) for parent, id, total in moves]
        parents = [parent for parent, _, _ in moves]
        tokens = np.array([[id] for _, id, _ in moves])
        logp, state = model.step(tokens, {name: tensor[parents] for name, tensor in state.items()})
    return max(done, key=lambda one: one[1])


def exported(bundle: Bundle, folder: Path) -> Exported:
    export_folder(bundle, folder / "out", "onnx")
    return Exported(folder / "out")


@pytest.mark.parametrize("changes", SEARCHED.values(), ids=SEARCHED.keys())
def test_the_same_greedy_and_beam_outputs(changes: dict[str, Any], tmp_path: Path) -> None:
    bundle = taught(**changes)
    model = exported(bundle, tmp_path)
    rows = given(bundle, texts())
    expected = ours(bundle, texts())
    for left in (False, True):
        for here, (ids, logp) in zip(expected, written_greedily(model, rows, left), strict=True):
            assert ids == here.ids
            assert logp == pytest.approx(here.logp, abs=1e-4)
    for row, here in zip(rows, ours(bundle, texts(), beams=4), strict=True):
        ids, logp = best_of_a_beam(model, row, places=4)
        assert ids == here.ids
        assert logp == pytest.approx(here.logp, abs=1e-4)


@pytest.mark.parametrize("changes", DIALS.values(), ids=DIALS.keys())
def test_every_dial_gives_the_same_scores_in_any_steps(changes: dict[str, Any], tmp_path: Path) -> None:
    """A text written one token at a time, and in pieces of 3 and 2, beside a longer one."""
    bundle = untaught(**changes)
    model = exported(bundle, tmp_path)
    rows = [[5, 6, 7, 2], [8, 9, 4, 10, 11, 2]]
    further = torch.tensor([[7, 4, 5, 9, 12], [11, 11, 8, 6, 4]])
    with torch.no_grad():
        for number, row in enumerate(rows):
            if bundle.config.family == "encoder-decoder":
                target = torch.cat([torch.tensor([1]), further[number]])
                whole = bundle.model(torch.tensor([row]), target[None]).logits[0]
            else:
                whole = bundle.model(torch.cat([torch.tensor(row), further[number]])[None]).logits[0]
                whole = whole[len(row) - 1 :]
            expected = whole.log_softmax(-1).numpy()
            for pieces in ([1] * 5, [3, 2]):
                logp, state = model.begin(rows)
                assert np.abs(logp[number] - expected[0]).max() < 1e-4
                at = 0
                for size in pieces:
                    logp, state = model.step(further[:, at : at + size].numpy(), state)
                    at += size
                    assert np.abs(logp[number] - expected[at]).max() < 1e-4


def test_the_folder_holds_what_it_takes(tmp_path: Path) -> None:
    reader = Tokenizer.words("one two three")
    bundle = untaught(source_vocabulary=reader.vocabulary_size, position__name="learned", layers=1)
    bundle.source_tokenizer = reader
    export_folder(bundle, tmp_path / "out", "onnx")
    files = {"config.json", "encoder.onnx", "decoder.onnx", "tokenizer.json", "source_tokenizer.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["opset"] == 18
    assert settings["special"] == {"pad": 0, "start": 1, "stop": 2, "unknown": 3}
    assert settings["stops"] == [2]
    assert settings["max_positions"] == 512
    assert settings["graphs"]["decoder.onnx"] == {
        "inputs": ["tokens", "source_mask", "past_key_0", "past_value_0", "cross_key_0", "cross_value_0"],
        "outputs": ["logits", "new_key_0", "new_value_0"],
    }
    assert Tokenizer.load(tmp_path / "out" / "source_tokenizer.json").encode("two") == [5]


def test_a_bundle_in_half_precision_is_written_in_full_and_stays_as_it_was(tmp_path: Path) -> None:
    bundle = untaught(layers=1)
    bundle.model.to(torch.bfloat16).train()
    logp, _ = exported(bundle, tmp_path).begin([[5, 6, 2]])
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {torch.bfloat16}
    assert bundle.model.training
    whole = bundle.model.float().eval()(torch.tensor([[5, 6, 2]]), torch.tensor([[1]])).logits[0]
    assert np.abs(logp - whole.log_softmax(-1).detach().numpy()).max() < 1e-4


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    """A large vocabulary: the graph with the output holds one table of it, not two."""
    vocabulary = 5000
    bundle = Bundle(untaught(vocabulary=vocabulary, layers=1).model, metadata={"special": {"start": 1}})
    export_folder(bundle, tmp_path / "out", "onnx")
    table = 4 * 32 * vocabulary
    assert table < (tmp_path / "out" / "decoder.onnx").stat().st_size < 1.5 * table


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Callable[[str], Any] = lambda words: pytest.raises(UserError, match=words)  # noqa: E731
    with refused("family 'recurrent' cannot be exported to ONNX"):
        export_folder(untaught(family="recurrent"), tmp_path / "out", "onnx")
    with refused("leave it out when you export"):
        export_folder(untaught(), tmp_path / "out", "onnx", quantize="int8")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused("needs the package 'onnx'"):
        export_folder(untaught(), tmp_path / "out", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = save(untaught(layers=1), tmp_path / "bundle")
    out = tmp_path / "there"
    assert main(["export", str(bundle), "--to", "onnx", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (f"Wrote {out}\n", "")
    assert set(Exported(out).graphs) == {"encoder.onnx", "decoder.onnx"}
    assert main(["export", str(bundle), "--to", "onnx", "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert tokenizer().encode("a") == Tokenizer.load(out).encode("a")


def test_the_program_in_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = taught()
    export_folder(bundle, tmp_path / "en-de-onnx", "onnx")
    monkeypatch.chdir(tmp_path)
    text = tokenizer().decode(texts()[0])
    exec(program("import onnxruntime").replace("the cat sleeps", text), {})
    assert capsys.readouterr().out.strip() == tokenizer().decode(ours(bundle, texts())[0].ids)
