"""Decoding with a state: token by token, in chunks, ragged, reordered, cut back; always as in one pass.

Shapes: B rows, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.nn.attention import masks
from clearhead.nn.attention.latent import LatentConfig
from clearhead.nn.attention.reformer import ReformerConfig
from clearhead.nn.attention.state import BLOCK
from clearhead.nn.look import Look

from .families import (
    HEAD_ROWS,
    RECURRENT_ROWS,
    SOURCE,
    VOCABULARY,
    begin,
    has_source,
    ids,
    in_chunks,
    model_for,
    one_pass,
    pairs,
    step,
)

BOUND = {torch.float64: 1e-10, torch.float32: 1e-5}
T = 7
SOURCE_LENGTHS = [5, 2, 4]


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


def close(found: Tensor, wanted: Tensor, bound: float = 1e-10) -> None:
    assert found.shape == wanted.shape
    error = (found - wanted).abs().max().item() if found.numel() else 0.0
    assert error <= bound, f"off by {error:.2g}"


# --- cached = chunked = one pass ------------------------------------------------------------------


def check_steps(model: nn.Module, dtype: torch.dtype) -> None:
    source, target = ids(3, SOURCE), ids(3, T, seed=1)
    wanted = one_pass(model, source, target, SOURCE_LENGTHS)
    for sizes in ([1] * T, [3, 1, 2, 1], [T]):
        close(in_chunks(model, source, target, sizes, SOURCE_LENGTHS), wanted, BOUND[dtype])


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("score, scheme", list(pairs()))
def test_token_by_token_is_one_pass(family: str, score: str, scheme: str) -> None:
    for heads in HEAD_ROWS:
        check_steps(model_for(family, score=score, scheme=scheme, heads=heads), torch.float64)
    check_steps(model_for(family, score=score, scheme=scheme, dtype=torch.float32), torch.float32)


@pytest.mark.parametrize("kind", RECURRENT_ROWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recurrence_token_by_token_is_one_pass(kind: str, dtype: torch.dtype) -> None:
    check_steps(model_for("recurrent", recurrent=kind, dtype=dtype), dtype)


@pytest.mark.parametrize("kernel", ["reference", "tiled", "sdpa"])
def test_every_kernel_decodes(kernel: str) -> None:
    for family in ("encoder-decoder", "decoder"):
        check_steps(model_for(family, scheme="alibi", attention__kernel=kernel), torch.float64)


# Families and dials whose states differ in kind: what hypothesis draws from.
KINDS: dict[str, dict[str, Any]] = {
    "encoder-decoder, sinusoidal": {"family": "encoder-decoder"},
    "encoder-decoder, t5, grouped": {"family": "encoder-decoder", "scheme": "t5", "heads": "grouped"},
    "decoder, rotary": {"family": "decoder", "scheme": "rotary"},
    "decoder, learned, multi-query": {"family": "decoder", "scheme": "learned", "heads": "multi-query"},
    "decoder, music": {"family": "decoder", "scheme": "music"},
    "decoder, transformer_xl": {"family": "decoder", "scheme": "transformer_xl"},
    "decoder, additive": {"family": "decoder", "score": "additive", "scheme": "alibi"},
    "decoder, latent": {
        "family": "decoder",
        "scheme": "rotary",
        "attention": LatentConfig(heads=4, latent_dim=3, query_latent_dim=5),
    },
    "decoder, reformer": {
        "family": "decoder",
        "attention": ReformerConfig(heads=4, chunk=512),
    },  # one chunk: exact
    "recurrent, gru": {"family": "recurrent"},
    "recurrent, lstm": {"family": "recurrent", "recurrent": "lstm, bilinear"},
}
MODELS = {name: model_for(**settings_) for name, settings_ in KINDS.items()}
kinds = st.sampled_from(sorted(KINDS))
quick = settings(max_examples=40, deadline=None, derandomize=True)


@quick
@given(kind=kinds, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_chunks_of_any_size(kind: str, sizes: list[int], seed: int) -> None:
    target = ids(2, min(sum(sizes), 16), seed=seed)
    sizes = [len(piece) for piece in torch.arange(target.shape[1]).split(4)] if sum(sizes) > 16 else sizes
    source = ids(2, SOURCE, seed=seed + 1)
    wanted = one_pass(MODELS[kind], source, target, [SOURCE, 3])
    close(in_chunks(MODELS[kind], source, target, sizes, [SOURCE, 3]), wanted)


# --- rows of different lengths --------------------------------------------------------------------


class Rows:
    """What each row of a state should hold, as plain lists; `check` compares logits with rows run alone."""

    def __init__(self, model: nn.Module, rows: int, seed: int = 0) -> None:
        self.model = model
        self.source = ids(rows, SOURCE, seed=seed)
        self.source_lengths = torch.tensor([SOURCE - row % 3 for row in range(rows)])
        self.state = begin(model, self.source, self.source_lengths)
        self.past: list[list[int]] = [[] for _ in range(rows)]
        self.seed = seed

    def add(self, count: int, lengths: list[int] | None, as_tensor: bool = False) -> None:
        """The next tokens of each row; past a row's length they are anything at all."""
        self.seed += 1
        tokens = ids(len(self.past), count, seed=self.seed)
        given = None if lengths is None else torch.tensor(lengths) if as_tensor else lengths
        found = step(self.model, tokens, self.state, given)
        for row, real in enumerate(lengths or [count] * len(self.past)):
            old = len(self.past[row])
            self.past[row] += tokens[row, :real].tolist()
            if real:
                close(found[row, :real], self.alone(row)[old:])
        assert self.state.lengths(len(self.past)).tolist() == [len(past) for past in self.past]

    def alone(self, row: int) -> Tensor:
        """This row's logits from scratch, in a batch of its own without padding."""
        source = self.source[row : row + 1, : self.source_lengths[row]]
        return one_pass(self.model, source, torch.tensor([self.past[row]]))[0]

    def reorder(self, rows: list[int]) -> None:
        index = torch.tensor(rows)
        self.state.reorder(index)
        self.past = [list(self.past[row]) for row in rows]
        self.source, self.source_lengths = self.source[index], self.source_lengths[index]

    def truncate(self, length: int | list[int]) -> None:
        self.state.truncate(torch.tensor(length) if isinstance(length, list) else length)
        ends = length if isinstance(length, list) else [length] * len(self.past)
        self.past = [past[:end] for past, end in zip(self.past, ends, strict=True)]


