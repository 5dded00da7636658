"""Strict configs: what is refused, in which words, and that plain data round-trips."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.config import Config
from clearhead.base.errors import UserError, nearest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner(Config):
    _noun: ClassVar[str] = "attention"
    heads: int = 8
    scale: float | None = None
    kind: Literal["dot", "additive"] = "dot"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer(Config):
    _noun: ClassVar[str] = "model"
    width: int
    dropout: float = 0.1
    tied: bool = True
    name: str = ""
    attention: Inner = Inner()
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


def refused(plain: Any) -> str:
    with pytest.raises(UserError) as caught:
        Outer.from_dict(plain)
    return str(caught.value)


@pytest.mark.parametrize(
    "plain, sentence",
    [
        ({"widht": 1}, "Unknown model setting 'widht': did you mean 'width'?"),
        (
            {"width": 1, "attention": {"haeds": 2}},
            "Unknown attention setting 'attention.haeds': did you mean 'heads'?",
        ),
        ({}, "The model setting 'width' is missing."),
        ({"width": "8"}, "'width' must be of type int, not '8'."),
        ({"width": True}, "'width' must be of type int, not True."),
        ({"width": 1.0}, "'width' must be of type int, not 1.0."),
        ({"width": 1, "tied": 1}, "'tied' must be of type bool, not 1."),
        ({"width": 1, "attention": 3}, "attention must be a table of settings, not 3."),
        (
            {"width": 1, "attention": {"kind": "dto"}},
            "'attention.kind' cannot be 'dto': did you mean 'dot'? Known: dot, additive.",
        ),
        ({"width": 1, "attention": {"scale": "x"}}, "'attention.scale' must be of type float, not 'x'."),
        ({"width": 1, "sizes": 3}, "'sizes' must be a list, not 3."),
        ({"width": 1, "sizes": [1, "b"]}, "'sizes[1]' must be of type int, not 'b'."),
        ({"width": 1, "pair": [1]}, "'pair' must have 2 entries, not 1."),
        ({"width": 1, "extra": []}, "'extra' must be a table, not []."),
        ([], "model must be a table of settings, not []."),
    ],
)
def test_refusals_say_what_and_where(plain: Any, sentence: str) -> None:
    assert refused(plain) == sentence


def test_a_far_off_key_lists_the_known_ones() -> None:
    assert "known: attention, dropout" in refused({"zzzzzz": 1})
    assert nearest("q", ["b", "a"]) == "known: a, b."


def test_whole_numbers_become_floats_where_floats_are_wanted() -> None:
    config = Outer.from_dict({"width": 1, "dropout": 0, "extra": {"a": 1}})
    assert isinstance(config.dropout, float)
    assert isinstance(config.extra["a"], float)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nothing(Config):
    count: int | None = 3
    text: str | None = None
    form: Literal["none", "nfc"] = "nfc"
    both: Literal["none", "nfc"] | None = "nfc"


def test_none_is_what_the_setting_means_by_it() -> None:
    """TOML has no null, and `--set a=none` cannot know whether a name or nothing is meant."""
    written = Nothing.from_dict({"count": "none", "text": "none", "form": "none", "both": "none"})
    assert written == Nothing(count=None, text="none", form="none", both="none")
    said = Nothing.from_dict({"count": None, "text": None, "form": None, "both": None})
    assert said == Nothing(count=None, text=None, form="none", both=None)
    with pytest.raises(UserError, match="must be of type int, not 'None'"):
        Nothing.from_dict({"count": "None"})


def test_replace_reaches_inside() -> None:
    config = Outer(width=4)
    assert config.replace(attention__heads=2).attention.heads == 2
    assert config.replace(**{"attention.heads": 2, "width": 8}).width == 8
    assert config.attention.heads == 8
    for path in ("attention.haeds", "atention.heads", "width.heads"):
        with pytest.raises(UserError, match=path):
            config.replace(**{path: 1})
    with pytest.raises(UserError, match="must be of type int"):
        config.replace(width="wide")


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Outer(width=4).width = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        Outer(4)  # type: ignore[call-arg, misc]


finite = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(
    Inner, heads=st.integers(), scale=st.none() | finite, kind=st.sampled_from(["dot", "additive"])
)
outers = st.builds(
    Outer,
    width=st.integers(),
    dropout=finite,
    tied=st.booleans(),
    name=st.text(),
    attention=inners,
    sizes=st.lists(st.integers(), max_size=4).map(tuple),
    pair=st.tuples(st.integers(), st.text()),
    extra=st.dictionaries(st.text(), finite, max_size=3),
)


@given(outers)
def test_round_trip_through_json(config: Outer) -> None:
    assert Outer.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(outers, st.text(min_size=1))
def test_no_unknown_key_is_ever_swallowed(config: Outer, key: str) -> None:
    plain = config.to_dict()
    if key not in plain:
        assert f"Unknown model setting '{key}'" in refused({**plain, key: 1})
