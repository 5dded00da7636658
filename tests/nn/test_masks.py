"""Masks against plain Python definitions, how they combine, and other libraries' conventions.

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention.mask_rules import Several
from clearhead.nn.attention.masks import (
    All,
    Bias,
    Boolean,
    Causal,
    Document,
    Everything,
    Global,
    Local,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
    from_additive,
    from_torch_mha,
)
from clearhead.nn.attention.reformer import ButItself
from clearhead.nn.tokens import Tokens

from .test_picture import read_png

Rule = Callable[[int, int, int, int], bool]  # row, head, query place, key place → may look

ROWS, HEADS, SIZE = 3, 2, 7
GENERATOR = torch.Generator().manual_seed(0)
KEEP = torch.rand(ROWS, SIZE, generator=GENERATOR) < 0.6
TABLE = torch.rand(ROWS, HEADS, SIZE, SIZE, generator=GENERATOR) < 0.6
HIDING = torch.randn(TABLE.shape, generator=GENERATOR).masked_fill(~TABLE, -torch.inf)
LENGTHS = [7, 0, 4]
PREFIXES = [2, 0, 5]
DOCUMENTS = [[0, 0, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 5], [1, 2, 1, 2, 1, 2, 3]]

# One row for each mask: the object, and the same thing said in Python.
DEFINITIONS: dict[str, tuple[Mask, Rule]] = {
    "everything": (Everything(), lambda r, h, i, j: True),
    "causal": (Causal(), lambda r, h, i, j: j <= i),
    "window back": (Window(before=2), lambda r, h, i, j: i - 2 <= j <= i),
    "window both ways": (Window(before=1, after=3), lambda r, h, i, j: i - 1 <= j <= i + 3),
    "window ahead": (Window(before=0, after=1), lambda r, h, i, j: j in (i, i + 1)),
    "local": (Local(3), lambda r, h, i, j: i // 3 == j // 3),
    "strided": (Strided(2, unit=2), lambda r, h, i, j: (i // 2 - j // 2) % 2 == 0),
    "global": (Global(2), lambda r, h, i, j: i < 2 or j < 2),
    "but itself": (ButItself(), lambda r, h, i, j: i != j or i == 0),
    "prefix": (Prefix(3), lambda r, h, i, j: j <= i or j < 3),
    "prefix of each row": (Prefix(PREFIXES), lambda r, h, i, j: j <= i or j < PREFIXES[r]),
    "padding": (Padding(LENGTHS), lambda r, h, i, j: j < LENGTHS[r]),
    "padding, one length": (Padding(torch.tensor(4)), lambda r, h, i, j: j < 4),
    "padding, spelt out": (Padding(keep=KEEP), lambda r, h, i, j: bool(KEEP[r, j])),
    "document": (Document(DOCUMENTS), lambda r, h, i, j: DOCUMENTS[r][i] == DOCUMENTS[r][j]),
    "document, one row": (Document(DOCUMENTS[0]), lambda r, h, i, j: DOCUMENTS[0][i] == DOCUMENTS[0][j]),
    "boolean": (Boolean(TABLE[0, 0]), lambda r, h, i, j: bool(TABLE[0, 0, i, j])),
    "boolean of each row": (Boolean(TABLE[:, 0]), lambda r, h, i, j: bool(TABLE[r, 0, i, j])),
    "boolean of each head": (Boolean(TABLE), lambda r, h, i, j: bool(TABLE[r, h, i, j])),
    "boolean, one for each head": (Boolean(TABLE[:1]), lambda r, h, i, j: bool(TABLE[0, h, i, j])),
    "boolean, one row of keys": (Boolean(TABLE[0, 0, :1]), lambda r, h, i, j: bool(TABLE[0, 0, 0, j])),
    "bias": (Bias(HIDING), lambda r, h, i, j: bool(TABLE[r, h, i, j])),
    "either": (Window(0) | Prefix(PREFIXES) | Boolean(TABLE[0, 0]), lambda r, h, i, j: (
        i == j or j <= i or j < PREFIXES[r] or bool(TABLE[0, 0, i, j]))),
}  # fmt: skip
names = st.sampled_from(sorted(DEFINITIONS))


def by_hand(rule: Rule, queries: range = range(SIZE), keys: range = range(SIZE)) -> Tensor:
    return torch.tensor(
        [[[[rule(r, h, i, j) for j in keys] for i in queries] for h in range(HEADS)] for r in range(ROWS)]
    )


def full(matrix: Tensor) -> Tensor:
    return matrix.expand(ROWS, HEADS, *matrix.shape[2:])


def test_every_mask_is_here() -> None:
    def below(kind: type[Mask]) -> set[type[Mask]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    ours = {kind for kind in below(Mask) if kind.__module__.startswith("clearhead.nn.")}
    assert ours - {Mask, Several, All} == {type(mask) for mask, _ in DEFINITIONS.values()}


# --- definitions --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_matrix_is_the_definition(name: str) -> None:
    mask, rule = DEFINITIONS[name]
    assert torch.equal(full(mask.matrix(SIZE)), by_hand(rule))


@pytest.mark.parametrize("name", DEFINITIONS)
def test_any_block_is_cut_out_of_the_whole(name: str) -> None:
    """What a kernel asks for block by block is the same rule."""
    mask, rule = DEFINITIONS[name]
    whole, heads = by_hand(rule), torch.arange(HEADS)
    for rows, columns in itertools.product([slice(0, 3), slice(2, 7), slice(6, 7)], repeat=2):
        found = mask.allowed(Tokens.padded(SIZE)[rows], Tokens.padded(SIZE)[columns], heads)
        part = whole[:, :, rows, columns]
        assert torch.equal(torch.ones_like(part) if found is None else found.expand_as(part), part)
        late = Tokens.padded(rows.stop - rows.start, start=rows.start)  # as tokens of a later step
        again = mask.allowed(late, Tokens.padded(SIZE)[columns], heads)
        assert again is None or torch.equal(again.expand_as(part), part)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_one_head_of_many(name: str) -> None:
    mask, rule = DEFINITIONS[name]
    found = mask.allowed(Tokens.padded(SIZE), Tokens.padded(SIZE), torch.tensor([1]))
    wanted = by_hand(rule)[:, [1]]
    assert torch.equal(torch.ones_like(wanted) if found is None else found.expand_as(wanted), wanted)


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    assert torch.equal(Causal().matrix(2, 5)[0, 0], by_hand(lambda r, h, i, j: j <= i)[0, 0, 3:5, :5])
    assert torch.equal(Causal().matrix(2, 5, start=0)[0, 0], by_hand(lambda r, h, i, j: j <= i)[0, 0, :2, :5])
    assert torch.equal(
        Window(1).matrix(3, 4)[0, 0].int(), torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])
    )
    assert Causal().matrix(4, 2).shape == (1, 1, 4, 2)
    assert torch.equal(Boolean(TABLE[0, 0, :2]).matrix(2, SIZE)[0, 0], TABLE[0, 0, :2])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), data=st.data())
def test_packed_tokens(lengths: list[int], data: st.DataObject) -> None:
    """A packed token sees its own sequence only; positions, lengths and prefixes go by sequence."""
    each = data.draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    window = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    count = sum(lengths)
    place = [(number, i) for number, length in enumerate(lengths) for i in range(length)]
    documents = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    rules: list[tuple[Mask, Callable[[int, int], bool]]] = [
        (Everything(), lambda a, b: True),
        (Causal(), lambda a, b: place[b][1] <= place[a][1]),
        (Window(*window), lambda a, b: -window[0] <= place[b][1] - place[a][1] <= window[1]),
        (Prefix(each), lambda a, b: place[b][1] <= place[a][1] or place[b][1] < each[place[b][0]]),
        (Padding(each), lambda a, b: place[b][1] < each[place[b][0]]),
        (Padding(keep=torch.tensor([keep])), lambda a, b: keep[b]),
        (Document(documents), lambda a, b: documents[a] == documents[b]),
    ]
    tokens = Tokens.packed(lengths)
    for mask, rule in rules:
        found = mask.allowed(tokens, tokens)
        wanted = [[place[a][0] == place[b][0] and rule(a, b) for b in range(count)] for a in range(count)]
        expected = torch.tensor(wanted, dtype=torch.bool).reshape(count, count)
        assert found is not None
        assert torch.equal(found.expand(1, 1, count, count)[0, 0], expected), repr(mask)
        part = mask.allowed(tokens[1:], tokens[: count // 2])
        assert part is not None
        assert torch.equal(part[0, 0].expand_as(expected[1:, : count // 2]), expected[1:, : count // 2]), (
            repr(mask)
        )


def test_ragged_rows() -> None:
    """Rows whose new tokens begin at different places, as in decoding."""
    queries = Tokens.ragged(torch.tensor([0, 3]), 2, 5)
    found = Causal().allowed(queries, Tokens.padded(5))
    assert found is not None
    wanted = [[[j <= start + i for j in range(5)] for i in range(2)] for start in (0, 3)]
    assert torch.equal(found[:, 0], torch.tensor(wanted))


# --- combining ----------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(names, min_size=1, max_size=4))
def test_and_is_and(chosen: list[str]) -> None:
    combined, wanted = Everything() & Everything(), torch.ones(ROWS, HEADS, SIZE, SIZE, dtype=torch.bool)
    for name in chosen:
        mask, rule = DEFINITIONS[name]
        combined = combined & mask
        wanted = wanted & by_hand(rule)
    assert torch.equal(full(combined.matrix(SIZE, start=0)), wanted)
    reordered = Everything()
    for name in reversed(chosen):
        reordered = DEFINITIONS[name][0] & reordered
    assert torch.equal(full(reordered.matrix(SIZE, start=0)), wanted)


def test_parts_and_names() -> None:
    mask = Causal() & Padding([2, 3]) & Window(1)
    assert [type(part) for part in mask.parts] == [Causal, Padding, Window]
    assert repr(mask) == "Causal() & Padding([2, 3]) & Window(before=1, after=0)"
    assert (Everything() & Everything()).parts == ()
    single = Causal()
    assert single & Everything() is single
    assert Everything() & single is single
    assert not Padding([1]).depends_on_query
    assert Causal().depends_on_query
    assert (Boolean(TABLE) & Causal()).heads == HEADS
    assert Causal().heads == 1
    texts = {repr(mask) for mask, _ in DEFINITIONS.values()}
    assert {"Everything()", "Prefix(3)", "Padding(…)", "Boolean((3, 2, 7, 7))"} <= texts


def test_a_mask_of_your_own() -> None:
    class Even(Mask):
        """Sees every second key."""

        def rule(self, query, key, head):  # type: ignore[no-untyped-def]
            return key.position % 2 == 0

    matrix = (Even() & Causal()).matrix(4)[0, 0]
    assert matrix.int().tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0]]
    with pytest.raises(UserError, match="Silent has no rule"):
        type("Silent", (Mask,), {})().matrix(2)


# --- conventions of others ----------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_there_and_back(data: st.DataObject, rows: int, heads: int, size: tuple[int, int]) -> None:
    queries, keys = size
    count = rows * heads * queries * keys
    bits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    ours = torch.tensor(bits).reshape(rows, heads, queries, keys)
    mask = Boolean(ours)
    assert torch.equal(mask.to_sdpa(queries, keys), ours)  # SDPA's polarity is ours
    assert torch.equal(Boolean(mask.to_sdpa(queries, keys)).matrix(queries, keys), ours)
    additive = mask.to_additive(queries, keys)
    assert torch.equal(additive == 0, ours)
    assert torch.equal(additive == -torch.inf, ~ours)
    assert torch.equal(from_additive(additive).matrix(queries, keys), ours)
    theirs = mask.to_torch_mha(heads, queries, keys)
    assert theirs.dtype == torch.bool
    assert torch.equal(from_torch_mha(theirs, heads=heads).matrix(queries, keys).expand_as(ours), ours)
    assert torch.equal(theirs.reshape(-1, queries, keys).expand(rows * heads, -1, -1), ~ours.flatten(0, 1))
    floating = torch.zeros(theirs.shape).masked_fill(theirs, -torch.inf)
    assert torch.equal(from_torch_mha(floating, heads=heads).matrix(queries, keys).expand_as(ours), ours)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    name=names.filter("bias".__ne__),
    queries=st.integers(1, SIZE),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_named_masks_there_and_back(name: str, queries: int, dtype: torch.dtype) -> None:
    mask = DEFINITIONS[name][0]
    matrix = full(mask.matrix(queries, SIZE))
    assert torch.equal(full(Boolean(mask.to_sdpa(queries, SIZE)).matrix(queries, SIZE)), matrix)
    additive = mask.to_additive(queries, SIZE, dtype)
    assert additive.dtype == dtype
    assert torch.equal(full(from_additive(additive).matrix(queries, SIZE)), matrix)
    back = from_torch_mha(mask.to_torch_mha(HEADS, queries, SIZE), heads=HEADS)
    assert torch.equal(full(back.matrix(queries, SIZE)), matrix)


def test_key_padding_of_torch() -> None:
    hidden = ~KEEP
    causal = Causal().to_torch_mha(HEADS, SIZE)
    floating = torch.zeros(ROWS, SIZE).masked_fill(hidden, -torch.inf)
    for theirs in (hidden, floating):
        mask = from_torch_mha(causal, theirs)
        wanted = by_hand(lambda r, h, i, j: j <= i and bool(KEEP[r, j]))
        assert torch.equal(full(mask.matrix(SIZE)), wanted)
    assert from_torch_mha().parts == ()
    lectures = Padding(LENGTHS).to_additive(1, SIZE)
    assert lectures.shape == (ROWS, 1, 1, SIZE)  # batch, 1, 1, keys


@pytest.mark.parametrize("name", ["causal", "window both ways", "prefix of each row", "boolean of each head"])
def test_sdpa_takes_it(name: str) -> None:
    """Where every query sees something, PyTorch's function and the formula agree on the mask's meaning."""
    mask = DEFINITIONS[name][0] if name != "boolean of each head" else Boolean(TABLE | torch.eye(SIZE).bool())
    q, k, v = (torch.randn(ROWS, HEADS, SIZE, 4, generator=GENERATOR).double() for _ in range(3))
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to_sdpa(SIZE))
    scores = q @ k.transpose(-2, -1) / 2 + mask.to_additive(SIZE, dtype=torch.float64)
    assert torch.allclose(found, scores.softmax(-1) @ v, atol=1e-12)


# --- pictures and refusals ----------------------------------------------------------------------


def test_show(tmp_path: Path) -> None:
    mask = Causal() & Padding([3, 2])
    assert mask.show(3) == "  0 1 2\n0 █ · ·\n1 █ █ ·\n2 █ █ █"
    assert mask.show(3, row=1) == "  0 1 2\n0 █ · ·\n1 █ █ ·\n2 █ █ ·"
    assert Causal().show(1, 3) == "  0 1 2\n0 █ █ █"
    assert Boolean(TABLE).show(SIZE, row=2, head=1).count("█") == int(TABLE[2, 1].sum())

    drawing = Path(mask.show(3, row=1, file=tmp_path / "mask.svg"))
    tree = ElementTree.fromstring(drawing.read_text(encoding="utf-8"))
    cells = [rect.get("fill") for rect in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(cells) == 9
    assert cells.count(cells[0]) == 5  # cell 0 is visible, and five are
    assert "Causal() &amp; Padding" in drawing.read_text(encoding="utf-8")

    dots = read_png(Path(mask.show(3, row=1, file=str(tmp_path / "mask.png"))).read_bytes())
    dark = dots[8::17, 8::17].astype(int).sum(-1) < 384  # the middle of each cell
    assert dark.tolist() == mask.matrix(3)[1, 0].tolist()
    with pytest.raises(UserError, match=r"drawn as \.svg or \.png, not as 'mask.jpg'"):
        mask.show(3, file=tmp_path / "mask.jpg")


def test_refusals() -> None:
    with pytest.raises(UserError, match="either lengths or keep"):
        Padding()
    with pytest.raises(UserError, match="either lengths or keep"):
        Padding([1], keep=KEEP)
    with pytest.raises(UserError, match="before=-1"):
        Window(-1)
    with pytest.raises(UserError, match="from_additive"):
        Boolean(torch.zeros(2, 2))
