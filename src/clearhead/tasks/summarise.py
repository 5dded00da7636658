"""Long texts with short summaries: as translation, except for lengths and metrics."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import JoinedPairs, Pairs
from clearhead.evaluation.judges import Summaries
from clearhead.tasks.task import CUT, Family, Task, labels_objective
from clearhead.tasks.translate import pairs_demand
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="summarise",
    sources=("document", "article", "dialogue", "body", "text", "content", "source", "src", "input"),
    targets=("summary", "highlights", "subject", "subject_line", "title", "target", "tgt", "output"),
    noun="pairs",
)


def _demand(facts: Facts, family: Family) -> Demand:
    both = (facts.source_tokens + facts.target_tokens) // 2
    return pairs_demand(facts, family, both, Passes(60, 0.5, 100), Rate(1e-3, 256, 0.5))


SUMMARISE = Task(
    name="summarise",
    columns=_COLUMNS,
    families=(
        Family("encoder-decoder", "an encoder reads the text, a decoder writes the summary", Pairs(_COLUMNS)),
        Family("recurrent", "the baseline before the Transformer", Pairs(_COLUMNS)),
        Family(
            "convolutional",
            "convolutions read neighbouring tokens, attention reads the source",
            Pairs(_COLUMNS),
        ),
        Family("decoder", "text and summary in one sequence", JoinedPairs(_COLUMNS)),
    ),
    objective=labels_objective,
    demand=_demand,
    judge=Summaries("summarise"),
    defaults=(
        CUT,
        Choice("data.filter.source_tokens", 512, "attention grows with the square of the length"),
    ),
)
