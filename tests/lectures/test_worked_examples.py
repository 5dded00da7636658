"""The worked examples: right numbers, errata exactly where the slides have them, a current page.

`recomputed.json` holds numbers that were computed independently of this library,
to four decimals, and `questions.json` those of the lectures' questions, each with as many digits as it is
sure of. Where the lectures' own file is at hand (`../shared` beside the
repository, or the folder `CLEARHEAD_SHARED` names), everything is compared with
that as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.cli import main as cli
from clearhead.lectures import SLIPS, Mark, Step, example, examples, names, summary, to_markdown
from clearhead.lectures.render import TOLERANCE, written
from clearhead.lectures.step import SOURCES, as_table, decimals_of, judge
from clearhead.nn.positions.check import CANDIDATES, check_position

ROOT = Path(__file__).parent.parent.parent
RECOMPUTED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("recomputed.json").read_text("utf-8")
)
QUESTIONS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("questions.json").read_text("utf-8")
)
SPELT_OUT = {4.0, 5.0, 6.0, 15.0}  # numbers of the lectures' errata that ours have as words
EXTRA = {"rotary-distance", "which-architecture"}  # without a recomputed entry

# Every printed number that is not right: (example, step) -> {(row, column): mark}. Where whole tables are
# wrong, only their count stands here.
RIGHT_EXAMPLES = {"projection-parameters", "masked-attention-quiz", "contextual-apple", "dot-product-growth"}
WORDS_ALONE = {
    *("contextual-apple", "apple-sentence-two", "basic-self-attention", "keras-sizes", "layer-norm"),
    *("multi-head-split", "softmax-gradient"),
}
FEW = {
    ("cat-monkey-dog", "S"): dict.fromkeys([(0, 1), (1, 1), (2, 1)], Mark.WRONG),
    ("whole-model", "PE"): {(7, 3): Mark.TRUNCATED},
    ("whole-model", "X_input"): {(7, 3): Mark.TRUNCATED},
    ("tutorial-self-attention", "S"): {(0, 1): Mark.WRONG, (1, 1): Mark.WRONG, (2, 1): Mark.WRONG},
    ("tutorial-self-attention", "H"): {
        (0, 1): Mark.WRONG,
        (1, 1): Mark.WRONG,
        (0, 0): Mark.LAST_DIGIT,
        (1, 0): Mark.TRUNCATED,
    },
    ("sinusoidal-positions", "PE"): {(4, 1): Mark.LAST_DIGIT, (7, 3): Mark.TRUNCATED},
    ("sinusoidal-positions", "sum"): {(4, 1): Mark.LAST_DIGIT, (7, 3): Mark.TRUNCATED},
    ("masked-self-attention", "weights"): {(1, 0): Mark.TRUNCATED, (2, 1): Mark.LAST_DIGIT},
    ("attention-matrix-operations", "output"): {  # 0.50 everywhere, where it is 0.49 or 0.51
        **dict.fromkeys([(0, 2), (2, 0), (2, 2), (4, 2)], Mark.LAST_DIGIT),
        **dict.fromkeys([(2, 1), (4, 1)], Mark.TRUNCATED),
    },
}
MANY = {  # (example, step) -> how many are wrong, off in the last digit, truncated
    ("whole-model", "weights_block"): (2, 5, 1),
    ("projections", "Q"): (8, 0, 0),
    ("projections", "K"): (12, 0, 0),
    ("projections", "V"): (10, 0, 0),
    ("self-attention-steps", "scores"): (15, 0, 0),
    ("self-attention-steps", "scaled"): (15, 0, 0),
    ("self-attention-steps", "weights"): (23, 0, 0),
    ("self-attention-steps", "output"): (8, 3, 0),
    ("attention-matrix-operations", "scores"): (21, 1, 0),
    ("attention-matrix-operations", "weights"): (21, 2, 1),
}


def steps(name: str) -> dict[str, Step]:
    return {step.name: step for step in example(name).steps}


def shared() -> dict[str, dict[str, Any]]:
    folder = Path(os.environ.get("CLEARHEAD_SHARED", ROOT.parent / "shared"))
    path = folder / "lectures.json"
    if not path.is_file():
        pytest.skip("the lectures' own file, lectures.json, is not here: set CLEARHEAD_SHARED to its folder")
    return {entry["id"]: entry for entry in json.loads(path.read_text("utf-8"))}


def assert_close(ours: Any, theirs: Any) -> None:
    """Within half a unit of the fourth decimal, which is as many as theirs have."""
    torch.testing.assert_close(
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(as_table(theirs), dtype=torch.float64),
        rtol=0,
        atol=0.5e-4 + 1e-9,
    )


def numbers_in(text: str) -> set[float]:
    return {float(number.replace("−", "-")) for number in re.findall(r"[−-]?\d+(?:\.\d+)?", text)}


# --- numbers -------------------------------------------------------------------------------------


def test_nothing_is_left_out() -> None:
    assert set(names()) == set(RECOMPUTED) | set(QUESTIONS) | EXTRA == set(SOURCES)
    assert len(set(names()) - {"rotary-distance"}) == 26


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in leaves(part)] if isinstance(value, list | tuple) else [value]


def slack(number: float) -> float:
    """Half a unit of the last digit that is given, and what float64 loses on the way."""
    if isinstance(number, int):
        return 1e-9
    text = repr(number)
    digits = text.partition("e")[0].partition(".")[2]
    exponent = int(text.partition("e")[2] or 0)
    return 0.5 * 10.0 ** (exponent - (0 if digits == "0" and abs(number) > 1e4 else len(digits))) + 1e-12


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_number_of_a_question(name: str) -> None:
    found = steps(name)
    for key, expected in QUESTIONS[name].items():
        ours, theirs = leaves(found[key].table), leaves(as_table(expected))
        assert len(ours) == len(theirs), key
        for one, other in zip(ours, theirs, strict=True):
            if other is not None:  # where nobody has computed it
                assert abs(one - other) <= slack(other) + 2e-6 * abs(other), (key, one, other)


def test_questions_against_the_lectures_own_file() -> None:
    """Every number that was recomputed there stands in one of our steps, to the digits given."""
    entries = shared()
    for name in QUESTIONS:
        entry, source = entries[name], SOURCES[name]
        assert (source.erratum is None) == (entry["erratum"] is None), name
        assert bool(source.question) == ("question" in entry), name
        assert bool(source.answer) == ("answer" in entry), name
        ours = [x for x in leaves(dict(source.inputs)) if isinstance(x, int | float)]
        for step in example(name).steps:
            scale = 1e-6 if step.name.endswith("_e6") else 1.0
            ours += [scale * x for x in leaves(step.table)]
            ours += [float(x) for x in numbers_in(step.note)]
        for number in leaves(entry["recomputed"]):
            if isinstance(number, int | float) and not isinstance(number, bool):
                near = slack(number) + 2e-6 * abs(number)
                assert any(abs(one - number) <= near for one in ours), (name, number)
    assert len(entries) == 27  # 26 examples and the list of slips


def test_the_slips_are_the_lectures_own() -> None:
    slips = shared()["errata_other"]["errata_other"]
    assert [(one.deck, one.kind) for one in SLIPS] == [(one["deck"], one["kind"]) for one in slips]
    for ours, theirs in zip(SLIPS, slips, strict=True):
        wanted = {number for number in numbers_in(theirs["printed"]) if number % 1}
        assert wanted <= numbers_in(ours.printed) | numbers_in(ours.right), theirs
        assert not ours.example or ours.example in SOURCES


def test_an_erratum_is_shown_at_its_step() -> None:
    for one in examples():
        if one.source.erratum_step:
            assert one.erratum_at is not None
            assert one.steps[one.erratum_at].name == one.source.erratum_step
        elif one.source.erratum:
            assert one.erratum_at is not None
            assert any(one.steps[one.erratum_at].faults())
            assert not any(any(step.faults()) for step in one.steps[: one.erratum_at])
        else:
            assert one.erratum_at is None
    page = to_markdown(examples("masked-self-attention"))
    assert page.index("`weights`") < page.index("**Erratum.**")


def test_the_slips_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "--slips"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{len(SLIPS)} slips.")
    assert shown.count("printed:") == shown.count("right:") == len(SLIPS)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_every_recomputed_number(name: str) -> None:
    found = steps(name)
    for key, expected in RECOMPUTED[name].items():
        assert_close(found[key].table, expected)


def test_against_the_lectures_own_file() -> None:
    entries = shared()
    for name in RECOMPUTED:  # the file holds further examples, which we do not have
        found, source, entry = steps(name), SOURCES[name], entries[name]
        recomputed = entry["recomputed"]
        rounded = recomputed.pop("output_two_decimals", None)
        if rounded is not None:
            assert [[written(x, 2) for x in row] for row in found["output"].table] == rounded
        for key, expected in recomputed.items():
            assert_close(found[key].table, expected)
        assert source.printed == entry["printed"], name
        missing = numbers_in(entry["erratum"] or "") - numbers_in(
            " ".join([source.erratum or "", *(step.note for step in found.values())])
        )
        assert not missing - SPELT_OUT, (name, missing)
        assert (source.erratum is None) == (entry["erratum"] is None), name
        given = {key.replace("_", "").lower(): value for key, value in source.inputs.items()}
        for key, value in entry["inputs"].items():
            if isinstance(value, list) and key != "pairs":
                assert given[key.lower()] == value, (name, key)


def test_ours_against_the_lectures_file_where_it_has_them_by_another_name() -> None:
    entries = shared()
    cases = entries["keras-sizes"]["recomputed"]["h3 k2"]
    keras = steps("keras-sizes")
    assert SOURCES["keras-sizes"].inputs["tokens"] == entries["keras-sizes"]["inputs"]["tokens"]
    assert keras["shapes"].table == tuple(map(tuple, cases["weights"]))
    assert keras["parameters"].table[0][1] == cases["parameters"]
    assert keras["weights"].table[1][:3] == tuple(cases["scores"][1:])
    brand = entries["apple-sentence-two"]
    apple = steps("contextual-apple")
    assert list(apple["weights_brand"].columns) == brand["inputs"]["words"]
    assert_close(apple["weights_brand"].table, [round(x, 4) for x in brand["recomputed"]["row"]])
    candidates = entries["position-guidelines"]["recomputed"]
    for name, entry in zip(CANDIDATES, ("PE1", "PE2", "PE3, t <= T_max"), strict=True):
        report = check_position(name)
        assert {rule: bool(getattr(report, rule)) for rule in candidates[entry]} == candidates[entry]
    gap = candidates["PE3 in numbers"]["smallest gap (largest feature difference), always between 0 and 1"]
    assert check_position(list(CANDIDATES)[2]).unique.witness["gap"] == pytest.approx(gap[2], rel=1e-5)


def test_the_quiz_has_an_answer() -> None:
    note = steps("masked-attention-quiz")["alpha_2_2"].note
    assert note.startswith("Answer B")
    assert "0.3995" in note


def test_the_printed_weights_of_the_matrix_example_do_not_give_the_printed_output() -> None:
    """The erratum's figure: ten of fifteen entries, when rounded to the two printed decimals."""
    source = SOURCES["attention-matrix-operations"]
    found = torch.tensor(source.printed["weights"]).double() @ torch.tensor(source.inputs["V"]).double()
    missed = [written(x, 2) for x in found.flatten().tolist()]
    assert sum(text != "0.50" for text in missed) == 10
    assert "ten entries" in (source.erratum or "")


