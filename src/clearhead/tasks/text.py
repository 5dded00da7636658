"""Several tasks in one model, as in T5: every task is text in, text out, and a prefix names the task.

Each corpus of a recipe has a `prefix` and an `answer`: the model writes translations and summaries, but also
names of classes and numbers.
"""

from __future__ import annotations

from clearhead.data.columns import Columns
from clearhead.data.encodings import JoinedPairs, Pairs
from clearhead.evaluation.mixture import Mixture
from clearhead.tasks.classify import COLUMNS as CLASSES
from clearhead.tasks.regress import REGRESS
from clearhead.tasks.summarise import SUMMARISE
from clearhead.tasks.task import Family, Task, labels_objective
from clearhead.tasks.translate import TRANSLATE

_KINDS = (TRANSLATE.columns, SUMMARISE.columns, CLASSES, REGRESS.columns)
_COLUMNS = Columns(
    task="text",
    sources=tuple(dict.fromkeys(name for one in _KINDS for name in one.sources)),
    targets=tuple(dict.fromkeys(name for one in _KINDS for name in one.targets)),
    noun="examples",
    languages=True,
    mixed=True,
)


TEXT = Task(
    name="text",
    columns=_COLUMNS,
    families=(
        Family("encoder-decoder", "an encoder reads any text, a decoder writes any answer", Pairs(_COLUMNS)),
        Family("decoder", "text and answer in one sequence", JoinedPairs(_COLUMNS)),
    ),
    objective=labels_objective,
    demand=SUMMARISE.demand,  # counts both sides, for either may be the long one
    judge=Mixture("text"),
    defaults=SUMMARISE.defaults,
)
