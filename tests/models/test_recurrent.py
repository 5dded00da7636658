"""Recurrent models without attention are PyTorch's own recurrences, one handing the other its last state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from clearhead.base.errors import UserError
from clearhead.models import ModelConfig, build

MODULES: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("cell", MODULES)
def test_rows_of_any_length_are_read_as_packed_sequences_are(cell: str, both_ways: bool) -> None:
    """PyTorch's packed sequences, whose lengths the host must know, are the oracle."""
    recurrent = {"cell": cell, "attention": "additive", "bidirectional": both_ways}
    config = {"family": "recurrent", "vocabulary": 11, "width": 6, "layers": 2, "dropout": 0.0}
    torch.manual_seed(0)
    model: Any = build(ModelConfig.from_dict(config | {"recurrent": recurrent})).double()
    source, lengths = torch.randint(1, 11, (4, 5)), torch.tensor([5, 1, 3, 4])
    packed = pack_padded_sequence(
        model.source_embedding(source), lengths, batch_first=True, enforce_sorted=False
    )
    wanted, _ = pad_packed_sequence(model.encoder(packed)[0], batch_first=True)
    torch.testing.assert_close(model.begin(source, lengths).memory, wanted)
    torch.testing.assert_close(model.begin(source).memory, model.encoder(model.source_embedding(source))[0])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("cell", MODULES)
def test_without_attention_it_is_torch_s_own(cell: str, layers: int) -> None:
    """The same weights in `nn.RNN`, `nn.GRU` and `nn.LSTM`: encoder one way, decoder, and what joins them."""
    config = {
        "family": "recurrent",
        "vocabulary": 11,
        "width": 6,
        "layers": layers,
        "dropout": 0.0,
        "recurrent": {"cell": cell, "attention": "none", "bidirectional": False},
    }
    torch.manual_seed(0)
    model: Any = build(ModelConfig.from_dict(config)).double()
    encoder, decoder = (MODULES[cell](6, 6, layers, batch_first=True).double() for _ in range(2))
    encoder.load_state_dict(model.encoder.state_dict())
    decoder.load_state_dict(
        {f"{name}_l{i}": weight for i in range(layers) for name, weight in model.cells[i].named_parameters()}
    )
    source, target = torch.randint(1, 11, (3, 5)), torch.randint(1, 11, (3, 4))
    lengths = torch.tensor([5, 2, 3])
    last = torch.stack(  # each source alone, without any padding
        [
            (ended[0] if isinstance(ended, tuple) else ended)[-1, 0]
            for row, length in zip(source, lengths, strict=True)
            for ended in [encoder(model.source_embedding(row[None, :length]))[1]]
        ]
    )
    begins = torch.tanh(model.first(last)).unflatten(-1, (layers, -1, 6)).permute(2, 1, 0, 3).contiguous()
    words = model.target_embedding(target)
    hidden, _ = decoder(words, (begins[0], begins[1]) if cell == "lstm" else begins[0])
    wanted = model.output(torch.tanh(model.combine(torch.cat([hidden, words], -1))))
    torch.testing.assert_close(model(source, target, source_lengths=lengths).logits, wanted)


def test_with_dot_attention_both_ways_is_still_refused() -> None:
    with pytest.raises(UserError, match="twice as wide"):
        build(ModelConfig.from_dict({"family": "recurrent", "recurrent": {"attention": "dot"}}))