def test_weights_are_weights() -> None:
    for name in ("self-attention-steps", "attention-matrix-operations", "masked-self-attention"):
        for row in steps(name)["weights"].table:
            assert sum(row) == pytest.approx(1)


def test_apple_by_softmax() -> None:
    """The deck says softmax but divides by the row's sum: both are shown."""
    found = steps("contextual-apple")
    assert found["weights_fruit"].table[0] == pytest.approx((0, 0, 0.2, 0, 0.8))
    assert found["softmax_fruit"].table[0][2] == pytest.approx(0.183, abs=5e-4)
    assert found["softmax_fruit"].table[0][4] == pytest.approx(0.388, abs=5e-4)


def test_keras_shapes() -> None:
    found = steps("keras-sizes")
    assert found["shapes"].table == (
        *((16, 3, 2), (3, 2)) * 3,
        (3, 2, 16),
        (16,),
    )
    assert found["parameters"].table == ((150, 418, 1021),)


def test_rotary_scores_do_not_move_and_sinusoidal_ones_do() -> None:
    found = steps("rotary-distance")
    assert max(abs(x) for row in found["rotary_moved"].table for x in row) < 1e-9
    assert min(abs(x) for row in found["sinusoidal_moved"].table for x in row) > 1e-3
    assert_close(found["at_0"].table, found["at_7"].table)


