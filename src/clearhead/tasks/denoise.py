"""Pretraining: reconstruct hidden spans of long texts or documents (T5's span corruption)."""

from __future__ import annotations

from dataclasses import replace

from clearhead.data.columns import Columns
from clearhead.data.encodings import Denoised
from clearhead.evaluation.hidden import HiddenSpans
from clearhead.tasks.generate import GENERATE, LONG_TEXT_MODEL
from clearhead.tasks.task import Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS: Columns = replace(GENERATE.columns, task="denoise")
_EXTRA = Choice("tokenizer.extra", "sentinels", "one token for each hidden span")
CONTEXT = 256  # tokens of a chunk before anything is hidden


def _demand(facts: Facts, family: Family) -> Demand:
    tokens = max(facts.target_tokens, 1)
    read = replace(
        facts,
        examples=-(-tokens // CONTEXT),
        source_tokens=round(0.9 * tokens),  # without what is hidden, plus a sentinel for each span
        target_tokens=max(round(0.2 * tokens), 1),
    )
    return Demand(
        facts=read,
        family=family.name,
        why=family.why,
        tokens=tokens,
        passes=Passes(60, 0.2, 120),  # an epoch trains on one token in seven
        rate=Rate(7e-4, 512, 1.4),
        context=CONTEXT,
        model=LONG_TEXT_MODEL,
    )


DENOISE = Task(
    name="denoise",
    columns=_COLUMNS,
    families=(
        Family(
            "encoder-decoder",
            "an encoder reads a text with gaps, a decoder writes what was in them",
            Denoised(_COLUMNS),
        ),
    ),
    objective=labels_objective,
    demand=_demand,
    judge=HiddenSpans("denoise"),
    defaults=(_EXTRA,),
    command="fill",
    given='"… [MASK] …"',
)
