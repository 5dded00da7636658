"""Strict configuration: frozen dataclasses that survive a round trip through JSON.

A config is a frozen, keyword-only dataclass next to the code it configures. The type of each number states
its bounds (`steps: Count`, `dropout: Share`); a test checks every number. Reading is strict: an unknown key
names the nearest known one, a value of the wrong type names the field and the expected type, and NaN and
infinity are outside all bounds. Knows nothing about files, models or the command line.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from clearhead.base.errors import UserError, nearest, shown

Plain = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Annotates a setting that is a config, `Annotated[SomeConfig, Kinds(…)]`: its `kind` chooses the class.

    Each class is a subclass of `SomeConfig` whose own `kind` is the name passed to `find`.
    """

    find: Callable[[str], type[Config]]  # raises UserError for an unknown name


def _chosen(hint: Any, value: Any) -> Any:
    """The class that reads a value: the one its `kind` names if the hint is annotated with `Kinds`."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    base, *notes = typing.get_args(hint)
    kinds = [note for note in notes if isinstance(note, Kinds)]
    if not kinds:
        return hint
    if not isinstance(value, Mapping) or "kind" not in value:
        return base
    # `--set a.kind=none` may mean either None or "none"
    name = "none" if value["kind"] is None else value["kind"]
    return kinds[0].find(name) if isinstance(name, str) else base


def _kinds_with(cls: type[Any], name: str) -> str:
    """The end of a sentence if a setting belongs to configs of another `kind`; else nothing."""
    roots = [one for one in cls.__mro__ if "kind" in vars(one).get("__annotations__", {})]
    family: list[Any] = [roots[-1]] if roots else []
    for one in family:
        family += one.__subclasses__()
    kinds = sorted({f"'{one.kind}'" for one in family if name in _hints(one)})
    return f"it belongs to the kind {' or '.join(kinds)}." if kinds else ""


def _find_hints(kind: Any) -> dict[str, Any]:
    """The types of a config's settings."""
    every = typing.get_type_hints(kind, include_extras=True)
    return {field.name: every[field.name] for field in dataclasses.fields(kind)}


def _find_bounded(kind: Any) -> dict[str, Any]:
    """The settings of a config whose types state bounds."""
    return {
        name: hint for name, hint in _hints(kind).items() if any(bounds for _, bounds in numbers_in(hint))
    }


# Cached, since computing them takes milliseconds; typed, since mypy does not consider a dataclass hashable.
_hints: Callable[[Any], dict[str, Any]] = cache(_find_hints)
_bounded: Callable[[Any], dict[str, Any]] = cache(_find_bounded)