# --- errata --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_printed_numbers_are_flagged_exactly_where_they_are_wrong(name: str) -> None:
    for step in example(name).steps:
        faults = {(i, j): mark for i, j, mark in step.faults()}
        key = (name, step.name)
        if key in MANY:
            found = [list(faults.values()).count(m) for m in (Mark.WRONG, Mark.LAST_DIGIT, Mark.TRUNCATED)]
            assert tuple(found) == MANY[key], key
        else:
            assert faults == FEW.get(key, {}), key


def test_an_example_with_faults_says_why_and_one_without_does_not() -> None:
    for one in examples():
        wrong = any(mark is not Mark.RIGHT for mark in one.marks())
        if one.name in WORDS_ALONE:  # a word or a formula is wrong there, not the numbers
            assert one.source.erratum is not None
            assert not wrong
        else:
            assert wrong == (one.source.erratum is not None), one.name
        assert not (wrong and one.name in RIGHT_EXAMPLES)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_marks_by_another_rule(name: str) -> None:
    """Against the independent numbers: right means equal when those are rounded to the printed decimals."""
    for key, printed in SOURCES[name].printed.items():
        table, decimals = as_table(printed), decimals_of(as_table(printed))
        for row, theirs, marks in zip(
            table, as_table(RECOMPUTED[name][key]), steps(name)[key].marks(), strict=True
        ):
            for text, other, mark in zip(row, theirs, marks, strict=True):
                number = float(text)
                clear = abs(abs(number - other) - 0.5 * 10**-decimals) > 1e-4  # four decimals decide it
                if clear:
                    right = abs(number - other) < 0.5 * 10**-decimals
                    assert (mark is Mark.RIGHT) == right, (name, key, number, other)


