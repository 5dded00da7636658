"""Other libraries' models for `training.py`: PyTorch's, Hugging Face's and x-transformers'.

Each is in its best form: the loss is part of what is compiled, so that the compiler fuses it with the
scores, and attention is marked as causal instead of getting a mask if the library allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.data.batch import IGNORED, Batch

try:
    import transformers
except ImportError:  # the comparison then leaves out Hugging Face
    transformers = None
try:
    import x_transformers
except ImportError:
    x_transformers = None

SMOOTHING, CLIP, RATE = 0.1, 1.0, 1e-4
Work = Callable[[Batch], None]


@dataclass(frozen=True)
class Size:
    """A model's shape and a batch's budget of places."""

    width: int
    layers: int
    vocabulary: int
    tokens: int
    dropout: float = 0.1
    family: str = "encoder-decoder"
    longest: int = 120  # tokens of a sentence, or of a row

    @property
    def heads(self) -> int:
        return max(self.width // 64, 4)


class TorchTranslator(nn.Module):
    """PyTorch's own encoder-decoder with the embedding, positions and output it leaves to its user."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.scale = size.width**0.5
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)
        self.dropout = nn.Dropout(size.dropout)
        self.body = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, 4 * size.width, size.dropout, batch_first=True
        )
        for module in self.body.modules():  # dropout where the paper has it, as in the other contenders
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        angles = torch.arange(size.longest + 2)[:, None] / 10_000 ** (
            torch.arange(0, size.width, 2) / size.width
        )
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", table, persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        positions: Tensor = self.positions
        return self.dropout(self.embedding(ids) * self.scale + positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor, seen: Tensor) -> Tensor:
        x = self.body(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device),
            src_key_padding_mask=~seen,
            memory_key_padding_mask=~seen,
            tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


class Marian(nn.Module):
    """Hugging Face's translator."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        inner = 4 * size.width
        shape = transformers.MarianConfig(
            vocab_size=size.vocabulary, d_model=size.width, encoder_layers=size.layers,
            decoder_layers=size.layers, encoder_attention_heads=size.heads,
            decoder_attention_heads=size.heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
            dropout=size.dropout, activation_function="relu", scale_embedding=True, pad_token_id=0,
            decoder_start_token_id=1, use_cache=False, max_position_embeddings=size.longest + 2,
        )  # fmt: skip
        self.body = transformers.MarianMTModel(shape)

    def forward(self, source: Tensor, target: Tensor, seen: Tensor) -> Tensor:
        found: Tensor = self.body(
            input_ids=source, attention_mask=seen.long(), decoder_input_ids=target
        ).logits
        return found


class XTransformer(nn.Module):
    """x-transformers' encoder and decoder, with the original's norms behind each sub-layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape: dict[str, Any] = {}
        for side in ("enc", "dec"):
            shape |= {
                f"{side}_num_tokens": size.vocabulary, f"{side}_depth": size.layers,
                f"{side}_heads": size.heads, f"{side}_max_seq_len": size.longest + 2,
                f"{side}_attn_dim_head": size.width // size.heads, f"{side}_attn_flash": True,
                f"{side}_layer_dropout": 0.0, f"{side}_pre_norm": False,
            }  # fmt: skip
        self.body: Any = x_transformers.XTransformer(dim=size.width, tie_token_emb=True, **shape)

    def forward(self, source: Tensor, target: Tensor, seen: Tensor) -> Tensor:
        memory = self.body.encoder(source, mask=seen, return_embeddings=True)
        found: Tensor = self.body.decoder.net(target, context=memory, context_mask=seen)
        return found


class Gpt(nn.Module):
    """Hugging Face's decoder.

    Compiled, it makes a mask for attention although rows are full, and so misses the fast causal kernels
    (torch below 2.14). Its attention function under a name of our own gets no mask.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        transformers.AttentionInterface.register("causal", sdpa_attention_forward)
        shape = transformers.GPT2Config(
            vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.layers, n_head=size.heads,
            n_positions=size.longest, resid_pdrop=size.dropout, embd_pdrop=size.dropout, attn_pdrop=0.0,
            use_cache=False, bos_token_id=1, eos_token_id=2, attn_implementation="causal",
        )  # fmt: skip
        self.body = transformers.GPT2LMHeadModel(shape)

    def forward(self, source: None, target: Tensor, seen: None) -> Tensor:
        found: Tensor = self.body(input_ids=target).logits
        return found


class WithLoss(nn.Module):
    """A model and the smoothed loss of its scores (B, T, V)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor | None, inputs: Tensor, labels: Tensor, seen: Tensor | None) -> Tensor:
        scores = self.model(source, inputs, seen)
        return F.cross_entropy(
            scores.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=SMOOTHING,
        )


def peers(size: Size) -> dict[str, Callable[[Size], nn.Module]]:
    """Name → how to make the model."""
    if size.family == "decoder":
        return {} if transformers is None else {"Hugging Face (GPT-2)": Gpt}
    found: dict[str, Callable[[Size], nn.Module]] = {"torch.nn": TorchTranslator}
    if transformers is not None:
        found["Hugging Face (Marian)"] = Marian
    if x_transformers is not None:
        found["x-transformers"] = XTransformer
    return found


def real(batch: Batch) -> Tensor | None:
    """(B, S): True on source tokens, False on padding; a row that only fills a shape keeps one place.

    A row that may see nothing would give the peers values that are no numbers.
    """
    if batch.source is None:
        return None
    lengths = batch.source_lengths
    assert isinstance(lengths, Tensor)
    return torch.arange(batch.source.shape[1], device=lengths.device) < lengths.clamp(min=1)[:, None]


def plain_loop(model: nn.Module, device: torch.device, dtype: torch.dtype, compiled: str | None) -> Work:
    """The step that a careful user writes around somebody else's model.

    `compiled`: not at all (None), anew for each shape ("static"), or once for all ("dynamic").
    """
    whole = WithLoss(model).to(device).train()
    called: Any = whole if compiled is None else torch.compile(whole, dynamic=compiled == "dynamic")
    optimiser = torch.optim.AdamW(whole.parameters(), RATE, (0.9, 0.98), 1e-9, weight_decay=0.0, fused=True)

    def step(batch: Batch) -> None:
        batch = batch.to(device, non_blocking=True)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = called(batch.source, batch.inputs, batch.labels, real(batch))
        loss.backward()
        nn.utils.clip_grad_norm_(whole.parameters(), CLIP)
        for group in optimiser.param_groups:
            group["lr"] = RATE
        optimiser.step()

    return step
