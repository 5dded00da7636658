"""Extend a finished run (`--resume RUN --minutes 60`): more steps, and a schedule for them.

The new plan is written into the run's record before the first further step. So an extended run that is killed
resumes like any other, and ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from clearhead.base.device import pick_device, pick_dtype
from clearhead.base.errors import UserError
from clearhead.base.settings import flat
from clearhead.jobs.recipe import Table, merged, nested, table_in
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.config import ComputeConfig, TrainConfig, differences
from clearhead.training.cpu.worker import NARROW, in_bf16
from clearhead.training.flops import peak_of
from clearhead.training.optimiser import peak_rate
from clearhead.training.run_folder import RunFolder
from clearhead.training.sizing import Machine
from clearhead.training.snapshot import FOLDER as CHECKPOINTS

# What may be set for the further steps, and nothing else.
MAY_CHANGE = ("steps", "schedule.rate", "schedule.warmup", "schedule.name", "schedule.floor")
MOST_STEPS = 10**9
HURRIED = 0.5  # a run with less than this share of its epochs counts as short of time


def machine_here(compute: ComputeConfig, minutes: float | None) -> Machine:
    """This machine as sizing sees it: from a table, never measured."""
    device = pick_device(compute.device)
    gpu = device.type == "cuda"
    quick = NARROW if compute.dtype in ("auto", "bf16") and in_bf16(device, NARROW) else None
    kind = pick_dtype(compute.dtype, device) if gpu else torch.float32
    return Machine(gpu, peak_of(device, kind, compute.threads), minutes, quick)


def is_short_of_time(outlook: Mapping[str, Any]) -> bool:
    """Does a run have time for far fewer epochs than would be good for it?"""
    passes, wanted = outlook.get("passes"), outlook.get("wanted_passes")
    return passes is not None and wanted is not None and passes < HURRIED * wanted


def is_lengthening(config: TrainConfig, settings: Table | None, minutes: float | None) -> bool:
    """Do settings ask for more steps, and for nothing that would change the run?"""
    if minutes is not None:
        return True
    asked = (settings or {}).get("steps")
    if not isinstance(asked, int) or asked <= config.steps:
        return False
    changed = TrainConfig.from_dict(merged(config.to_dict(), without_plan(settings)))
    return not differences(config, changed)


def without_plan(settings: Table | None) -> Table:
    """Settings without those for the further steps."""
    return nested({name: value for name, value in flat(settings or {}).items() if name not in MAY_CHANGE})


def lengthen(folder: RunFolder, settings: Table | None, minutes: float | None) -> str:
    """Plan further steps and write them into the run's record; returns a message about it."""
    config, record = folder.read_record()
    facts = Checkpoints(folder.training / CHECKPOINTS).facts()
    done = max(facts, default=0)
    if not done or (done < config.steps and not facts[done].get("why")):
        raise UserError(
            f"The run in '{folder.path}' has not finished (step {done:,} of {config.steps:,}): finish it "
            f"with `clearhead train --resume {folder.path}` before you extend it."
        )
    said = settings or {}
    notes = record["notes"]
    steps = said.get("steps")
    if minutes is not None:
        if steps is not None:
            raise UserError("Give either --minutes or steps to extend a run, not both.")
        steps = min(done + max(int(minutes / _minutes_a_step(config, notes, facts[done])), 1), MOST_STEPS)
    if not isinstance(steps, int) or steps <= done:
        raise UserError(f"The run in '{folder.path}' has taken {done:,} steps already: give a larger number.")
    longer = _planned(config, done, steps, said)
    history = [*notes.get("lengthened", []), {"after": done, "to": steps}]
    outlook = dict(notes.get("outlook") or {})
    if "passes" in outlook:
        outlook["passes"] *= steps / done
    notes = {**notes, "recipe": longer.to_dict(), "lengthened": history, "outlook": outlook}
    folder.write_record(longer, {**record, "notes": notes})
    schedule = longer.schedule
    return (
        f"The run had finished at step {done:,} and continues to step {steps:,}. The schedule restarts: "
        f"the learning rate rises to {peak_rate(schedule, config.model.width):.2g} over "
        f"{schedule.warmup:,} steps, and follows '{schedule.name}' to the end."
    )


def _planned(config: TrainConfig, done: int, steps: int, said: Table) -> TrainConfig:
    """The same run with further steps.

    A rate that has decayed to its floor learns little more. It rises again, to half of its first peak, which
    does not undo what has been learned.
    """
    old = config.schedule
    peak = peak_rate(old, config.model.width)
    table = {
        "name": old.name if old.name == "constant" else "cosine",
        "rate": peak if old.begin or old.name == "constant" else peak / 2,
        "warmup": max((steps - done) // 20, 1),
        "floor": old.floor if old.name in ("cosine", "linear") else 0.02,
        **table_in(said, "schedule"),
        "begin": done,
        "steps": steps,
    }
    if steps - done < 2:
        table["warmup"] = 0
    return TrainConfig.from_dict(merged(config.to_dict(), {"steps": steps, "schedule": table}))


def _minutes_a_step(config: TrainConfig, notes: dict[str, Any], state: dict[str, Any]) -> float:
    """By the table of devices; for a run without a recorded plan, as long as its steps took."""
    work = (notes.get("outlook") or {}).get("step_flops")
    if isinstance(work, (int, float)) and work > 0:
        return work / machine_here(config.compute, None).rate(config.model.width)
    return max(float(state["seconds"]), 1e-3) / 60 / max(int(state["step"]), 1)
