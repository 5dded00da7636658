"""The table of worked examples: name → the slide's input and how to recompute it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from clearhead.base.errors import UserError, nearest
from clearhead.lectures import attention, layers, positions, questions
from clearhead.lectures.step import SOURCES, Mark, Source, Step, as_table

Recompute = Callable[[Source], list[Step]]

RECOMPUTE: dict[str, Recompute] = {
    "tutorial-self-attention": attention.tutorial_self_attention,
    "cat-monkey-dog": questions.cat_monkey_dog,
    "projection-parameters": attention.projection_parameters,
    "cross-attention-questions": questions.cross_attention_questions,
    "position-guidelines": questions.position_guidelines,
    "which-architecture": questions.which_architecture,
    "projections": attention.projections,
    "self-attention-steps": attention.self_attention_steps,
    "attention-matrix-operations": attention.attention_matrix_operations,
    "multi-head-split": layers.multi_head_split,
    "sinusoidal-positions": positions.sinusoidal_positions,
    "training-and-inference": layers.training_and_inference,
    "whole-model": layers.whole_model,
    "masked-attention-quiz": attention.masked_attention_quiz,
    "which-is-correct": questions.which_is_correct,
    "look-up-table": questions.look_up_table,
    "dot-product-growth": attention.dot_product_growth,
    "softmax-gradient": questions.softmax_gradient,
    "layer-norm": layers.layer_norm,
    "rotary-distance": positions.rotary_distance,
    "contextual-apple": attention.contextual_apple,
    "apple-sentence-two": attention.apple_sentence_two,
    "basic-self-attention": questions.basic_self_attention,
    "masked-self-attention": attention.masked_self_attention,
    "cross-attention-student": layers.cross_attention_student,
    "keras-sizes": layers.keras_sizes,
    "reading-range": questions.reading_range,
}


@dataclass(frozen=True)
class Example:
    """A worked example, recomputed."""

    name: str
    source: Source
    steps: list[Step]

    def given(self) -> list[Step]:
        """The matrices the example starts from, as steps without a computation."""
        matrices = {name: x for name, x in self.source.inputs.items() if _is_matrix(x)}
        return [Step(name, "given", as_table(matrix)) for name, matrix in matrices.items()]

    @property
    def erratum_at(self) -> int | None:
        """The first step at which the erratum is shown; None if there is none."""
        if self.source.erratum is None:
            return None
        named = [number for number, step in enumerate(self.steps) if step.name == self.source.erratum_step]
        faulty = [number for number, step in enumerate(self.steps) if any(step.faults())]
        return [*named, *faulty, len(self.steps) - 1][0]

    def marks(self) -> Counter[Mark]:
        """How many printed numbers are right, wrong, …"""
        return Counter(mark for step in self.steps for row in step.marks() for mark in row)


def _is_matrix(value: Any) -> bool:
    rows = value if isinstance(value, list) else []
    return bool(rows) and all(
        isinstance(row, list) and all(isinstance(x, int | float) for x in row) for row in rows
    )


def names() -> list[str]:
    """All examples, in the order of the lectures."""
    return list(RECOMPUTE)


def example(name: str) -> Example:
    """Recompute one example.

    >>> found = example("masked-attention-quiz")
    >>> found.steps[-1].name, found.steps[-1].table
    ('alpha_2_2', ((0.5,),))
    """
    if name not in RECOMPUTE:
        raise UserError(f"There is no worked example '{name}': {nearest(name, RECOMPUTE)}")
    return Example(name, SOURCES[name], RECOMPUTE[name](SOURCES[name]))


def examples(name: str | None = None) -> list[Example]:
    """One example by name, or all of them."""
    return [example(one) for one in ([name] if name is not None else RECOMPUTE)]


def as_plain(one: Example) -> dict[str, Any]:
    """An example as plain data: each step with our numbers, the slide's, and a mark for each of those."""
    steps = [
        {
            "name": step.name,
            "formula": step.formula,
            "table": step.table,
            "printed": step.printed,
            "marks": [[mark.value for mark in row] for row in step.marks()],
            "note": step.note,
        }
        for step in [*one.given(), *one.steps]
    ]
    return {
        "name": one.name,
        "deck": one.source.deck,
        "title": one.source.title,
        "erratum": one.source.erratum,
        "steps": steps,
    }


def summary(found: Iterable[Example]) -> str:
    """One line: how many examples were recomputed, and how the printed numbers compare."""
    found = list(found)
    marks = sum((one.marks() for one in found), Counter[Mark]())
    noun = "example" if len(found) == 1 else "examples"
    numbers = f"{marks.total()} printed number{'' if marks.total() == 1 else 's'}"
    return (
        f"{len(found)} {noun} recomputed, {numbers}: {marks[Mark.WRONG]} wrong, "
        f"{marks[Mark.LAST_DIGIT]} off in the last digit, {marks[Mark.TRUNCATED]} truncated."
    )
