"""How fast our models are compared with their peers: the same shapes, one process, visited in turn.

    python benchmarks/models.py [--device cuda] [--rounds 7] [--compile] [--batch 64]

Each case is a forward and backward pass of one architecture: ours, PyTorch's own `nn.Transformer`
modules, and Hugging Face's model of that kind with its fused attention. All have the same widths and
depths, random weights, no dropout. Rounds visit every contender once, in a new order; the table gives
medians and the ratio to ours (above 1: ours is faster). Compare only within one run.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead
from clearhead.models.config import ModelConfig
from clearhead.nn.tokens import pack

try:
    import transformers
except ImportError:  # the comparison then leaves out Hugging Face
    transformers = None

Work = Callable[[], Tensor]


@dataclass(frozen=True)
class Size:
    """Batch, length and model shape; small enough for a laptop, large enough to fill a GPU."""

    batch: int
    length: int
    width: int
    layers: int
    vocabulary: int

    @property
    def heads(self) -> int:
        return self.width // 64


CPU = Size(batch=8, length=64, width=256, layers=3, vocabulary=8000)
GPU = Size(batch=256, length=128, width=512, layers=6, vocabulary=32000)


def config(family: str, size: Size) -> ModelConfig:
    pre = {"place": "pre" if family == "decoder" else "post"}
    position = {"name": "learned" if family == "encoder" else "sinusoidal"}
    if family == "decoder":
        position = {"name": "learned"}
    return ModelConfig.from_dict(
        {
            "family": family,
            "vocabulary": size.vocabulary,
            "width": size.width,
            "layers": size.layers,
            "dropout": 0.0,
            "attention": {"heads": size.heads},
            "feedforward": {"activation": "gelu" if family != "encoder-decoder" else "relu"},
            "position": position,
            "norm": pre,
            "head": {"kind": "mlm", "transform": False} if family == "encoder" else {},
        }
    )


def embedding(size: Size) -> nn.Embedding:
    """With weights of the size ours have: PyTorch's own are so large that tiny gradients slow a CPU down."""
    table = nn.Embedding(size.vocabulary, size.width)
    nn.init.normal_(table.weight, std=size.width**-0.5)
    return table


class TorchTranslator(nn.Module):
    """PyTorch's own encoder-decoder with the embedding and output it leaves to its user."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = embedding(size)
        self.body = nn.Transformer(
            size.width, size.heads, size.layers, size.layers, 4 * size.width, dropout=0.0, batch_first=True
        )

    def forward(self, source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        x = self.body(
            self.embedding(source),
            self.embedding(target),
            tgt_mask=mask.to(self.embedding.weight.dtype),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


class TorchStack(nn.Module):
    """PyTorch's own stack of encoder layers, for the encoder-only and the decoder-only case."""

    def __init__(self, size: Size, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.embedding = embedding(size)
        layer = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, 0.0, "gelu", batch_first=True, norm_first=causal
        )
        self.body = nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor, hidden: Tensor | None) -> Tensor:
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
            mask = mask.to(self.embedding.weight.dtype)
        x = self.body(self.embedding(ids), mask=mask, src_key_padding_mask=hidden, is_causal=self.causal)
        return F.linear(x, self.embedding.weight)


