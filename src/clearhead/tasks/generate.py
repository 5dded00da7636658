"""Language modelling: predict every token of long texts or documents from those before it."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import Stream
from clearhead.evaluation.judges import LongTexts
from clearhead.tasks.task import ROTARY, Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="generate",
    targets=("text", "document", "content", "story", "body", "article", "sentence"),
    noun="rows",
)
LONG_TEXT_MODEL = (  # the usual choices for models of long texts
    ROTARY,
    Choice("model.embedding.scale", False, "rotary positions are not added to the embedding"),
    Choice("model.feedforward.activation", "gelu", "usual for language models"),
    Choice("model.initialisation", "scaled", "usual for language models"),
)


def _demand(facts: Facts, family: Family) -> Demand:
    tokens = max(facts.target_tokens, 1)
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=tokens,
        passes=Passes(25, 0.2, 60),
        rate=Rate(1e-3, 256, 0.5),
        rows=False,
        context=256 if tokens < 40_000_000 else 512,
        model=LONG_TEXT_MODEL,
    )


GENERATE = Task(
    name="generate",
    columns=_COLUMNS,
    families=(Family("decoder", "each token is predicted from those before it", Stream(_COLUMNS)),),
    objective=labels_objective,
    demand=_demand,
    judge=LongTexts("generate"),
    command="generate",
)