def numbers_in(hint: Any) -> list[tuple[type, Bounds | None]]:
    """The number types that a type hint allows, each with its bounds, if any."""
    if typing.get_origin(hint) is Annotated:
        base, *notes = typing.get_args(hint)
        bounds = [note for note in notes if isinstance(note, Bounds)]
        return [(kind, bounds[0] if bounds else own) for kind, own in numbers_in(base)]
    if hint in (int, float):
        return [(hint, None)]
    if isinstance(hint, type) or typing.get_origin(hint) is typing.Literal:
        return []
    return [found for inner in typing.get_args(hint) for found in numbers_in(inner)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base class of every config.

    `_noun` is what messages call this kind of config ("attention", "model"). The type of every number states
    its bounds (`Count`, `Share`, … of `bounds`); subclasses may extend `__post_init__` to refuse settings
    that do not work together.
    """

    _noun: ClassVar[str] = "config"

    def __post_init__(self) -> None:
        for name, hint in _bounded(type(self)).items():
            _check_numbers(getattr(self, name), hint, f"The {self._noun} setting '{name}'")

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], path: str = "") -> Self:
        """Build from plain data; every key must be known and every value of the right type."""
        values: Plain = {
            key: _convert(value, hint, where) for key, value, hint, where in cls._known(plain, path)
        }
        needed = [
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
            and field.name not in values
        ]
        if needed:
            where = f" in {path}" if path else ""
            raise UserError(f"The {cls._noun} setting '{needed[0]}' is missing{where}.")
        return cls(**values)

    @classmethod
    def check_names(cls, plain: Mapping[str, Any], path: str = "") -> None:
        """Refuse unknown names and values of the wrong type, at any depth, without building anything.

        For settings that others will complete before they must fit together.
        """
        for _, value, hint, where in cls._known(plain, path):
            if isinstance(hint, type) and issubclass(hint, Config):
                hint.check_names(value, where)
            else:
                _convert(value, hint, where)

    @classmethod
    def _known(cls, plain: Any, path: str) -> Iterator[tuple[str, Any, Any, str]]:
        """Each name in a table with its value, type and path; refuses unknown names."""
        if not isinstance(plain, Mapping):
            raise UserError(f"{path or cls._noun} must be a table of settings, not {shown(plain)}.")
        hints = _hints(cls)
        for key, value in plain.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in hints:
                known = _kinds_with(cls, str(key)) or nearest(str(key), hints)
                raise UserError(f"Unknown {cls._noun} setting '{where}': {known}")
            yield key, value, _chosen(hints[key], value), where

    def _refuse_other_kind(self) -> None:
        """Refuse another `kind` than that of the class, if `kind` chooses the class (see `Kinds`)."""
        kind, own = getattr(self, "kind", None), getattr(type(self), "kind", None)
        if kind != own:
            raise UserError(
                f"{type(self).__name__} has the settings of the {self._noun} '{own}', not of '{kind}'."
            )

    def to_dict(self) -> Plain:
        """Plain data (dict, list, str, int, float, bool, None) that `from_dict` reads back."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed; `a__b=1` or `{"a.b": 1}` reach into nested configs.

        All changes are made together and checked once, so their order does not matter.
        """
        return self._changed(changes, "")

    def _changed(self, changes: Plain, path: str) -> Self:
        nested: dict[str, Plain] = {}
        direct: Plain = {}
        hints = _hints(type(self))
        for key, value in changes.items():
            name, _, rest = key.replace("__", ".").partition(".")
            if name not in hints:
                raise UserError(f"Unknown {self._noun} setting '{path}{key}': {nearest(name, hints)}")
            if rest:
                nested.setdefault(name, {})[rest] = value
            else:
                direct[name] = _convert(value, hints[name], path + key)
        for name, inner in nested.items():
            config = direct.get(name, getattr(self, name))
            if not isinstance(config, Config):
                whole = f"{path}{name}.{next(iter(inner))}"
                raise UserError(
                    f"There is no setting '{whole}': '{name}' is a single value and has no settings "
                    "inside it."
                )
            kind = _chosen(hints[name], inner)
            other = "kind" in inner and kind is not hints[name]
            if other and type(config) is not kind:  # settings of another kind
                shared = {field.name for field in dataclasses.fields(kind)} - {"kind"}
                config = kind(**{key: value for key, value in vars(config).items() if key in shared})
            direct[name] = config._changed(inner, f"{path}{name}.")
        return dataclasses.replace(self, **direct)


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Check `value` against a type hint; ints become floats and dicts become configs where wanted."""
    hint = _chosen(hint, value)
    origin = typing.get_origin(hint)
    options = typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return _convert_number(value, options, where)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, options, where)
    if origin is typing.Literal:
        if value in options and not isinstance(value, bool):
            return value
        if value is None and "none" in options:  # `--set a=none` may mean either None or "none"
            return "none"
        known = [str(option) for option in options]
        help = nearest(str(value), known)
        if help.startswith("did") and len(known) <= FEW:  # the nearest by spelling may not be what is meant
            help += f" Known: {', '.join(known)}."
        raise UserError(f"'{where}' cannot be {shown(value)}: {help}")
    if isinstance(hint, type) and issubclass(hint, Config):
        return value if isinstance(value, hint) else hint.from_dict(value, where)
    if origin is tuple:
        return _convert_tuple(value, options, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"'{where}' must be a table, not {shown(value)}.")
        return {str(key): _convert(item, options[1], f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    if isinstance(value, Mapping):
        raise UserError(f"'{where}' is of type {hint.__name__} and has no settings inside it.")
    raise UserError(f"'{where}' must be of type {hint.__name__}, not {shown(value)}.")


def _convert_number(value: Any, options: tuple[Any, ...], where: str) -> Any:
    """A number within its bounds, which are checked first, since 10^400 cannot become a float."""
    kind, *notes = options
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isinstance(value, (kind, int)):
        for bounds in notes:
            check(value, bounds, kind is int, f"'{where}'")
    return _convert(value, kind, where)


def _check_numbers(value: Any, hint: Any, where: str) -> None:
    """Check only the bounds of a value that was passed as it is."""
    if value is None:
        return
    if isinstance(value, (tuple, list)):
        for item in value:
            _check_numbers(item, hint, where)
        return
    numbers = [(kind, bounds) for kind, bounds in numbers_in(hint) if bounds]
    kind, bounds = next((one for one in numbers if isinstance(value, one[0])), numbers[-1])
    if len(numbers) == 1:
        check(value, bounds, kind is int, where)
    elif isinstance(value, str) or value not in bounds:
        raise UserError(f"{where} must be {_either(numbers)}, not {shown(value)}.")


def _either(numbers: list[tuple[type, Bounds]]) -> str:
    return " or ".join(bounds.words(kind is int) for kind, bounds in numbers)


def _convert_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in options:
        return None
    failure: UserError | None = None
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(value, option, where)
        except UserError as error:
            failure = failure or error
    if value == "none" and type(None) in options:  # TOML has no null
        return None
    numbers = [(kind, bounds) for kind, bounds in numbers_in(typing.Union[options]) if bounds]  # noqa: UP007
    if len(numbers) > 1 and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise UserError(f"'{where}' must be {_either(numbers)}, not {shown(value)}.")
    raise failure or UserError(f"'{where}' cannot be {shown(value)}.")


def _convert_tuple(value: Any, options: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise UserError(f"'{where}' must be a list, not {shown(value)}.")
    if len(options) == 2 and options[1] is Ellipsis:
        return tuple(_convert(item, options[0], f"{where}[{i}]") for i, item in enumerate(value))
    if len(value) != len(options):
        raise UserError(f"'{where}' must have {len(options)} entries, not {len(value)}.")
    return tuple(_convert(item, option, where) for item, option in zip(value, options, strict=True))


# -- bounds of numbers -----------------------------------------------------------------------------------


FEW = 8  # a message can name so many values
MOST = 2**31 - 1  # more than anybody needs, and fits where a count has 32 bits
LARGE = 1e9  # the same for numbers that are not counts


@dataclass(frozen=True)
class Bounds:
    """An interval; it includes its ends unless `above` or `below` says otherwise."""

    low: float
    high: float
    above: bool = False  # excludes low itself
    below: bool = False  # excludes high itself

    def __contains__(self, value: Any) -> bool:
        """NaN is in no interval, because every comparison with it is false."""
        over = value > self.low if self.above else value >= self.low
        return bool(over and (value < self.high if self.below else value <= self.high))

    def words(self, whole: bool) -> str:
        """As in "must be …".

        >>> Bounds(0, 1, below=True).words(whole=False)
        'at least 0 and below 1'
        >>> Bounds(1, 64).words(whole=True)
        'a whole number from 1 to 64'
        """
        if whole:
            return f"a whole number from {self.low} to {self.high}"
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low:g} and {high} {self.high:g}"


Count = Annotated[int, Bounds(1, MOST)]
CountOrZero = Annotated[int, Bounds(0, MOST)]
Seed = Annotated[int, Bounds(0, 2**32 - 1)]  # accepted by both numpy and torch
LongSeed = Annotated[int, Bounds(0, 2**64 - 1)]
Share = Annotated[float, Bounds(0, 1, below=True)]  # for dropout and the like: 1 would leave nothing
Fraction = Annotated[float, Bounds(0, 1)]
Positive = Annotated[float, Bounds(0, LARGE, above=True)]
PositiveOrZero = Annotated[float, Bounds(0, LARGE)]
Beam = Annotated[int, Bounds(1, 10_000)]
Threads = Annotated[int, Bounds(1, 4096)]  # `device.use_threads` knows how many this machine can run
POWERS = Bounds(-10, 10)  # of a length: beyond these, long texts have no finite score
Power = Annotated[float, POWERS]
Penalty = Annotated[float, Bounds(-LARGE, LARGE)]
Epsilon = Annotated[float, Bounds(0, 1, above=True)]  # prevents division by 0


def check(value: Any, bounds: Bounds, whole: bool, where: str) -> None:
    """Refuse a number outside its bounds, naming its full path."""
    try:
        inside = value in bounds
    except TypeError:  # not a number
        inside = False
    if not inside:
        raise UserError(f"{where} must be {bounds.words(whole)}, not {shown(value)}.")
