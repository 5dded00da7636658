"""The lectures' view holds the worked examples, all of them, and nothing that JSON cannot carry."""

from __future__ import annotations

import json
import math

from clearhead.explorer.lectures import lectures
from clearhead.lectures import Mark, examples


def test_every_example_is_there_with_its_own_numbers() -> None:
    found = lectures()["examples"]
    wanted = examples()
    assert "within 0.00005" in lectures()["tolerance"]
    assert [one["id"] for one in found] == [one.name for one in wanted]
    for one, example in zip(found, wanted, strict=True):
        assert one["title"] == example.source.title
        assert one["deck"] == example.source.deck
        assert one["note"] == example.source.about
        assert one["erratum"] == example.source.erratum
        steps = [*example.given(), *example.steps]
        assert [step["name"] for step in one["steps"]] == [step.name for step in steps]
        for plain, step in zip(one["steps"], steps, strict=True):
            ours = [list(row) for row in step.table]
            again = [[-math.inf if x is None else x for x in row] for row in plain["value"]]
            assert again == ours
            assert plain["printed"] == (None if step.printed is None else [list(row) for row in step.printed])
            assert plain["formula"] == step.formula


def test_wrong_numbers_are_marked_and_only_those() -> None:
    for one, example in zip(lectures()["examples"], examples(), strict=True):
        computed = [step for step in one["steps"] if not step["given"]]
        for plain, step in zip(computed, example.steps, strict=True):
            marks = step.marks()
            wrong = [
                [i, j] for i, row in enumerate(marks) for j, mark in enumerate(row) if mark is Mark.WRONG
            ]
            assert plain["wrong"] == wrong
            assert len(plain["marks"]) == sum(mark is not Mark.RIGHT for row in marks for mark in row)


def test_the_tutorials_wrong_column_is_found() -> None:
    steps = {step["name"]: step for step in lectures()["examples"][0]["steps"]}
    assert steps["S"]["wrong"] == [[0, 1], [1, 1], [2, 1]]  # exp(0) is 1, not 0
    assert steps["X"]["given"]
    assert steps["X"]["printed"] is None


def test_it_is_strict_json_and_masked_scores_are_null() -> None:
    text = json.dumps(lectures(), allow_nan=False)
    assert json.loads(text) == lectures()
    masked = [
        step["value"]
        for one in lectures()["examples"]
        for step in one["steps"]
        if step["name"] == "masked" and one["id"] == "masked-attention-quiz"
    ]
    assert [[x is None for x in row] for row in masked[0]] == [[j > i for j in range(4)] for i in range(4)]
