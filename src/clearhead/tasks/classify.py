"""A class for each text, or for two texts together."""

from __future__ import annotations

from dataclasses import replace

from clearhead.data.columns import Columns
from clearhead.data.encodings import Labels
from clearhead.evaluation.judges import Classes
from clearhead.tasks.task import CUT, Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import FEWEST_EPOCHS, SMALL, Choice, Demand, Facts

COLUMNS = Columns(
    task="classify",
    sources=("text", "sentence", "review", "content", "document", "body", "comment", "input", "source"),
    targets=("label", "labels", "class", "category", "sentiment", "target", "output"),
    target="class",
    pairs=True,
)


def text_demand(facts: Facts, family: Family) -> Demand:
    """The demand of any task with one answer per text, however long the text is."""
    tokens = max(min(facts.source_tokens, SMALL - 1), 1)
    passes = Passes(15, 0.5, 60)
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=tokens,
        passes=passes,
        rate=Rate(5e-4, 256, 0.5),
        by_heart=passes.over(tokens),
        fewest_passes=min(FEWEST_EPOCHS, passes.over(tokens) / 3),
        most_batch=8192,  # one answer per text: the number of updates matters more
        head=family.head,
        pooling="mean" if family.name == "encoder" else "last",
    )


def _demand(facts: Facts, family: Family) -> Demand:
    return replace(
        text_demand(facts, family),
        consistency=2.0,
        judging=(
            Choice("validation.metric", "f1", "counts right labels, with rare classes weighted equally"),
            Choice("validation.decode", 5000, "predicting a label costs a single forward pass"),
        ),
    )


def text_families(encoding: Labels, head: str) -> tuple[Family, ...]:
    """Every family that can read a whole text and answer once."""
    whole = "the model reads the whole text at once and gives one label"
    last = "the label is predicted at the last position, which has seen the whole text"
    return (
        Family("encoder", whole, encoding, head),
        Family("decoder", last, replace(encoding, family="decoder"), head),
        Family("encoder-decoder", last, replace(encoding, family="encoder-decoder"), head),
    )


CLASSIFY = Task(
    name="classify",
    columns=COLUMNS,
    families=text_families(Labels(COLUMNS), "classify"),
    objective=labels_objective,
    demand=_demand,
    judge=Classes("classify"),
    defaults=(CUT,),
    command="label",
)
