"""How fast a translator trains: our step beside plain loops around PyTorch's and Hugging Face's models.

    python benchmarks/training.py [--size small|base] [--device cuda] [--tokens 8192] [--steps 20]
                                  [--rounds 3] [--width 128] [--layers 4] [--vocabulary 10000] [--dropout 0.1]

A whole step each time: batch to the device, forward, label-smoothed loss, backward, gradients clipped, fused
Adam at a new rate. The peers' loops are what a careful user writes by hand: bf16 by autocast on a GPU, no
waiting for the device. All have the same widths, depths, norms and dropouts, tied embeddings, random weights,
and see the very same batches (padded, of like lengths, from our loader; on a GPU in the few fixed shapes that
our trainer uses there). Rounds visit every contender once, in a new order, over all batches; the table gives
medians, the fastest round, target tokens a second, and the ratio to ours (above 1: ours is faster). Compare
inside one run only. Where others use the machine as well, `--work` with OMP_NUM_THREADS=1 counts processor
time instead of the clock's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.columns import Columns
from clearhead.data.encoding import Specials
from clearhead.data.encodings import Pairs
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.models.config import ModelConfig
from clearhead.training.graphs import GraphStepper
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper

try:
    import transformers
except ImportError:  # the comparison then does without Hugging Face
    transformers = None

SMOOTHING, CLIP, RATE = 0.1, 1.0, 1e-4
LONGEST = 120  # tokens of a sentence
Clock = Callable[[], float]
Work = Callable[[Batch], None]
Scores = Callable[[Batch], Tensor]  # a batch on its device → logits (B, T, V)


@dataclass(frozen=True)
class Size:
    """A model's shape and a batch's budget of places."""

    width: int
    layers: int
    vocabulary: int
    tokens: int
    dropout: float = 0.1

    @property
    def heads(self) -> int:
        return max(self.width // 64, 4)


SIZES = {
    "small": Size(width=128, layers=4, vocabulary=10_000, tokens=8192),
    "base": Size(width=512, layers=6, vocabulary=32_000, tokens=8192),
}


def batches(size: Size, count: int, device: torch.device) -> list[Batch]:
    """Batches of made-up sentences, about 14 tokens a side, as a run of ours would see them."""
    gpu = device.type == "cuda"
    chance = np.random.default_rng(1)
    rows = max(3 * count * size.tokens // 14, 20_000)  # enough for batches of like lengths
    lengths = np.exp(chance.normal(np.log(13), 0.45, rows))
    columns = {}
    for name in ("source", "target"):
        sizes = np.clip(lengths * np.exp(chance.normal(0, 0.15, rows)), 2, LONGEST).astype(np.int64)
        columns[name] = Ragged(chance.integers(4, size.vocabulary, int(sizes.sum())), sizes)
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(f"{folder}/store", "translate", dict.fromkeys(columns, size.vocabulary)) as writer:
            writer.add(**columns)
        config = BatchConfig(tokens=size.tokens, shapes="fixed" if gpu else "free", workers=0)
        loader = Loader(
            [Store(Path(folder) / "store")],
            Pairs(Columns(task="translate", sources=("source",))),
            config,
            Specials(0, 1, 2),
            1,
            pin=gpu,
        )
        return [numbered.batch for numbered in islice(loader.stream(), count)]


def our_config(size: Size) -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "vocabulary": size.vocabulary,
            "width": size.width,
            "layers": size.layers,
            "dropout": size.dropout,
            "attention": {"heads": size.heads},
            "feedforward": {"width": 4 * size.width},
            "embedding": {"dropout": size.dropout},
        }
    )


def ours(size: Size, device: torch.device, dtype: torch.dtype, kind: type[Stepper]) -> Work:
    """A step as our trainer takes it."""
    model = clearhead.build(our_config(size)).to(device).train()
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    stepper = kind(model, LabelObjective(SMOOTHING), optimiser, Precision(device, dtype), CLIP)
    return lambda batch: stepper.step([batch], RATE)


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
        angles = torch.arange(LONGEST + 2)[:, None] / 10_000 ** (torch.arange(0, size.width, 2) / size.width)
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", table, persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        positions: Tensor = self.positions
        return self.dropout(self.embedding(ids) * self.scale + positions[: ids.shape[1]])

    def forward(self, source: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        x = self.body(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )
        return F.linear(x, self.embedding.weight)


def real(batch: Batch) -> Tensor:
    """(B, S): True on source tokens, False on padding; a row that only fills a shape keeps one place.

    A row that may see nothing would give the peers values that are no numbers.
    """
    assert batch.source is not None
    lengths = batch.source_lengths
    assert isinstance(lengths, Tensor)
    return torch.arange(batch.source.shape[1], device=lengths.device) < lengths.clamp(min=1)[:, None]


def torch_scores(model: nn.Module) -> Scores:
    def scores(batch: Batch) -> Tensor:
        found: Tensor = model(batch.source, batch.inputs, ~real(batch))
        return found

    return scores


def marian(size: Size) -> nn.Module:
    """Hugging Face's translator of the same shape."""
    inner = 4 * size.width
    shape = transformers.MarianConfig(
        vocab_size=size.vocabulary, d_model=size.width, encoder_layers=size.layers,
        decoder_layers=size.layers, encoder_attention_heads=size.heads, decoder_attention_heads=size.heads,
        encoder_ffn_dim=inner, decoder_ffn_dim=inner, dropout=size.dropout, activation_function="relu",
        scale_embedding=True, pad_token_id=0, decoder_start_token_id=1, use_cache=False,
        max_position_embeddings=LONGEST + 2,
    )  # fmt: skip
    model: nn.Module = transformers.MarianMTModel(shape)
    return model


