"""A number for each text, or for two texts together: how similar they are, how good a review is."""

from __future__ import annotations

from dataclasses import replace

from clearhead.base.errors import UserError
from clearhead.data.columns import Columns
from clearhead.data.encodings import Scores
from clearhead.evaluation.judges import Numbers
from clearhead.tasks.classify import COLUMNS, text_demand, text_families
from clearhead.tasks.task import CUT, Family, Task
from clearhead.training.config import ObjectiveConfig
from clearhead.training.objectives import Objective
from clearhead.training.regression import NumberObjective
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="regress",
    sources=COLUMNS.sources,
    targets=("score", "rating", "number", "value", "similarity", *COLUMNS.targets),
    target="number",
    pairs=True,
)


def _objective(config: ObjectiveConfig) -> Objective:
    if config.consistency or config.label_smoothing:
        raise UserError(
            "Label smoothing and consistency are for probabilities and cannot be used with a squared "
            "error: leave objective.label_smoothing and objective.consistency out."
        )
    return NumberObjective()


def _demand(facts: Facts, family: Family) -> Demand:
    return replace(
        text_demand(facts, family),
        judging=(
            Choice("validation.metric", "pearson", "correlation with the right numbers"),
            Choice("validation.decode", 5000, "predicting a number costs a single forward pass"),
        ),
    )


REGRESS = Task(
    name="regress",
    columns=_COLUMNS,
    families=text_families(Scores(_COLUMNS), "number"),
    objective=_objective,
    demand=_demand,
    judge=Numbers("regress"),
    defaults=(CUT,),
    command="label",
)
