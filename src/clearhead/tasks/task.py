"""What a task is: a small object on top of the packages below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from clearhead.base.errors import UserError
from clearhead.data.columns import Columns
from clearhead.data.config import CorruptionConfig
from clearhead.data.encoding import Encoding
from clearhead.data.encodings import Hiding, Pieces
from clearhead.evaluation.evaluate import Judge
from clearhead.training.config import ObjectiveConfig
from clearhead.training.consistency import ConsistentObjective
from clearhead.training.objectives import LabelObjective, Objective
from clearhead.training.sizing import Choice, Demand, Facts


class Family(NamedTuple):
    """A family of models that a task can train: why, how its examples are encoded, and with what head."""

    name: str
    why: str
    encoding: Encoding
    head: str = "none"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Everything specific to one task. The first of its families is the default."""

    name: str
    columns: Columns
    families: tuple[Family, ...]
    objective: Callable[[ObjectiveConfig], Objective]
    demand: Callable[[Facts, Family], Demand]
    judge: Judge
    defaults: tuple[Choice, ...] = ()  # settings of its data that are known before the corpus is read
    command: str = "translate"  # the command that uses a trained bundle
    given: str = '"…"'  # what that command is given, as an example

    def family(self, name: str | None = None) -> Family:
        """A family by its name; None: the default. Raises an error for one that makes no sense here."""
        for one in self.families:
            if name is None or one.name == name:
                return one
        known = " or ".join(one.name for one in self.families)
        raise UserError(
            f"The task '{self.name}' cannot train a model of the family '{name}': "
            f"set model.family={known}, or leave it out."
        )

    def encoding(
        self,
        family: str | None = None,
        two: bool = False,
        corruption: CorruptionConfig | None = None,
        transpose: int = 0,
    ) -> Encoding:
        """How examples are encoded for a family; `two`: two texts are read together.

        `corruption`: how much is hidden, for the tasks that hide something. `transpose`: by how many
        semitones pieces of music are shifted at most.
        """
        found = self.family(family).encoding
        if corruption is not None and isinstance(found, Hiding):
            found = replace(found, corruption=corruption)
        if isinstance(found, Pieces):
            found = replace(found, transpose=transpose)
        elif transpose:
            raise UserError("data.transpose only applies to the task 'music': leave it out.")
        return replace(found, two=True) if two else found

    def sized(self, facts: Facts, family: str | None = None, two: bool = False) -> Demand:
        """What it demands of a model, in numbers."""
        found = self.demand(facts, self.family(family))
        if two and found.family == "encoder":
            kinds = Choice("model.embedding.token_types", 2, "tells the second text from the first")
            found = replace(found, model=(*found.model, kinds))
        return found


def labels_objective(config: ObjectiveConfig) -> Objective:
    """Cross-entropy, as in most tasks."""
    if config.consistency:
        return ConsistentObjective(config.label_smoothing, config.consistency)
    return LabelObjective(config.label_smoothing, config.z_loss)


ROTARY = Choice(
    "model.position.name", "rotary", "encodes order as distance, which takes little text to learn"
)
CUT = Choice("data.filter.too_long", "cut", "the beginning of a long text says the most")
