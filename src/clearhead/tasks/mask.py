"""Pretraining: predict hidden tokens of long texts or documents from both sides (BERT).

BERT's second objective, whether one text follows another, is left out on purpose: RoBERTa, ALBERT and others
found that models do as well or better without it, and whole documents make longer contexts.
"""

from __future__ import annotations

from dataclasses import replace

from clearhead.data.columns import Columns
from clearhead.data.encodings import Masked
from clearhead.evaluation.hidden import HiddenTokens
from clearhead.tasks.generate import GENERATE, LONG_TEXT_MODEL
from clearhead.tasks.task import Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS: Columns = replace(GENERATE.columns, task="mask")
_EXTRA = Choice("tokenizer.extra", "mask", "a token that hides others")
CONTEXT = 128  # tokens of a chunk


def _demand(facts: Facts, family: Family) -> Demand:
    tokens = max(facts.target_tokens, 1)
    # every token is read, but few are predicted
    read = replace(facts, examples=-(-tokens // CONTEXT), source_tokens=tokens, target_tokens=0)
    return Demand(
        facts=read,
        family=family.name,
        why=family.why,
        tokens=tokens,
        passes=Passes(60, 0.2, 120),  # an epoch trains on one token in seven
        rate=Rate(1e-3, 256, 0.5),
        rows=False,
        context=CONTEXT,
        head=family.head,
        model=LONG_TEXT_MODEL,
    )


MASK = Task(
    name="mask",
    columns=_COLUMNS,
    families=(Family("encoder", "a hidden token is predicted from both sides", Masked(_COLUMNS), "mlm"),),
    objective=labels_objective,
    demand=_demand,
    judge=HiddenTokens("mask"),
    defaults=(_EXTRA,),
    command="fill",
    given='"… [MASK] …"',
)