def hugging_face(family: str, size: Size) -> nn.Module | None:
    """The peer's model of the same shape, or None where transformers is not installed."""
    if transformers is None:
        return None
    heads, inner = size.heads, 4 * size.width
    if family == "encoder-decoder":
        shape = transformers.MarianConfig(
            vocab_size=size.vocabulary, d_model=size.width, encoder_layers=size.layers,
            decoder_layers=size.layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
            encoder_ffn_dim=inner, decoder_ffn_dim=inner, dropout=0.0, activation_function="relu",
            pad_token_id=0, decoder_start_token_id=0, use_cache=False,
        )  # fmt: skip
        return transformers.MarianMTModel(shape)
    if family == "encoder":
        shape = transformers.BertConfig(
            vocab_size=size.vocabulary, hidden_size=size.width, num_hidden_layers=size.layers,
            num_attention_heads=heads, intermediate_size=inner, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        return transformers.BertForMaskedLM(shape)
    shape = transformers.GPT2Config(
        vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(shape)


def contenders(family: str, size: Size, device: str, dtype: torch.dtype) -> dict[str, tuple[nn.Module, Work]]:
    """Name → (model, one forward pass that gives the scores of real tokens)."""
    torch.manual_seed(0)
    shape = (size.batch, size.length)
    ids, target = (torch.randint(1, size.vocabulary, shape, device=device) for _ in range(2))
    lengths = torch.linspace(size.length // 3, size.length, size.batch).long().tolist()
    keep = torch.arange(size.length, device=device) < torch.tensor(lengths, device=device)[:, None]
    sizes = torch.tensor(lengths, device=device)
    ours = clearhead.build(config(family, size)).to(device, dtype)
    found: dict[str, tuple[nn.Module, Work]] = {}
    if family == "encoder-decoder":
        flat, flat_target = pack(ids, lengths), pack(target, lengths)
        found["clearhead"] = ours, lambda: ours(ids, target, source_lengths=sizes).logits
        found["clearhead, packed"] = (
            ours,
            lambda: ours(flat, flat_target, source_lengths=lengths, target_lengths=lengths).logits,
        )
        torch_model: nn.Module = TorchTranslator(size).to(device, dtype)
        found["torch.nn"] = torch_model, lambda: torch_model(ids, target, ~keep)
    elif family == "encoder":
        flat = pack(ids, lengths)
        found["clearhead"] = ours, lambda: ours(ids, lengths=sizes).logits
        found["clearhead, packed"] = ours, lambda: ours(flat, lengths=lengths).logits
        torch_model = TorchStack(size, causal=False).to(device, dtype)
        found["torch.nn"] = torch_model, lambda: torch_model(ids, ~keep)
    else:
        found["clearhead"] = ours, lambda: ours(ids).logits
        torch_model = TorchStack(size, causal=True).to(device, dtype)
        found["torch.nn"] = torch_model, lambda: torch_model(ids, None)
    peer = hugging_face(family, size)
    if peer is not None:
        peer = peer.to(device, dtype).train()
        extra = {"decoder_input_ids": target} if family == "encoder-decoder" else {}
        mask = {} if family == "decoder" else {"attention_mask": keep.long()}
        found["Hugging Face"] = peer, lambda: peer(input_ids=ids, **mask, **extra).logits
    return found


def measure(
    family: str, size: Size, device: str, dtype: torch.dtype, rounds: int, compiled: bool
) -> dict[str, float]:
    """Median seconds of a forward and backward pass for each contender."""
    found = contenders(family, size, device, dtype)
    if compiled:
        found.pop("clearhead, packed", None)  # PyTorch 2.11 fails to guard a list of lengths
        for model in {id(model): model for model, _ in found.values()}.values():
            model.compile()
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(rounds + 2):
        for name in random.sample(list(found), len(found)):
            model, work = found[name]
            model.zero_grad(set_to_none=True)
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            work().float().logsumexp(-1).mean().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:  # the first two rounds warm up
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="torch.compile every contender")
    parser.add_argument("--batch", type=int, help="rows of the batch; as many as fill the device if left out")
    options = parser.parse_args()
    random.seed(0)
    gpu = options.device == "cuda"
    size, dtype = (GPU, torch.bfloat16) if gpu else (CPU, torch.float32)
    if options.batch:
        size = replace(size, batch=options.batch)
    how = "compiled" if options.compile else "eager"
    print(
        f"forward and backward, {how}, {size}, {dtype}, {machine(options.device)}, torch {torch.__version__}"
    )
    print(f"{'family':16} {'contender':20} {'ms':>9} {'× ours':>8}")
    for family in ("encoder-decoder", "encoder", "decoder"):
        seconds = measure(family, size, options.device, dtype, options.rounds, options.compile)
        for name, took in seconds.items():
            ratio = took / seconds["clearhead"]
            print(f"{family:16} {name:20} {took * 1000:9.2f} {ratio:8.2f}")


if __name__ == "__main__":
    main()
