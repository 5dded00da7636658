"""Pieces of music: predict every event from those before it."""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import Pieces
from clearhead.evaluation.music import Pieces as Judged
from clearhead.tasks.task import Family, Task, labels_objective
from clearhead.text.events import SIZE
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts

_COLUMNS = Columns(task="music", targets=("music",), noun="pieces", music=True)
CONTEXT = 512  # events; 32 beats of a chorale on a grid of sixteenths


def _demand(facts: Facts, family: Family) -> Demand:
    relative = Choice(
        "model.position.name", "music", "motifs recur at fixed distances, whatever the position"
    )
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=max(facts.target_tokens, 1),
        passes=Passes(40, 0.2, 100),
        rate=Rate(1e-3, 256, 0.5),
        rows=False,
        context=CONTEXT,
        model=(
            relative,
            Choice("model.position.max_distance", CONTEXT, "every distance in a chunk has its own vector"),
            Choice("model.embedding.scale", False, "nothing is added to the embedding"),
            Choice("model.feedforward.activation", "gelu", "usual for language models"),
            Choice("model.initialisation", "scaled", "usual for language models"),
        ),
    )


MUSIC = Task(
    name="music",
    columns=_COLUMNS,
    families=(Family("decoder", "each event is predicted from those before it", Pieces(_COLUMNS)),),
    objective=labels_objective,
    demand=_demand,
    judge=Judged("music"),
    defaults=(
        Choice("data.transpose", 5, "the same piece in eleven keys"),
        Choice("tokenizer.kind", "events", "music has a fixed vocabulary of events"),
        Choice("tokenizer.vocabulary", SIZE, "the number of events"),
    ),
    command="generate",
    given="--out piece.mid",
)
