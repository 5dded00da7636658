"""What must hold for whole models whatever their numbers: order, causality, padding, rows, packing, kernels.

Shapes: B rows, S source tokens, T target tokens, E width.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.models import FAMILIES
from clearhead.nn.attention import masks
from clearhead.nn.look import Look
from clearhead.nn.tokens import pack

from .families import (
    HEAD_ROWS,
    POSITION_ROWS,
    RECURRENT_ROWS,
    SCORE_ROWS,
    SOURCE,
    VOCABULARY,
    has_source,
    ids,
    model_for,
    pairs,
)

KERNELS = ["reference", "tiled", "sdpa"]
T = 6


def close(found: Tensor, wanted: Tensor, bound: float = 1e-10) -> None:
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    assert torch.allclose(found, wanted, rtol=0, atol=bound), (found - wanted).abs().max()


def run(
    model: nn.Module, tokens: Tensor, lengths: Any = None, source: Tensor | None = None, **more: Any
) -> Any:
    """Any family on text; encoder-decoders read `source`, or the tokens themselves."""
    if has_source(model):
        source = tokens if source is None else source
        return model(source, tokens, target_lengths=lengths, **more)
    return model(tokens, lengths=lengths, **more)


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORE_ROWS)
@pytest.mark.parametrize("heads", HEAD_ROWS)
def test_without_positions_an_encoder_does_not_know_the_order(score: str, heads: str) -> None:
    model = model_for("encoder", score=score, scheme="none", heads=heads, head__pooling="mean")
    tokens = ids(2, T)
    plain = model(tokens)
    for seed in range(3):
        order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
        moved = model(tokens[:, order])
        close(moved.hidden, plain.hidden[:, order])
        close(moved.pooled, plain.pooled)


@pytest.mark.parametrize("scheme", [name for name in POSITION_ROWS if name != "none"])
def test_with_positions_it_does(scheme: str) -> None:
    model = model_for("encoder", scheme=scheme)
    tokens, order = torch.arange(1, T + 1).unsqueeze(0), torch.tensor([5, 0, 3, 1, 4, 2])
    assert not torch.allclose(model(tokens[:, order]).hidden, model(tokens).hidden[:, order], atol=1e-4)


def test_an_encoder_decoder_without_positions_reads_its_source_as_a_set() -> None:
    model = model_for("encoder-decoder", scheme="none")
    source, target = ids(2, SOURCE), ids(2, T, seed=1)
    close(model(source.flip(1), target).logits, model(source, target).logits)


# --- causality ------------------------------------------------------------------------------------

CAUSAL = [
    *(("decoder", scheme, kernel) for scheme, kernel in itertools.product(POSITION_ROWS, KERNELS)),
    *(("encoder-decoder", scheme, "sdpa") for scheme in POSITION_ROWS),
    ("encoder-decoder", "sinusoidal", "tiled"),
    ("encoder-decoder", "t5", "reference"),
]


@pytest.mark.parametrize("family, scheme, kernel", CAUSAL)
def test_nothing_flows_back_in_time(family: str, scheme: str, kernel: str) -> None:
    """d output[before t] / d input[t] is 0 exactly; and d output[t] / d input[t] is not."""
    model = model_for(family, scheme=scheme, attention__kernel=kernel)
    tokens = ids(2, T)
    for lengths in (None, [T, 3]):
        look = Look("decoder.embedding")
        out = run(model, tokens, lengths, ids(2, SOURCE, seed=1), look=look)
        for t in range(1, T):
            before = (out.logits[:, :t] * torch.linspace(-1, 1, VOCABULARY).double()).sum()
            (gradient,) = torch.autograd.grad(before, look["decoder.embedding"], retain_graph=True)
            assert (gradient[:, t:] == 0).all(), t
            assert (gradient[0, :t] != 0).any(-1).all(), t


@pytest.mark.parametrize("family", ["recurrent", "convolutional"])
def test_the_baselines_are_causal_too(family: str) -> None:
    model = model_for(family)
    source, target = ids(2, SOURCE), ids(2, T)
    plain = model(source, target).logits
    for t in range(1, T):
        other = target.clone()
        other[:, t:] = (other[:, t:] + 3) % VOCABULARY
        changed = model(source, other).logits
        assert torch.equal(changed[:, :t], plain[:, :t])
        assert not torch.allclose(changed[:, t:], plain[:, t:])


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "convolutional"])
def test_every_target_token_sees_the_whole_source(family: str) -> None:
    model = model_for(family)
    source, target = ids(1, SOURCE), ids(1, T)
    plain = model(source, target).logits
    for s in range(SOURCE):
        other = source.clone()
        other[0, s] = (other[0, s] + 5) % VOCABULARY
        assert ((model(other, target).logits - plain).abs().amax(-1) > 1e-9).all()


# --- padding and rows -----------------------------------------------------------------------------

LENGTHS = [4, 1, 6]


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder", "recurrent", "convolutional"])
@pytest.mark.parametrize("scheme", POSITION_ROWS)
def test_padding_never_changes_a_real_token(family: str, scheme: str) -> None:
    """However much padding is added and whatever stands in it; source and target alike."""
    if family in ("recurrent", "convolutional") and scheme not in ("none", "sinusoidal"):
        return  # know no others
    model = model_for(family, scheme=scheme, head__pooling="mean")
    tokens = ids(3, 6)
    more = {"source_lengths": LENGTHS} if has_source(model) else {}
    plain = run(model, tokens, LENGTHS, tokens, **more)
    for extra, seed in ((0, 5), (1, 6), (4, 7)):
        wide = torch.cat([tokens, torch.zeros(3, extra, dtype=torch.long)], dim=1)
        noise = ids(3, 6 + extra, seed=seed)
        real = torch.arange(6 + extra) < torch.tensor(LENGTHS).unsqueeze(1)
        wide = torch.where(real, wide, noise)
        found = run(model, wide, LENGTHS, wide, **more)
        for row, length in enumerate(LENGTHS):
            close(found.hidden[row, :length], plain.hidden[row, :length])
        if family == "encoder":
            close(found.pooled, plain.pooled)


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder", "recurrent", "convolutional"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_do_not_know_of_each_other(family: str, kernel: str) -> None:
    model = model_for(family, attention__kernel=kernel)
    tokens = ids(3, 6)
    more = {"source_lengths": LENGTHS} if has_source(model) else {}
    plain = run(model, tokens, LENGTHS, tokens, **more).hidden
    other = torch.where(torch.tensor([[False], [True], [True]]), ids(3, 6, seed=9), tokens)
    assert torch.equal(run(model, other, LENGTHS, other, **more).hidden[0], plain[0])
    for row in range(3):
        length = LENGTHS[row]
        own = tokens[row : row + 1, :length]
        close(run(model, own, None, own).hidden[0], plain[row, :length])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder", "recurrent", "convolutional"])
@pytest.mark.parametrize("scheme", ["sinusoidal", "rotary", "t5", "shaw"])
def test_a_row_of_length_zero(family: str, kernel: str, scheme: str) -> None:
    """An empty row disturbs nobody: all numbers and gradients stay finite, other rows stay as they were."""
    if family in ("recurrent", "convolutional") and (scheme, kernel) != ("sinusoidal", "sdpa"):
        return
    head = (
        {}
        if family in ("recurrent", "convolutional")
        else {"head__pooling": "mean", "head__kind": "classify"}
    )
    model = model_for(family, scheme=scheme, attention__kernel=kernel, **head)
    tokens, lengths = ids(3, 5), [5, 0, 3]
    more = {"source_lengths": lengths} if has_source(model) else {}
    out = run(model, tokens, lengths, tokens, **more)
    tensors = [tensor for tensor in (out.logits, out.hidden, out.pooled, out.memory) if tensor is not None]
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
    (out.logits**2).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    rows = [0, 2]
    more = {"source_lengths": [5, 3]} if has_source(model) else {}
    without = run(model, tokens[rows], [5, 3], tokens[rows], **more)
    for place, row in enumerate(rows):
        close(out.hidden[row, : lengths[row]], without.hidden[place, : lengths[row]])


# --- packed = padded ------------------------------------------------------------------------------


def packed_and_padded(model: nn.Module, lengths: list[int], source_lengths: list[int]) -> None:
    tokens = ids(len(lengths), max(lengths))
    if has_source(model):
        source = ids(len(lengths), max(source_lengths), seed=1)
        wide = model(source, tokens, source_lengths=source_lengths, target_lengths=lengths)
        flat = (pack(source, source_lengths), pack(tokens, lengths))
        tight = model(*flat, source_lengths=source_lengths, target_lengths=lengths)
        close(tight.memory, pack(wide.memory, source_lengths))
    else:
        wide, tight = model(tokens, lengths=lengths), model(pack(tokens, lengths), lengths=lengths)
    close(tight.hidden, pack(wide.hidden, lengths))
    if wide.pooled is not None:
        close(tight.pooled, wide.pooled)
    gradients = []
    for out, inside in ((wide, lambda x: pack(x, lengths)), (tight, lambda x: x)):
        model.zero_grad()
        total = (inside(out.hidden) ** 2).sum()
        if out.pooled is not None:
            total = total + (out.pooled**3).sum()
        total.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    for a, b in zip(*gradients, strict=True):
        close(a, b, 1e-9)


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("score, scheme", list(pairs()))
def test_packed_equals_padded(family: str, score: str, scheme: str) -> None:
    model = model_for(family, score=score, scheme=scheme, heads="grouped")
    packed_and_padded(model, [3, 1, 5], [2, 4, 1])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_packed_equals_padded_with_every_kernel(family: str, kernel: str) -> None:
    packed_and_padded(model_for(family, scheme="t5", attention__kernel=kernel), [3, 1, 5], [2, 4, 1])


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize("kind", ["none", "classify", "tag", "mlm"])
def test_packed_equals_padded_pooled(pooling: str, kind: str) -> None:
    model = model_for("encoder", head__pooling=pooling, head__kind=kind, head__pooler=True)
    packed_and_padded(model, [3, 1, 5], [])
    lengths = [3, 1, 5]
    tokens = ids(3, 5)
    wide, tight = model(tokens, lengths=lengths).logits, model(pack(tokens, lengths), lengths=lengths).logits
    if kind == "classify":
        close(tight, wide)
    elif kind != "none":
        close(tight, pack(wide, lengths))


@pytest.mark.parametrize("kind", RECURRENT_ROWS)
def test_packed_equals_padded_recurrent(kind: str) -> None:
    packed_and_padded(model_for("recurrent", recurrent=kind), [3, 1, 5], [2, 4, 1])


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder", "recurrent", "convolutional"])
def test_packed_equals_padded_with_an_empty_sequence(family: str) -> None:
    scheme = "sinusoidal" if family == "convolutional" else "alibi"
    model = model_for(family, scheme=scheme, head__pooling="mean")
    packed_and_padded(model, [3, 0, 5], [2, 0, 1])


# --- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder", "vision"])
@pytest.mark.parametrize("score, scheme", list(pairs()))
def test_kernels_agree_in_whole_models(family: str, score: str, scheme: str) -> None:
    """Several layers share what depends on mask and positions alone: sharing must not change a number."""
    results = []
    for kernel in KERNELS:
        if kernel == "sdpa" and score == "additive":
            continue
        model = model_for(family, score=score, scheme=scheme, layers=3, attention__kernel=kernel)
        if family == "vision":
            images = torch.linspace(-1, 1, 2 * 3 * 36).double().view(2, 3, 6, 6).sin()
            hidden = model(images).hidden
        else:
            more = {"source_lengths": [6, 2]} if has_source(model) else {}
            hidden = run(model, ids(2, 6), [6, 4], ids(2, 6, seed=1), **more).hidden[1:, :4]
        (hidden**2).sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((hidden.detach(), *gradients))
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            close(a, b, 1e-8)


@pytest.mark.parametrize("scheme", ["t5", "alibi", "rotary"])
def test_two_passes_share_nothing(scheme: str) -> None:
    """The same model on other lengths, other masks and after a change of its weights."""
    model = model_for("decoder", scheme=scheme, attention__kernel="sdpa")
    plain = model_for("decoder", scheme=scheme, attention__kernel="reference")
    for count, lengths, mask in [(6, [6, 3], None), (4, [2, 4], masks.Window(1)), (6, [1, 6], None)]:
        for twin in (model, plain):
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter.mul_(0.9)
        tokens = ids(2, count)
        found = model(tokens, lengths=lengths, mask=mask).hidden
        close(pack(found, lengths), pack(plain(tokens, lengths=lengths, mask=mask).hidden, lengths))


def test_every_family_is_looked_at() -> None:
    assert set(FAMILIES) == {"encoder-decoder", "encoder", "decoder", "vision", "recurrent", "convolutional"}
