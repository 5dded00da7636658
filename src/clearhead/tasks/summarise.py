"""Long texts with short ones that say the same: as translation, but for lengths and for how it is judged."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import JoinedPairs, Pairs
from clearhead.evaluation.judges import Summaries
from clearhead.tasks.task import CUT, ROTARY, Family, Task, labels_objective
from clearhead.tasks.translate import ACCURACY
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="summarise",
    sources=("document", "article", "dialogue", "body", "text", "content", "source", "src", "input"),
    targets=("summary", "highlights", "subject", "subject_line", "title", "target", "tgt", "output"),
    noun="pairs",
)


def _demand(facts: Facts, family: Family) -> Demand:
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=max((facts.source_tokens + facts.target_tokens) // 2, 1),
        passes=Passes(60, 0.5, 100),
        rate=Rate(1e-3, 256, 0.5),
        consistency=2.0,
        smoothing=0.1,
        decay=0.0,
        model=(ROTARY,),
        judging=(ACCURACY,),
    )


SUMMARISE = Task(
    name="summarise",
    columns=_COLUMNS,
    families=(
        Family("encoder-decoder", "an encoder reads the text, a decoder writes the summary", Pairs(_COLUMNS)),
        Family("recurrent", "the baseline that the Transformer replaced", Pairs(_COLUMNS)),
        Family("decoder", "text and summary in one row", JoinedPairs(_COLUMNS)),
    ),
    objective=labels_objective,
    demand=_demand,
    judge=Summaries("summarise"),
    defaults=(
        CUT,
        Choice("data.filter.source_tokens", 512, "attention grows with the square of the length"),
    ),
)
