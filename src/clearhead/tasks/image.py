"""A class for each picture: a vision Transformer from scratch."""

from __future__ import annotations

from clearhead.base.errors import counted
from clearhead.data.columns import Columns
from clearhead.data.encodings import Pictures
from clearhead.evaluation.judges import PictureClasses
from clearhead.tasks.task import Family, Task, labels_objective
from clearhead.training.sizes import Passes, Rate
from clearhead.training.sizing import Choice, Demand, Facts, PictureFacts

COLUMNS = Columns(
    task="image", sources=("image",), targets=("label",), target="class", noun="pictures", pictures=True
)


def _demand(facts: Facts, family: Family) -> Demand:
    picture = facts.picture or PictureFacts()
    tokens = max(facts.source_tokens // 4, 1)  # adjacent patches carry nearly the same information
    passes = Passes(7, 0.5, 60)
    return Demand(
        facts=facts,
        family=family.name,
        why=family.why,
        tokens=tokens,
        passes=passes,
        rate=Rate(5e-4, 256, 0.5),
        by_heart=passes.over(tokens),
        fewest_passes=passes.over(tokens) / 3,
        most_batch=16_384,
        head=family.head,
        model=(
            Choice("model.image.size", picture.side, "side length of the pictures in pixels"),
            Choice("model.image.channels", picture.channels, "1: grey, 3: colour"),
            Choice(
                "model.image.patch", picture.patch, f"about {counted(picture.patches, 'token')} per picture"
            ),
            Choice("model.image.class_token", False, "the mean of all patches needs none"),
            Choice(
                "model.head.pooling", "mean", "every patch contributes, which takes fewer pictures to learn"
            ),
            Choice(
                "model.position.name",
                "sinusoidal",
                "distinct from the first step; learned ones start too small",
            ),
            Choice("model.feedforward.activation", "gelu", "as in vision Transformers"),
        ),
        judging=(
            Choice("validation.metric", "accuracy", "counts right classes"),
            Choice("validation.decode", 200, "some predictions to look at; all of them are scored anyway"),
        ),
    )


IMAGE = Task(
    name="image",
    columns=COLUMNS,
    families=(
        Family("vision", "the picture is cut into patches, each a token", Pictures(COLUMNS), "classify"),
    ),
    objective=labels_objective,
    demand=_demand,
    judge=PictureClasses("image"),
    command="label",
    given="picture.png",
)