def marian_scores(model: nn.Module) -> Scores:
    def scores(batch: Batch) -> Tensor:
        found: Tensor = model(
            input_ids=batch.source, attention_mask=real(batch).long(), decoder_input_ids=batch.inputs
        ).logits
        return found

    return scores


def plain_loop(model: nn.Module, scores: Scores, device: torch.device, dtype: torch.dtype) -> Work:
    """The step that a careful user writes around somebody else's model."""
    model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.98), 1e-9, weight_decay=0.0, fused=True)

    def step(batch: Batch) -> None:
        batch = batch.to(device, non_blocking=True)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = scores(batch)
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.labels.flatten(),
            ignore_index=IGNORED,
            label_smoothing=SMOOTHING,
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimiser.param_groups:
            group["lr"] = RATE
        optimiser.step()

    return step


def contenders(size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Work]:
    """Name → one training step; the first is the one that our trainer uses."""
    found: dict[str, Work] = {}
    if device.type == "cuda":
        found["clearhead"] = ours(size, device, dtype, GraphStepper)
        found["clearhead, not recorded"] = ours(size, device, dtype, Stepper)
    else:
        found["clearhead"] = ours(size, device, dtype, Stepper)
    model: nn.Module = TorchTranslator(size)
    found["torch.nn"] = plain_loop(model, torch_scores(model), device, dtype)
    if transformers is not None:
        model = marian(size)
        found["Hugging Face (Marian)"] = plain_loop(model, marian_scores(model), device, dtype)
    return found


def measure(
    works: dict[str, Work], given: Sequence[Batch], rounds: int, clock: Clock, gpu: bool
) -> dict[str, list[float]]:
    """Seconds over all batches, round by round; a round before that is not measured warms up and records."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name in random.sample(list(works), len(works)):
            if gpu:
                torch.cuda.synchronize()
            began = clock()
            for batch in given:
                works[name](batch)
            if gpu:
                torch.cuda.synchronize()
            if turn:
                times[name].append(clock() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("width", "layers", "vocabulary", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--steps", type=int, help="batches a round; 40 on a GPU, 4 elsewhere")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help="count processor time (CPU, one thread)")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    own = {name: getattr(options, name) for name in ("width", "layers", "vocabulary", "tokens", "dropout")}
    if not gpu:
        own["tokens"] = own["tokens"] or 2048
    size = replace(SIZES[options.size], **{name: value for name, value in own.items() if value is not None})
    dtype = torch.bfloat16 if gpu else torch.float32
    random.seed(0)
    torch.manual_seed(0)
    given = batches(size, options.steps or (40 if gpu else 4), device)
    labels = sum(batch.tokens for batch in given)
    where = torch.cuda.get_device_name() if gpu else name_of_cpu()
    print(f"training steps, {size}, {dtype}, {where}, torch {torch.__version__}")
    how = ", processor time" if options.work else ""
    print(f"{len(given)} batches of {labels / len(given):,.0f} target tokens, {options.rounds} rounds{how}\n")
    clock = time.process_time if options.work else time.perf_counter
    times = measure(contenders(size, device, dtype), given, options.rounds, clock, gpu)
    print(f"{'contender':26} {'ms a step':>10} {'fastest':>10} {'tokens/s':>12} {'× ours':>8}")
    for name, seconds in times.items():
        median, fastest = (1000 * took / len(given) for took in (statistics.median(seconds), min(seconds)))
        ratio = statistics.median(seconds) / statistics.median(times["clearhead"])
        rate = labels / statistics.median(seconds)
        print(f"{name:26} {median:10.2f} {fastest:10.2f} {rate:12,.0f} {ratio:8.2f}")


if __name__ == "__main__":
    main()
