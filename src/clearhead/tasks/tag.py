"""A tag for each word of a text."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import Tags
from clearhead.evaluation.judges import WordTags
from clearhead.tasks.task import CUT, Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(
    task="tag",
    sources=("words", "tokens", "sentence", "text", "source"),
    targets=("tags", "ner_tags", "pos_tags", "labels", "target"),
    target="tags",
    noun="sentences",
)
_WHY = "the model reads the whole text at once and labels each word"


def _demand(facts: Facts, family: Family) -> Demand:
    reason = "accuracy is what counts; with little text the loss rises long before accuracy falls"
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=max(facts.source_tokens, 1),
        passes=Passes(40, 0.5, 100),
        rate=Rate(1e-3, 256, 0.5),
        head=family.head,
        judging=(Choice("validation.metric", "accuracy", reason),),
    )


TAG = Task(
    name="tag",
    columns=_COLUMNS,
    families=(Family("encoder", _WHY, Tags(_COLUMNS), "tag"),),
    objective=labels_objective,
    demand=_demand,
    judge=WordTags("tag"),
    defaults=(CUT,),
    command="label",
)
