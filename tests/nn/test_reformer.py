"""Reformer beside exact attention with shared queries and keys, and Hugging Face's with copied weights.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import masks
from clearhead.nn.attention.linear import RunningSum
from clearhead.nn.attention.reformer import ReformerAttention, ReformerConfig, neighbours
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


def attention(**settings: Any) -> ReformerAttention:
    torch.manual_seed(0)
    config = ReformerConfig(**{"width": 12, "heads": 3, "chunk": 4, "buckets": (4,), **settings})
    return ReformerAttention(config, Position()).double().eval()


def texts(length: int = 16, count: int = 2) -> Tensor:
    return torch.randn(count, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def written_out(made: ReformerAttention, x: Tensor, causal: bool) -> Tensor:
    """Exact attention with shared queries and keys, token by token."""
    q = (x @ made.query.weight.T + made.query.bias).unflatten(-1, (3, 4))
    v = (x @ made.value.weight.T + made.value.bias).unflatten(-1, (3, 4))
    k = q / (q.square().sum(-1, keepdim=True) + 4e-6).sqrt()  # of length 1
    out, count = torch.zeros_like(v), x.shape[1]
    for t in range(count):
        seen = [s for s in range(t if causal else count) if s != t] or [t]
        weights = torch.einsum("bhd,bshd->bsh", q[:, t], k[:, seen]).softmax(1)
        out[:, t] = (weights.unsqueeze(-1) * v[:, seen]).sum(1)
    found: Tensor = made.output(out.flatten(2))
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "settings, length",
    [
        ({"chunk": 9, "rounds": 3}, 9),  # one chunk holds the text
        ({"chunk": 9}, 1),
        ({"chunk": 4, "rounds": 1, "before": 2}, 11),  # a chunk and its neighbours do
        ({"chunk": 4, "rounds": 1, "before": 1, "after": 3}, 16),
    ],
)
def test_it_equals_exact_attention_when_a_chunk_sees_all(
    settings: dict[str, Any], length: int, causal: bool
) -> None:
    made, x = attention(**settings), texts(length)
    mask = masks.Causal() if causal else None
    torch.testing.assert_close(made(x, mask=mask), written_out(made, x, causal), atol=1e-12, rtol=1e-10)


def test_many_rounds_come_near_exact_attention() -> None:
    wanted = written_out(attention(), texts(64), False)
    errors = []
    for rounds in (1, 4, 16):
        made = attention(rounds=rounds, chunk=8, buckets=(8,))
        errors.append((made(texts(64)) - wanted).norm().item() / wanted.norm().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * errors[0]  # 0.60, 0.42, 0.32 of the result with this seed


def test_no_chunk_is_looked_at_twice() -> None:
    config = ReformerConfig(width=12, heads=3, chunk=2, before=2, after=1, rounds=1)
    real = torch.arange(8) < torch.tensor([[8], [5], [4], [2], [0]])
    found: list[list[list[int]]] = [[[j] for j in range(4)] for _ in range(5)]
    for index, _, new in neighbours(config, real):
        for row in range(5):
            for j in range(4):
                found[row][j] += [int(index[row, j])] if new[row, j] else []
    assert found[0] == [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]]
    assert found[1][:3] == [[0, 2, 1], [1, 0, 2], [2, 1, 0]]
    assert found[2][:2] == [[0, 1], [1, 0]]
    assert found[3][0] == [0]
    assert found[4][0] == [0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 1},
        {"rounds": 3, "buckets": (8,)},
        {"rounds": 2, "buckets": (4, 2), "before": 1, "after": 1},
        {"rounds": 2},
    ],
    ids=str,
)
def test_it_is_hugging_face_s(settings: dict[str, Any], causal: bool) -> None:
    """Forward and gradients, with the same hash."""
    modeling = pytest.importorskip(
        "transformers.models.reformer.modeling_reformer", reason="needs transformers to compare with"
    )
    padded = settings == {"rounds": 2}
    made = attention(bias=False, **settings)
    own = made.config
    config = modeling.ReformerConfig(
        hidden_size=12,
        num_attention_heads=3,
        attention_head_size=4,
        is_decoder=causal,
        lsh_attn_chunk_length=own.chunk,
        lsh_num_chunks_before=own.before,
        lsh_num_chunks_after=own.after,
        num_hashes=own.rounds,
        num_buckets=own.buckets[0] if len(own.buckets) == 1 else list(own.buckets),
        lsh_attention_probs_dropout_prob=0.0,
        hash_seed=7,
    )
    theirs = modeling.LSHSelfAttention(config).double()
    with torch.no_grad():
        made.query.weight.copy_(theirs.query_key.weight)
        made.value.weight.copy_(theirs.value.weight)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made.rotations = torch.randn(made.rotations.shape, dtype=torch.float64)
    lengths = torch.tensor([16, 14]) if padded else torch.tensor([16, 16])
    real = torch.arange(16) < lengths[:, None]
    mask = masks.Padding(lengths) & masks.Causal() if causal else masks.Padding(lengths)
    results, gradients = [], []
    for part in (made, theirs):
        x, look = texts().requires_grad_(), clearhead.Look("mixed")
        if part is made:
            made(x, mask=mask, look=look)
            out = look["mixed"].transpose(1, 2).flatten(2)
        else:
            with torch.random.fork_rng():
                out = theirs(x, attention_mask=real.long() if padded else None).hidden_states
        results.append(out[real])
        results[-1].square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad[real])
    torch.testing.assert_close(results[0], results[1], atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-10, rtol=1e-8)


# --- decoding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length, same", [(4, True), (11, False)], ids=["one chunk", "several"])
@torch.no_grad()
def test_decoding_is_exact_over_what_came_before(length: int, same: bool) -> None:
    made, x, state = attention(), texts(length), attention().new_state()
    wanted, found = written_out(made, x, True), []
    for begin, end in ((0, 3), *((t, t + 1) for t in range(3, length))):
        tokens = Tokens.padded(end - begin, start=begin)
        found.append(made(x[:, begin:end], mask=masks.Causal(), queries=tokens, state=state))
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-12, rtol=1e-10)
    assert torch.allclose(made(x, mask=masks.Causal()), wanted) is same


@torch.no_grad()
def test_the_state_holds_what_is_planned() -> None:
    attention = {"kind": "reformer", "heads": 2, "key_dim": 6, "value_dim": 5}
    plain = {"family": "decoder", "vocabulary": 20, "width": 8, "layers": 3, "feedforward": {"width": 8}}
    config = ModelConfig.from_dict({**plain, "attention": attention})
    model = build(config).eval()
    state = model.begin()
    model(torch.randint(20, (2, 64)), state=state)
    assert state.bytes == 2 * 64 * clearhead.plan(config, dtype="float32").memory.state_per_token


def test_hashes_come_from_the_seed_and_are_saved() -> None:
    assert torch.equal(attention().rotations, attention().rotations)
    assert "rotations" in attention().state_dict()
    assert "key.weight" not in attention().state_dict()


def test_dropout_is_on_the_weights_in_training() -> None:
    made = attention(dropout=0.5, rounds=1).train()
    torch.manual_seed(0)
    one = made(texts())
    torch.manual_seed(0)
    assert torch.equal(one, made(texts()))
    assert not torch.allclose(one, made.eval()(texts()))


def test_refusals() -> None:
    for name, value in (("kv_heads", 1), ("softcap", 2.0), ("kernel", "sdpa"), ("query_dim", 4)):
        with pytest.raises(UserError, match=f"'reformer' and {name}={value} cannot work together"):
            attention(**{name: value})
    with pytest.raises(UserError, match="'reformer' and score=bilinear cannot work together"):
        attention(score="bilinear")
    for buckets in ((), (3,), (4, 5)):
        with pytest.raises(UserError, match=r"buckets=\[.*\] must be even numbers"):
            attention(buckets=buckets)
    with pytest.raises(UserError, match="only continue a text with a causal mask"):
        attention()(texts(), state=attention().new_state())
    with pytest.raises(UserError, match="'RunningSum' cannot be used here"):
        attention()(texts(), mask=masks.Causal(), state=RunningSum())
