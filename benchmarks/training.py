"""How fast models train: our step beside plain loops around PyTorch's and Hugging Face's models.

    python benchmarks/training.py [--size small|base|big|gpt2] [--lengths made-up|uniform|multi30k|tatoeba]
                                  [--data DATA] [--compile] [--without REGEX] [--device cuda] [--tokens N]
                                  [--steps 20] [--rounds 3] [--width 128] [--layers 4] [--vocabulary 10000]
                                  [--dropout 0.1]

A whole step each time: batch to the device, forward, label-smoothed loss, backward, gradients clipped, fused
Adam at a new rate. The peers' loops are what a careful user writes by hand: bf16 by autocast (on a CPU that
multiplies bf16, and float32 beside it), no waiting for the device; with `--compile` each stands there
compiled, too. All have the same widths, depths, norms and dropouts, tied embeddings, random weights. `small`,
`base` and `big` are translators, `gpt2` is the 124M decoder on full rows of 1,024. On a GPU ours runs as it
trains by default there: recorded, on packed batches of the same corpus; besides, on the padded batches of few
fixed shapes that all others see. Lengths are made up (about 14 tokens a side), uniform (sources of 32 to 64,
targets of 64), or those of a corpus in DATA, word by word.

Rounds visit every contender once, in a new order, over all its batches; the table gives medians, real target
tokens a second (no padding), the ratio to ours (above 1: ours is faster), the share of this machine's ceiling
for matrix products (measured in the same run) that the real tokens' FLOPs are, the memory that a contender
needs, and the seconds of its first step. A run fails if ours takes an attention kernel that was built for
older GPUs. Compare inside one run only. Where others use the machine as well, `--work` with OMP_NUM_THREADS=1
counts processor time instead of the clock's.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.columns import Columns
from clearhead.data.encoding import Specials
from clearhead.data.encodings import Pairs
from clearhead.data.layouts import pack_batch
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.models.build import preset
from clearhead.models.config import ModelConfig
from clearhead.training.flops import StepFlops
from clearhead.training.graphs import GraphStepper
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper

try:
    import transformers
except ImportError:  # the comparison then does without Hugging Face
    transformers = None
try:
    import x_transformers
except ImportError:
    x_transformers = None

SMOOTHING, CLIP, RATE = 0.1, 1.0, 1e-4
PACKED = ("clearhead", "clearhead, not recorded", "clearhead, compiled")  # of those on a GPU
Clock = Callable[[], float]
Work = Callable[[Batch], None]
Scores = Callable[[Batch], Tensor]  # a batch on its device → logits (B, T, V)
Sizes = NDArray[np.int64]


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


SIZES = {
    "small": Size(width=128, layers=4, vocabulary=10_000, tokens=8192),
    "base": Size(width=512, layers=6, vocabulary=32_768, tokens=32_768),
    "big": Size(width=1024, layers=6, vocabulary=32_768, tokens=16_384),
    "gpt2": Size(768, 12, 50_304, tokens=32_768, dropout=0.0, family="decoder", longest=1024),
}


def sentence_lengths(kind: str, rows: int, longest: int, data: Path | None) -> tuple[Sizes, Sizes]:
    """Tokens of so many sources and targets."""
    chance = np.random.default_rng(1)
    if kind == "uniform":
        return chance.integers(31, 64, rows), np.full(rows, 63)  # and a special token each
    if kind == "made-up":
        both = np.exp(chance.normal(np.log(13), 0.45, rows))
        sides = [both * np.exp(chance.normal(0, 0.15, rows)) for _ in range(2)]
    else:
        if data is None:
            raise SystemExit(f"--lengths {kind} needs the folder of the corpus: --data DATA")
        pairs = np.array(list(word_counts(kind, data)))
        sides = list(pairs[chance.integers(len(pairs), size=rows)].T)
    return tuple(np.clip(side, 2, longest - 2).astype(np.int64) for side in sides)


def word_counts(kind: str, data: Path) -> Iterator[tuple[int, int]]:
    """Words of either side of a corpus's pairs."""
    if kind == "multi30k":
        names = [data / "multi30k" / "tok" / f"train.lc.norm.tok.{side}.gz" for side in ("en", "de")]
        with (
            gzip.open(names[0], "rt", encoding="utf-8") as one,
            gzip.open(names[1], "rt", encoding="utf-8") as two,
        ):
            yield from ((len(a.split()), len(b.split())) for a, b in zip(one, two, strict=True))
    else:
        with gzip.open(data / "tatoeba-en-fr" / "eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
            yield from ((len(a.split()), len(b.split())) for a, b, *_ in (line.split("\t") for line in file))


def batches(
    size: Size,
    count: int,
    device: torch.device,
    kind: str = "made-up",
    data: Path | None = None,
    packed: bool = False,
) -> list[Batch]:
    """Batches of made-up words, as a run of ours would see them: padded, or packed in one budget."""
    gpu = device.type == "cuda"
    if size.family == "decoder":
        return rows_of_text(size, count, gpu)
    rows = max(3 * count * size.tokens // (60 if kind == "uniform" else 14), 20_000)  # for like lengths
    sides = sentence_lengths(kind, rows, size.longest, data)
    chance = np.random.default_rng(2)
    columns = {
        name: Ragged(chance.integers(4, size.vocabulary, int(sizes.sum())), sizes)
        for name, sizes in zip(("source", "target"), sides, strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(f"{folder}/store", "translate", dict.fromkeys(columns, size.vocabulary)) as writer:
            writer.add(**columns)
        config = BatchConfig(
            tokens=size.tokens,
            shapes="fixed" if gpu or packed else "free",
            layout="packed" if packed else "padded",
            buckets=1 if kind == "uniform" else 8,
            workers=0,
        )
        loader = Loader(
            [Store(Path(folder) / "store")],
            Pairs(Columns(task="translate", sources=("source",))),
            config,
            Specials(0, 1, 2),
            1,
            pin=gpu,
        )
        return [numbered.batch for numbered in islice(loader.stream(), count)]


def rows_of_text(size: Size, count: int, gpu: bool) -> list[Batch]:
    """Batches of full rows, as a decoder reads a long text."""
    chance = np.random.default_rng(2)
    found = []
    rows = max(1, size.tokens // size.longest)
    for _ in range(count):
        ids = torch.from_numpy(chance.integers(4, size.vocabulary, (rows, size.longest + 1)))
        batch = Batch.of(
            inputs=ids[:, :-1].contiguous(),
            labels=ids[:, 1:].contiguous(),
            lengths=torch.full((rows,), size.longest),
            rows=rows,
        )
        found.append(batch.pin() if gpu else batch)
    return found


def our_config(size: Size) -> ModelConfig:
    if size.family == "decoder":
        return preset("gpt2").replace(
            vocabulary=size.vocabulary,
            width=size.width,
            layers=size.layers,
            dropout=size.dropout,
            attention__heads=size.heads,
            attention__key_dim=size.width // size.heads,
            embedding__dropout=size.dropout,
            position__max_length=size.longest,
        )
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


def ours(
    size: Size, device: torch.device, dtype: torch.dtype, kind: type[Stepper], compile: bool = False
) -> Work:
    """A step as our trainer takes it."""
    model = clearhead.build(our_config(size)).to(device).train()
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    precision = Precision(device, dtype)
    stepper = kind(model, LabelObjective(SMOOTHING), optimiser, precision, CLIP, None, compile)

    def step(batch: Batch) -> None:
        stepper.step([batch], RATE)
        if kind is GraphStepper and (batch.is_packed or batch.source is None):
            refuse_old_kernels(stepper.kernels())

    return step


def refuse_old_kernels(used: Sequence[str]) -> None:
    """Training by default must not fall back to the kernels of older GPUs."""
    if "memory-efficient" in used:
        raise SystemExit(f"Attention was computed by a kernel built for older GPUs: {', '.join(used)}.")


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
        max_position_embeddings=size.longest + 2,
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


def x_transformer(size: Size) -> nn.Module:
    """x-transformers' encoder and decoder, with the original's norms behind each sub-layer."""
    shape: dict[str, Any] = {}
    for side in ("enc", "dec"):
        shape |= {
            f"{side}_num_tokens": size.vocabulary, f"{side}_depth": size.layers, f"{side}_heads": size.heads,
            f"{side}_max_seq_len": size.longest + 2, f"{side}_attn_dim_head": size.width // size.heads,
            f"{side}_attn_flash": True, f"{side}_layer_dropout": 0.0, f"{side}_pre_norm": False,
        }  # fmt: skip
    model: nn.Module = x_transformers.XTransformer(dim=size.width, tie_token_emb=True, **shape)
    return model


def x_transformer_scores(model: Any) -> Scores:
    def scores(batch: Batch) -> Tensor:
        seen = real(batch)
        memory = model.encoder(batch.source, mask=seen, return_embeddings=True)
        found: Tensor = model.decoder.net(batch.inputs, context=memory, context_mask=seen)
        return found

    return scores


def gpt(size: Size) -> nn.Module:
    """Hugging Face's decoder of the same shape."""
    shape = transformers.GPT2Config(
        vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.layers, n_head=size.heads,
        n_positions=size.longest, resid_pdrop=size.dropout, embd_pdrop=size.dropout, attn_pdrop=0.0,
        use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model: nn.Module = transformers.GPT2LMHeadModel(shape)
    return model


def gpt_scores(model: nn.Module) -> Scores:
    def scores(batch: Batch) -> Tensor:
        found: Tensor = model(input_ids=batch.inputs).logits
        return found

    return scores


def peers(size: Size) -> dict[str, tuple[Callable[[Size], nn.Module], Callable[[nn.Module], Scores]]]:
    """Name → how to make the model, and how to call it."""
    if size.family == "decoder":
        return {} if transformers is None else {"Hugging Face (GPT-2)": (gpt, gpt_scores)}
    found = {"torch.nn": (TorchTranslator, torch_scores)}
    if transformers is not None:
        found["Hugging Face (Marian)"] = (marian, marian_scores)
    if x_transformers is not None:
        found["x-transformers"] = (x_transformer, x_transformer_scores)
    return found


def contenders(
    size: Size, device: torch.device, dtype: torch.dtype, compile: bool = False
) -> dict[str, Callable[[], Work]]:
    """Name → how to make one training step; the first is the one that our trainer uses."""
    found: dict[str, Callable[[], Work]] = {}
    gpu = device.type == "cuda"
    found["clearhead"] = lambda: ours(size, device, dtype, GraphStepper if gpu else Stepper)
    if not gpu and dtype != torch.float32:
        found["clearhead, float32"] = lambda: ours(size, device, torch.float32, Stepper)
    if gpu and size.family != "decoder":
        found["clearhead, padded"] = lambda: ours(size, device, dtype, GraphStepper)
    if gpu:
        found["clearhead, not recorded"] = lambda: ours(size, device, dtype, Stepper)
    if compile:
        found["clearhead, compiled"] = lambda: ours(
            size, device, dtype, GraphStepper if gpu else Stepper, True
        )
    for name, (make, score) in peers(size).items():

        def plain(
            make: Any = make, score: Any = score, compiled: bool = False, dtype: torch.dtype = dtype
        ) -> Work:
            model = make(size)
            called = torch.compile(model) if compiled else model
            return plain_loop(model, score(called), device, dtype)

        found[name] = plain
        if not gpu and dtype != torch.float32:
            found[f"{name}, float32"] = functools.partial(plain, dtype=torch.float32)
        if compile:
            found[f"{name}, compiled"] = functools.partial(plain, compiled=True)
    return found


@dataclass
class Begun:
    """A contender that has taken its first steps."""

    work: Work
    given: Sequence[Batch]
    first: float  # seconds of the first step
    memory: float  # bytes


def begin(make: Callable[[], Work], given: Sequence[Batch], gpu: bool) -> Begun:
    """Make a contender and let it see every batch once, which also records and compiles."""
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if gpu else 0
    work = make()
    began = time.perf_counter()
    work(given[0])
    if gpu:
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for batch in given:
        work(batch)
    return Begun(work, given, first, torch.cuda.max_memory_allocated() - before if gpu else 0)


def measure(begun: dict[str, Begun], rounds: int, clock: Clock, gpu: bool) -> dict[str, list[float]]:
    """Seconds over all batches, round by round."""
    times: dict[str, list[float]] = {name: [] for name in begun}
    for _ in range(rounds):
        for name in random.sample(list(begun), len(begun)):
            if gpu:
                torch.cuda.synchronize()
            began = clock()
            for batch in begun[name].given:
                begun[name].work(batch)
            if gpu:
                torch.cuda.synchronize()
            times[name].append(clock() - began)
    return times


def ceiling(device: torch.device, dtype: torch.dtype, clock: Clock) -> float:
    """FLOP/s of a large product of matrices here."""
    width, count = (8192, 20) if device.type == "cuda" else (1024, 8)
    a, b = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = clock()
    for _ in range(count):
        a @ b
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count * 2 * width**3 / (clock() - began)


def report(begun: dict[str, Begun], times: dict[str, list[float]], config: ModelConfig, most: float) -> None:
    """Print the table."""
    count = StepFlops(config)

    def rate(name: str) -> float:
        return sum(batch.tokens for batch in begun[name].given) / statistics.median(times[name])

    head = f"{'contender':34} {'ms a step':>10} {'fastest':>9} {'tokens/s':>12} {'× ours':>7} "
    print(head + f"{'MFU':>6} {'GiB':>6} {'first s':>8}")
    for name, one in begun.items():
        median, fastest = (
            1000 * took / len(one.given) for took in (statistics.median(times[name]), min(times[name]))
        )
        spent = sum(count.of(pack_batch(batch)) for batch in one.given) / statistics.median(times[name])
        ratio, real = rate("clearhead") / rate(name), rate(name)
        print(
            f"{name:34} {median:10.2f} {fastest:9.2f} {real:12,.0f} {ratio:7.2f} {spent / most:6.1%} "
            f"{one.memory / 2**30:6.1f} {one.first:8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--lengths", choices=("made-up", "uniform", "multi30k", "tatoeba"), default="made-up")
    parser.add_argument("--data", type=Path, help="folder of the corpora, for their lengths")
    parser.add_argument("--compile", action="store_true", help="every contender compiled, too")
    parser.add_argument("--without", metavar="REGEX", help="leave out contenders of such names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("width", "layers", "vocabulary", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--steps", type=int, help="batches a round; 20 on a GPU, 4 elsewhere")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help="count processor time (CPU, one thread)")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    own = {name: getattr(options, name) for name in ("width", "layers", "vocabulary", "tokens", "dropout")}
    if not gpu:
        own["tokens"] = own["tokens"] or 2048
    size = replace(SIZES[options.size], **{name: value for name, value in own.items() if value is not None})
    dtype = torch.bfloat16 if gpu else Precision.chosen("auto", device, size.width).dtype
    random.seed(0)
    torch.manual_seed(0)
    steps = options.steps or (20 if gpu else 4)
    given = batches(size, steps, device, options.lengths, options.data)
    packed = given
    if gpu and size.family != "decoder":
        packed = batches(size, steps, device, options.lengths, options.data, packed=True)
    where = torch.cuda.get_device_name() if gpu else name_of_cpu()
    clock = time.process_time if options.work else time.perf_counter
    most = ceiling(device, dtype, clock)
    print(f"training steps, {size}, {options.lengths} lengths, {dtype}, {where}, torch {torch.__version__}")
    how = ", processor time" if options.work else ""
    labels = sum(batch.tokens for batch in given) / len(given)
    print(f"{len(given)} batches of {labels:,.0f} target tokens, {options.rounds} rounds{how}")
    print(f"ceiling of matrix products {most / 1e12:.2f} TFLOP/s\n", flush=True)
    begun = {}
    for name, make in contenders(size, device, dtype, options.compile).items():
        if options.without and re.search(options.without, name):
            continue
        begun[name] = begin(make, packed if name in PACKED else given, gpu)
        print(f"  {name} is ready after {begun[name].first:.1f} s", flush=True)
    times = measure(begun, options.rounds, clock, gpu)
    report(begun, times, our_config(size), most)


if __name__ == "__main__":
    main()