@quick
@given(kind=kinds, data=st.data())
def test_ragged_rows(kind: str, data: st.DataObject) -> None:
    """Prompts of different lengths in one batch, then steps in which each row takes as many as it likes."""
    rows = Rows(MODELS[kind], 3)
    for _ in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(1, 3))
        lengths = data.draw(st.none() | st.lists(st.integers(0, count), min_size=3, max_size=3))
        rows.add(count, lengths, as_tensor=data.draw(st.booleans()))


@quick
@given(kind=kinds, data=st.data())
def test_any_walk_of_steps_reorders_and_cuts(kind: str, data: st.DataObject) -> None:
    """Beam search repeats and drops rows, speculation takes tokens back: nothing may be mixed up."""
    rows = Rows(MODELS[kind], 2)
    for _ in range(data.draw(st.integers(2, 6))):
        count = len(rows.past)
        what = data.draw(
            st.sampled_from(["add", "add", "add ragged", "reorder", "truncate", "truncate each"])
        )
        if what == "add" and max(map(len, rows.past)) < 12:
            rows.add(data.draw(st.integers(1, 3)), None)
        elif what == "add ragged" and max(map(len, rows.past)) < 12:
            rows.add(2, data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
        elif what == "reorder":
            rows.reorder(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)))
        elif what == "truncate":
            rows.truncate(data.draw(st.integers(0, 6)))
        elif what == "truncate each":
            rows.truncate(data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count)))
    rows.add(1, None)


@pytest.mark.parametrize("kind", KINDS)
def test_beam_like_reordering(kind: str) -> None:
    rows = Rows(MODELS[kind], 2)
    rows.reorder([0, 0, 1, 1])  # before anything was written
    rows.add(3, [3, 3, 2, 2])
    rows.reorder([1, 1, 3, 2])
    rows.add(1, None)
    rows.reorder([2, 0])
    rows.add(2, None)


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_back(kind: str) -> None:
    rows = Rows(MODELS[kind], 3)
    rows.add(5, [5, 2, 4])
    rows.truncate(3)  # rows of 3, 2 and 3
    rows.add(2, None)
    rows.truncate([4, 0, 1])
    rows.add(2, [1, 2, 0])
    rows.truncate(0)
    rows.add(3, None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "learned" not in kind])  # which has 16 positions
def test_long_enough_for_the_buffers_to_grow(kind: str) -> None:
    model = MODELS[kind]
    target, source = ids(2, BLOCK + 9), ids(2, SOURCE)
    wanted = one_pass(model, source, target)
    close(in_chunks(model, source, target, [BLOCK - 2, 1, 1, 1, 5, 3]), wanted)


@pytest.mark.parametrize("kind", ["decoder, learned, multi-query", "decoder, rotary", "recurrent, gru"])
def test_padding_is_not_counted_as_length(kind: str) -> None:
    """Many padded steps, few real tokens: a state is as long as its longest row."""
    rows = Rows(MODELS[kind], 2)
    for _ in range(6):
        rows.add(4, [1, 2])  # 24 handed over, 12 real; the learned scheme has 16 positions
    if hasattr(rows.state, "slots"):
        assert rows.state.slots == 12
    rows.truncate([3, 5])
    rows.add(4, [4, 4])
    if hasattr(rows.state, "slots"):
        assert rows.state.slots == 9


