"""Pairs of texts: the model reads the source and writes the target."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import JoinedPairs, Pairs
from clearhead.evaluation.judges import Translations
from clearhead.tasks.task import ROTARY, Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="translate",
    sources=("source", "src", "input", "question"),
    targets=("target", "tgt", "trg", "output", "answer"),
    noun="pairs",
    languages=True,
)
_ACCURACY = Choice(
    "validation.metric",
    "accuracy",
    "accuracy is what counts; with little text the loss rises long before accuracy falls",
)


def pairs_demand(facts: Facts, family: Family, tokens: int, passes: Passes, rate: Rate) -> Demand:
    """The demand of any task on pairs of texts."""
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=max(tokens, 1),
        passes=passes,
        rate=rate,
        consistency=2.0,
        smoothing=0.1,
        decay=0.0,
        model=() if family.name == "convolutional" else (ROTARY,),
        judging=(_ACCURACY,),
    )


def _demand(facts: Facts, family: Family) -> Demand:
    return pairs_demand(facts, family, facts.target_tokens, Passes(100, 0.5, 150), Rate(7e-4, 512, 1.4))


TRANSLATE = Task(
    name="translate",
    columns=_COLUMNS,
    families=(
        Family(
            "encoder-decoder",
            "an encoder reads the source, a decoder writes the target",
            Pairs(_COLUMNS, alike=True),
        ),
        Family("recurrent", "the baseline before the Transformer", Pairs(_COLUMNS, alike=True)),
        Family(
            "convolutional",
            "convolutions read neighbouring tokens, attention reads the source",
            Pairs(_COLUMNS, alike=True),
        ),
        Family("decoder", "source and target in one sequence", JoinedPairs(_COLUMNS, alike=True)),
    ),
    objective=labels_objective,
    demand=_demand,
    judge=Translations("translate"),
)
