"""Write docs/settings.md from the configs themselves, so that the page cannot fall behind the code.

    python docs/write_settings.py            # writes the page
    python docs/write_settings.py --check    # says whether it is up to date

What stands beside a field in its source (a comment on its line, or the lines
above it) is what the page says about it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.base.config import Config
from clearhead.models.config import ModelConfig
from clearhead.nn.parts import ATTENTIONS, FEEDFORWARDS
from clearhead.training.config import TrainConfig

KINDS = {"attention": ATTENTIONS, "feedforward": FEEDFORWARDS}
PAGE = Path(__file__).resolve().parent / "settings.md"
HEAD = """# Every setting of a run

`make docs` writes this page from the code. In a recipe, a heading is a `[table]`; on the command line,
use `--set table.name=value`. What you do not set is chosen for you ([how](training.md#what-it-chooses)) or
has the default below. Write `"none"` for None.

"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(filter(None, (section(path, kind) for path, kind in tables(TrainConfig, ""))))


def tables(kind: type[Config], path: str) -> Iterator[tuple[str, type[Config]]]:
    """A config and those inside it, each with the path that leads to it, and none of them twice."""
    seen: set[type[Config]] = set()

    def walk(kind: type[Config], path: str) -> Iterator[tuple[str, type[Config]]]:
        if kind in seen:
            return
        seen.add(kind)
        yield path, kind
        for name, inner in inner_configs(kind).items():
            yield from walk(inner, f"{path}.{name}" if path else name)
            if kind is ModelConfig:
                for row in KINDS.get(name, {}).values():
                    if row.config not in seen and set(vars(row.config)["__annotations__"]) > {"kind"}:
                        yield from walk(row.config, f"{path}.{name}")

    yield from walk(kind, path)


def inner_configs(kind: type[Config]) -> dict[str, type[Config]]:
    """The fields of a config that are configs, or lists of them, or configs or nothing."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        options = [hint, *typing.get_args(hint)]
        inner = [one for one in options if isinstance(one, type) and issubclass(one, Config)]
        if inner and not name.startswith("_"):
            found[name] = inner[0]
    return found


def section(path: str, kind: type[Config]) -> str:
    """One table of settings."""
    said = comments(kind)
    inner = inner_configs(kind)
    own = set(vars(kind).get("__annotations__", {}))  # of a kind of part: what the usual one has not
    rows = [
        f"| `{field.name}` | {default_of(kind, field)} | {what_of(kind, field.name, said)} |"
        for field in dataclasses.fields(kind)
        if field.name not in inner and (field.name in own or is_usual(kind))
    ]
    if not rows:
        return ""
    title = f"`[{path}]`" if path else "Top level"
    if not is_usual(kind):
        title += f' with `kind = "{kind.__dataclass_fields__["kind"].default}"`'
    if path == "data.train":
        title = "`[[data.train]]`, `[data.validation]`, `[data.test]`"
    if path == "model.layer_pattern":
        title = "`[[model.layer_pattern]]`"
    about = (kind.__doc__ or "").strip().split("\n\n")[0].split(">>>")[0]
    head = ["| setting | default | meaning |", "|---|---|---|"]
    lines = [f"## {title}", "", " ".join(about.split()), "", *head]
    return "\n".join([*lines, *rows, ""])


def is_usual(kind: type[Config]) -> bool:
    """Whether a config is no other kind of one, of which the table shows what is new alone."""
    return Config in kind.__bases__


def default_of(kind: type[Config], field: dataclasses.Field[Any]) -> str:
    """A field's default as a recipe would write it; nothing where a recipe cannot."""
    value = field.default
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "" if str in typing.get_args(typing.get_type_hints(kind)[field.name]) else '`"none"`'
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}`"


def what_of(kind: type[Config], name: str, said: dict[str, str]) -> str:
    """The values that a setting can have, where they are a few names, and what is said about it."""
    return " ".join(part for part in (values_of(kind, name), said.get(name, "")) if part)


def values_of(kind: type[Config], name: str) -> str:
    """The values that a setting can have, where they are a few names."""
    hint = typing.get_type_hints(kind)[name]
    options = [hint, *typing.get_args(hint)]
    for one in options:
        if typing.get_origin(one) is typing.Literal:
            return ", ".join(f"`{value}`" for value in typing.get_args(one)) + "."
    return ""


def comments(kind: type[Config]) -> dict[str, str]:
    """Field → what its comment says: on its own line, or on the lines right above."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        rest = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip()
        above: list[str] = []
        number = node.lineno - 2
        while lines[number].strip().startswith("#"):
            above.insert(0, lines[number].strip().lstrip("# "))
            number -= 1
        said = " ".join([*above, rest.lstrip("# ")]).strip()
        found[node.target.id] = said.replace("|", "\\|")
    return found


def main() -> int:
    """Write the page, or only look whether it is as it should be."""
    text = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
