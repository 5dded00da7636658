"""What ranks find who judge models together: every kind of answer, and an error on one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clearhead.base.errors import UserError
from clearhead.evaluation.evaluate import EvaluationConfig
from clearhead.tasks import TASKS
from clearhead.training.distributed.ranks import Ranks

from ...decoding.bundles import ENGLISH, FRENCH, labeller, translator, writer

COUNT = 7  # rows, which four ranks cannot share evenly
SOURCES = [*ENGLISH, *(" ".join(reversed(text.split())) for text in ENGLISH)][:COUNT]
# task → its bundle, and what would be right
ASKED: dict[str, Any] = {
    "translate": (translator, (FRENCH * 2)[:COUNT]),
    "summarise": (translator, (FRENCH * 2)[:COUNT]),
    "generate": (writer, ["abc def\n", "gh\n", "a\n", "bad\n", "cab\n", "fed\n", "egg\n"]),
    "classify": (lambda: labeller("classify", ["good", "bad"]), (["good", "bad"] * 4)[:COUNT]),
    "tag": (lambda: labeller("tag", ["x", "y"]), [" ".join("x" for _ in text.split()) for text in SOURCES]),
    "regress": (lambda: labeller("number", []), [str(1.5 * len(text)) for text in SOURCES]),
}


def judge_all(ranks: Ranks) -> dict[str, Any]:
    """Test sets and validations of all tasks; of one with two rows too, which are fewer than the ranks."""
    found: dict[str, Any] = {}
    for task, (make, right) in ASKED.items():
        bundle, judge = make(), TASKS[task].judge
        rows = [("" if task == "generate" else text, one) for text, one in zip(SOURCES, right, strict=True)]
        small = EvaluationConfig(beam=2, batch_tokens=12)  # batches of a row or two
        whole = judge(bundle, rows, small, ranks=ranks)
        few = judge(bundle, rows[:2], ranks=ranks)
        validated = judge.validate(bundle, rows, 3, ranks)
        found[task] = [whole.metrics, whole.outputs, few.metrics, few.outputs, *validated]
    return found


def fail_on_one(ranks: Ranks) -> str:
    """What this rank hears of an error that the share of rank 1 runs into."""

    def work(items: Iterable[int]) -> list[int]:
        if ranks.rank == 1:
            raise UserError("The second share cannot be done.")
        return list(items)

    try:
        ranks.shared(range(9), work)
    except UserError as error:
        return str(error)
    return ""