# --- masks, looking and refusals ------------------------------------------------------------------


@pytest.mark.parametrize("mask", [masks.Window(before=2), masks.Causal() & masks.Window(3), masks.Prefix(3)])
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "shaw"])
def test_other_masks_with_a_state(mask: masks.Mask, scheme: str) -> None:
    model = model_for("decoder", scheme=scheme)
    target = ids(2, T)
    wanted = model(target, mask=mask).logits
    state = model.begin()
    pieces = target.split([4, 1, 2], dim=1)  # the prefix lies in the first piece
    found = [model(piece, state=state, mask=mask).logits for piece in pieces]
    close(torch.cat(found, dim=1), wanted)


@pytest.mark.parametrize("kind", ["encoder-decoder, t5, grouped", "decoder, rotary"])
def test_looking_while_decoding(kind: str) -> None:
    model = MODELS[kind]
    source, target = ids(2, SOURCE), ids(2, T)
    whole = Look("decoder.1.self.weights")
    model(*((source, target) if has_source(model) else (target,)), look=whole)
    state = begin(model, source)
    step(model, target[:, :4], state)
    look = Look({"decoder.1.self.weights": [1], "decoder.0.self.weights": None})
    again = begin(model, source)
    step(model, target[:, :4], again)
    arguments = (None, target[:, 4:6]) if has_source(model) else (target[:, 4:6],)
    plain, seen = model(*arguments, state=state).logits, model(*arguments, state=again, look=look).logits
    assert torch.equal(plain, seen)
    close(look["decoder.1.self.weights"], whole["decoder.1.self.weights"][:, 1:2, 4:6, :6])


def test_a_state_holds_the_source_once() -> None:
    model = MODELS["encoder-decoder, sinusoidal"]
    state = begin(model, ids(2, SOURCE))
    step(model, ids(2, 1), state)
    first = state.cross[0].k
    step(model, ids(2, 1), state)
    assert state.cross[0].k is first
    with pytest.raises(UserError, match="already holds the source"):
        model(ids(2, SOURCE), ids(2, 1), state=state)
    with pytest.raises(UserError, match="needs a source"):
        model(None, ids(2, 1))
    with pytest.raises(UserError, match="two dimensions"):
        model(None, ids(2), state=state)
    with pytest.raises(UserError, match="two dimensions"):
        model.begin(ids(4))


@pytest.mark.parametrize("kind", ["decoder, rotary", "recurrent, gru"])
def test_packed_tokens_cannot_continue(kind: str) -> None:
    model = MODELS[kind]
    state = begin(model, ids(2, SOURCE))
    with pytest.raises(UserError, match="two dimensions"):
        step(model, ids(4), state, [2, 2])


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_that_cannot_be(kind: str) -> None:
    model = MODELS[kind]
    for wrong, sentence in [
        ([1], "2 rows need 2 lengths"),
        ([1, 4], "4 is longer than the rows, which hold 3"),
    ]:
        with pytest.raises(UserError, match=sentence):
            step(model, ids(2, 3), begin(model, ids(2, SOURCE)), wrong)


def test_learned_positions_end_in_a_sentence() -> None:
    model = MODELS["decoder, learned, multi-query"]
    state = model.begin()
    step(model, ids(1, 16), state)
    with pytest.raises(UserError, match="learned positions for 16 tokens and was given 17"):
        step(model, ids(1, 1), state)


def test_gradients_are_no_hindrance() -> None:
    """Forgetting torch.no_grad costs memory, not the answer."""
    model = MODELS["decoder, rotary"]
    with torch.enable_grad():
        found = in_chunks(model, ids(1, SOURCE), ids(1, T), [2, 1, 4])
    close(found, one_pass(model, ids(1, SOURCE), ids(1, T)))
    assert found.shape == (1, T, VOCABULARY)


@pytest.mark.parametrize("kind, other", list(itertools.permutations(["decoder, rotary", "recurrent, gru"])))
def test_another_model_s_state_is_refused(kind: str, other: str) -> None:
    state = begin(MODELS[other], ids(2, SOURCE))
    with pytest.raises(UserError, match="use a state that this model made"):
        step(MODELS[kind], ids(2, 1), state)
    with pytest.raises(UserError, match="use a state that this model made"):
        begin(MODELS[kind], ids(2, SOURCE)).join(state)
    deeper = model_for("decoder", scheme="rotary", layers=3)
    with pytest.raises(UserError, match="comes from a model with 3 layers, and this one has 2"):
        step(MODELS["decoder, rotary"], ids(2, 1), begin(deeper, ids(2, SOURCE)))
