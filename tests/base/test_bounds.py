"""No number in any config is without bounds: what nobody can mean is a sentence that names the setting."""

from __future__ import annotations

import dataclasses
import importlib
import math
import typing
from pathlib import Path
from typing import Any

import pytest

import clearhead
from clearhead.base.config import Config, numbers_in
from clearhead.base.errors import UserError

# what a config cannot do without, to be built at all
NEEDED: dict[str, dict[str, Any]] = {"RotaryScaling": {"kind": "linear", "factor": 2.0}}
SOURCES = {"CorpusConfig": {"file": "a.tsv"}}
# these say it in sentences of their own: decoding beside what excludes what, a framing beside its template
OWN_SENTENCES = ("Options", "Framing")


def configs() -> list[type[Config]]:
    """Every config of the package: all files that define one are imported."""
    root = Path(clearhead.__file__).parent
    for file in root.rglob("*.py"):
        if "(Config):" in file.read_text(encoding="utf-8"):
            importlib.import_module(".".join(["clearhead", *file.relative_to(root).with_suffix("").parts]))
    kinds = [kind for kind in Config.__subclasses__() if kind.__module__.startswith("clearhead.")]
    return sorted(kinds, key=lambda kind: kind.__qualname__)


def numbers() -> list[tuple[type[Config], str, Any]]:
    """Every setting that is a number, or a list of numbers, of every config there is."""
    return [
        (kind, field.name, typing.get_type_hints(kind, include_extras=True)[field.name])
        for kind in configs()
        for field in dataclasses.fields(kind)
        if kind.__name__ not in OWN_SENTENCES
        and numbers_in(typing.get_type_hints(kind, include_extras=True)[field.name])
    ]


def test_every_number_has_bounds_and_refuses_what_lies_outside_by_its_full_name() -> None:
    walked = numbers()
    assert len(walked) > 70  # all of a run's, at the least
    for kind, name, hint in walked:
        for number, bounds in numbers_in(hint):
            label = f"{kind.__name__}.{name}"
            assert bounds is not None, f"{label} says nothing about how large it may be"
            assert math.isfinite(bounds.low), label
            assert math.isfinite(bounds.high), label
            absurd: list[Any] = [-(10**18), 10**30, 10**400]
            if number is float:
                absurd += [math.nan, math.inf, -math.inf, -1e300, 1e300]
            for value in absurd:
                wrong = [value, value] if typing.get_origin(hint) is tuple else value
                plain = {**NEEDED.get(kind.__name__, {}), **SOURCES.get(kind.__name__, {}), name: wrong}
                with pytest.raises(UserError) as caught:
                    kind.from_dict(plain, "a.b")
                # of a list, the item that is wrong
                assert f"'a.b.{name}' must be" in str(caught.value).replace("[0]'", "'"), label
                with pytest.raises(UserError) as caught:
                    kind.check_names({name: wrong}, "a.b")
                assert f"'a.b.{name}' must be" in str(caught.value).replace("[0]'", "'"), label
                with pytest.raises(UserError, match=f"setting '{name}' must be"):
                    kind(**{**plain, name: tuple(wrong) if isinstance(wrong, list) else wrong})


@pytest.mark.parametrize(
    "plain, sentence",
    [
        (
            {"data": {"split": {"validation": 1.5}}},
            "'data.split.validation' must be a whole number from 0 to 2147483647 or at least 0 and below 1, "
            "not 1.5.",
        ),
        ({"model": {"dropout": 1.0}}, "'model.dropout' must be at least 0 and below 1, not 1.0."),
        ({"optimiser": {"betas": [0.9, 1]}}, "'optimiser.betas' must be at least 0 and below 1, not 1."),
        ({"model": {"norm": {"eps": -1}}}, "'model.norm.eps' must be above 0 and at most 1, not -1."),
        ({"saving": {"every": 0}}, "'saving.every' must be a whole number from 1 to 2147483647, not 0."),
        ({"steps": "9" * 500}, f"'steps' must be of type int, not '{'9' * 59}… (502 characters)."),
        ({"steps": 10**5000}, "not a number of more than 4,000 digits."),
    ],
)
def test_sentences_of_a_whole_run(plain: dict[str, Any], sentence: str) -> None:
    from clearhead.training.config import TrainConfig

    with pytest.raises(UserError) as caught:
        TrainConfig.check_names(plain)
    assert str(caught.value).endswith(sentence)
    assert len(str(caught.value)) < 200
