"""Small runs for the tests of this room: a copying task, models, batches, trainers. Needs no hypothesis.

Shapes: B rows, S source tokens, T target tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.seed import seeded
from clearhead.data.batch import Batch, Widths
from clearhead.data.load import Loader
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.tasks import TASKS
from clearhead.training.averaging import Ema
from clearhead.training.config import TrainConfig
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.loop import Corpus, Trainer
from clearhead.training.objectives import LabelObjective, Objective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.optimiser_state import optimiser_tensors
from clearhead.training.start import prepare
from clearhead.training.step import Precision, Stepper
from clearhead.training.validation import Validator
from clearhead.training.view import View

from ..data.storing import SPECIALS, a_store

VOCABULARY = 12
# Adam divides by the gradient's own size: a gradient that should be 0 (a key's bias) and is rounding noise
# would decide an update, so comparisons need an eps above the noise.
EPS = 1e-3
CPU = torch.device("cpu")
FAMILIES: dict[str, str] = {
    "translate": "encoder-decoder",
    "summarise": "encoder-decoder",
    "generate": "decoder",
    "classify": "encoder",
    "tag": "encoder",
}


def model_config(task: str = "translate", **changes: Any) -> ModelConfig:
    plain = {
        "family": FAMILIES[task],
        "vocabulary": VOCABULARY,
        "width": 8,
        "layers": 1,
        "dropout": 0.0,
        "attention": {"heads": 2},
        "feedforward": {"width": 16},
        "embedding": {"dropout": 0.0},
        "norm": {"place": "pre"},
        "head": {"kind": task if task in ("classify", "tag") else "none", "classes": 4, "dropout": 0.0},
    }
    return ModelConfig.from_dict(plain).replace(**changes)


def a_model(task: str = "translate", seed: int = 5, **changes: Any) -> nn.Module:
    with seeded(seed):
        return build(model_config(task, **changes))


def some_ids(count: int, seed: int, shortest: int = 1, longest: int = 6) -> list[list[int]]:
    chance = random.Random(seed)
    return [
        [chance.randrange(4, VOCABULARY) for _ in range(chance.randint(shortest, longest))]
        for _ in range(count)
    ]


def a_batch(task: str = "translate", rows: int = 5, seed: int = 0, empty: int = 0, wider: int = 0) -> Batch:
    """Random examples; `empty` rows fill up a fixed shape, `wider` columns too."""
    chance = random.Random(seed + 1000)
    sources, targets = some_ids(rows, seed), some_ids(rows, seed + 1)
    if task == "classify":
        targets = [[chance.randrange(4)] for _ in range(rows)]
    if task == "tag":
        targets = [[chance.randrange(4) for _ in ids] for ids in sources]
    if task == "generate":
        targets = [[*ids, 2] for ids in targets]
    columns = {"source": Ragged.of(sources), "target": Ragged.of(targets)}
    longest = {name: max(len(ids) for ids in lists) for name, lists in (("s", sources), ("t", targets))}
    places = {"classify": longest["s"] + 1, "tag": longest["s"], "generate": longest["t"] - 1}
    target = places.get(task, longest["t"] + 1)
    widths = Widths(rows + empty, longest["s"] + wider, target + wider)
    return TASKS[task].encoding().collate(columns, widths, SPECIALS)


def together(batches: Sequence[Batch]) -> Batch:
    """The rows of several padded pair batches as one."""

    def stacked(name: str, fill: int) -> Tensor:
        tensors = [getattr(batch, name) for batch in batches]
        if tensors[0].dim() == 1:
            return torch.cat(tensors)
        width = max(tensor.shape[1] for tensor in tensors)
        return torch.cat([nn.functional.pad(t, (0, width - t.shape[1]), value=fill) for t in tensors])

    return Batch.of(
        source=stacked("source", 0),
        source_lengths=stacked("source_lengths", 0),
        inputs=stacked("inputs", 0),
        lengths=stacked("lengths", 0),
        labels=stacked("labels", -100),
        rows=sum(batch.rows for batch in batches),
        tokens=sum(batch.tokens for batch in batches),
    )


def a_stepper(
    model: nn.Module,
    objective: Objective | None = None,
    *,
    kind: type[Stepper] = Stepper,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    clip: float = 1.0,
    ema: float = 0.0,
) -> Stepper:
    model.to(device).train()
    return kind(
        model,
        objective or LabelObjective(0.1),
        build_optimiser(model, OptimiserConfig(clip=clip, eps=EPS), device),
        Precision(device, dtype),
        clip,
        Ema(model, ema) if ema else None,
    )


def state_of(stepper: Stepper, model: nn.Module) -> dict[str, Tensor]:
    """Everything an update may change, copied."""
    found = {f"weight/{name}": tensor for name, tensor in model.state_dict().items()}
    found |= {f"optimiser/{k}": v for k, v in optimiser_tensors(stepper.optimiser, model).items()}
    if stepper.ema is not None:
        found |= {f"ema/{name}": tensor for name, tensor in stepper.ema.tensors().items()}
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def close(one: dict[str, Tensor], two: dict[str, Tensor], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


# -- whole runs --------------------------------------------------------------------------------------


class Listening(View):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.validations: list[tuple[int, dict[str, float], bool]] = []

    def say(self, sentence: str) -> None:
        self.said.append(sentence)

    def validation(self, step: int, values: Any, best: bool, samples: Any = ()) -> None:
        self.validations.append((step, dict(values), best))


def run_config(**changes: Any) -> TrainConfig:
    plain = {
        "steps": 12,
        "model": model_config(dropout=0.1).to_dict(),
        "batch": {"tokens": 60, "workers": 0},
        "schedule": {"name": "constant", "rate": 1e-3, "warmup": 0, "steps": 12},
        "validation": {"every": 4, "patience": None},
        "saving": {"log_every": 3, "seconds": 1e9},
        "compute": {"device": "cpu"},
    }
    return TrainConfig.from_dict(plain).replace(**changes)


def copying_stores(
    folder: Path, sizes: Sequence[int] = (40,), task: str = "translate"
) -> tuple[list[Store], Store]:
    """Training stores and a validation store in which the target is the source, or in which there is none."""

    def made(name: str, count: int, seed: int) -> Store:
        ids = some_ids(count, seed)
        if task == "generate":
            return a_store(folder / name, task, [[*one, SPECIALS.stop] for one in ids])
        return a_store(folder / name, "translate", ids, [[*one, SPECIALS.stop] for one in ids])

    return [made(f"train-{i}", size, 10 + i) for i, size in enumerate(sizes)], made("validation", 12, 99)


def a_trainer(
    data: Path,
    folder: Path,
    config: TrainConfig,
    *,
    weights: Sequence[float | None] | None = None,
    sizes: Sequence[int] = (40,),
    validator: Validator | None = None,
    view: View | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    ranks: Ranks | None = None,
) -> Trainer:
    """A run of the copying task; the stores are made once in `data`."""
    if not (data / "validation").exists():
        copying_stores(data, sizes, config.task)
    stores = [Store(data / f"train-{number}") for number in range(len(sizes))]
    task = TASKS[config.task]
    encoding, objective = task.encoding(), task.objective(config.objective)
    training = Loader(
        stores,
        encoding,
        config.batch,
        SPECIALS,
        config.seed,
        weights=weights,
        multiple=ranks.layout.tp if ranks else 1,
    )
    judging = config.batch.replace(layout="padded", shapes="free")
    validation = Loader(
        [Store(data / "validation")], encoding, judging, SPECIALS, config.seed, evaluation=True
    )
    torch.manual_seed(config.seed)
    model = build(config.model)
    prepare(model, config.start, [])
    corpus = Corpus(training, validation)
    return Trainer(model, corpus, objective, config, folder, Precision(device, dtype), view, validator, ranks)