@pytest.mark.parametrize(
    "printed, ours, decimals, mark",
    [
        (0.5, 0.5, 1, Mark.RIGHT),
        (0.14, 0.13998, 3, Mark.RIGHT),
        (8, 8.0, 0, Mark.RIGHT),
        (-0.99, -0.98999, 2, Mark.RIGHT),
        (0.37, 0.3775, 2, Mark.TRUNCATED),
        (-0.37, -0.3775, 2, Mark.TRUNCATED),
        (-0.66, -0.6536, 2, Mark.LAST_DIGIT),
        (1.01, 0.99, 2, Mark.WRONG),
        (0, 0.1978, 3, Mark.WRONG),
        (7, 8, 0, Mark.LAST_DIGIT),
    ],
)
def test_judging(printed: float, ours: float, decimals: int, mark: Mark) -> None:
    assert judge(printed, ours, decimals) is mark


# --- what is shown -------------------------------------------------------------------------------


def test_the_page_in_the_documentation_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "--markdown"]) == 0
    page = capsys.readouterr().out
    assert page == to_markdown(examples())
    assert TOLERANCE in page
    assert "within 0.00005" in TOLERANCE
    assert (ROOT / "docs" / "worked-examples.md").read_text("utf-8") == page, "run `make docs`"


def test_all_examples_on_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clearhead", "examples"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    for name in names():
        assert any(line.startswith(f"{name} · ") for line in lines)
        erratum = SOURCES[name].erratum
        assert erratum is None or erratum in " ".join(done.stdout.split())
    assert TOLERANCE in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout  # plain text where it is no terminal
    assert max(map(len, lines)) <= 100
    assert "  0.2483  0.4011  0.2840     0.248  0.500✗   0.284" in lines
    assert "  0.7517  0.8022  0.8600    0.751↓  1.000✗   0.860" in lines
    assert lines[-1] == (
        "27 examples recomputed, 477 printed numbers: 143 wrong, 19 off in the last digit, 10 truncated."
    )


def test_one_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "masked-attention-quiz"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("masked-attention-quiz · L9")
    assert shown.count(" · L") == 1
    assert "−∞" in shown
    assert shown.endswith(
        "\n1 example recomputed, 1 printed number: 0 wrong, 0 off in the last digit, 0 truncated.\n"
    )
    assert summary([example("masked-attention-quiz")]) in shown


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "--list", "--json"]) == 2
    assert capsys.readouterr().err == "clearhead: Choose one of --json, --markdown, --list and --slips.\n"
    assert cli.main(["examples", "masked-attention-quiz", "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    ours = {step["name"]: step["table"] for step in plain["steps"]}
    assert ours["alpha_2_2"] == [[0.5]]
    assert cli.main(["quiz", "masked-attention-quiz", "--json"]) == 0
    (asked,) = json.loads(capsys.readouterr().out)
    assert asked["question"] == SOURCES["masked-attention-quiz"].question
    assert cli.main(["examples", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names()


def test_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "contextual-aple"]) == 2
    assert capsys.readouterr().err == (
        "clearhead: There is no worked example 'contextual-aple': did you mean 'contextual-apple'?\n"
    )
    with pytest.raises(UserError, match="did you mean"):
        example("projection")
