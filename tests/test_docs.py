"""What the documents show is what happens: examples run, links lead on, commands and settings exist."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from clearhead.base.config import Config
from clearhead.base.settings import parse_settings
from clearhead.cli.main import COMMANDS, app, command_named
from clearhead.decoding import native
from clearhead.jobs.members import CompareConfig, said_in
from clearhead.jobs.recipe import nested
from clearhead.training.config import TrainConfig

from .documented import NOT_RUN, PAGES, ROOT, SHELL, Block, blocks

RUN = {  # fewest examples
    **{"README.md": 10, "docs/index.md": 3, "docs/tour.md": 60, "docs/attention.md": 3, "docs/data.md": 8},
    **{"docs/phrasebook.md": 4, "docs/explorer.md": 7, "docs/understanding.md": 6, "docs/planner.md": 5},
}
SOURCES_OF_FIGURES = ("recipes/README.md", "docs/performance.md")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
ROOMS_NAMED_WHOLE = (
    "bundle",
    "planner",
    "lectures",
    "interop",
    "cli",
    "phrasebook",
    "evaluation",
    "verify",
)
FOLDERS_NAMED_WHOLE = (
    "training/view",
    "training/cpu",
    "data/encodings",
    "decoding/native",
    "decoding/graphs",
    "explorer/server",
    "decoding/constraints",
)


@pytest.mark.parametrize("page", RUN)
def test_examples_in_a_page_run(page: str) -> None:
    result = doctest.testfile(str(ROOT / page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= RUN[page], f"{page} has lost its examples"
    assert result.failed == 0


def test_every_page_with_examples_is_run() -> None:
    found = {page for page in PAGES if re.search(r"^>>> ", page.read_text(encoding="utf-8"), re.MULTILINE)}
    assert {page.relative_to(ROOT).as_posix() for page in found} == set(RUN)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name} links to {target}"
        if heading:
            assert heading in anchors(place), f"{page.name} links to {target}#{heading}"


def anchors(page: Path) -> set[str]:
    """The names of a page's headings as links spell them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_map_names_every_module() -> None:
    """ARCHITECTURE.md is a map: a file that is not on it cannot be found by it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "clearhead"
    for folder in (*ROOMS_NAMED_WHOLE, *FOLDERS_NAMED_WHOLE):
        assert (source / folder).is_dir(), f"{folder} is gone"
        assert folder.rpartition("/")[2] + "/" in text, f"{folder} is not on the map"
    for file in source.rglob("*.py"):
        path = file.relative_to(source).as_posix()
        if path.startswith((*ROOMS_NAMED_WHOLE, *FOLDERS_NAMED_WHOLE)) or file.name.startswith("__"):
            continue
        assert f"{file.name}`" in text, f"{path} is not on the map"


def test_the_table_of_walks_is_up_to_date() -> None:
    """Each change sees what it costs whoever reads the way of a batch or of a request."""
    if why := native.why_not():
        pytest.skip(f"the request walks through the C++ engine: {why}")
    walk = script("walk")
    assert walk.written() == walk.table(walk.walks()), f"run `{walk.COMMAND}`"


# -- blocks --------------------------------------------------------------------------------------------

MAKE = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("block", blocks(), ids=lambda one: f"{one.page}: {one.text.splitlines()[0][:60]}")
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    """Examples by the test above, commands and programs by tests/system/test_documented_commands.py."""
    assert block.kind in (*SHELL, "python", "toml", "json", ""), "what should be done with this?"
    if block.reason is not None:
        assert len(block.reason) > 10
    elif block.kind in SHELL:
        for line in block.lines:
            check_line(line)
    elif block.kind == "toml":
        settings, compared = said_in(tomllib.loads(block.text))
        TrainConfig.check_names(settings)
        CompareConfig.from_dict(compared, "compare")
    elif block.kind == "json":
        check_json(block.text)
    elif block.kind == "python" and ">>> " not in block.text:
        compile(block.text, block.page, "exec")
    elif block.kind == "":
        assert not lines_in(block.text), "commands stand in a block that says sh"


def check_line(line: str) -> None:
    """A line of a shell block starts `clearhead`, names a target of make or an extra, or is marked."""
    program, *words = shlex.split(line, comments=True)
    if program == "make":
        assert words[0] in MAKE, line
    elif program == "pip":
        assert set(re.findall(r"\[(\w+)\]", line)) <= set(EXTRAS), line
    else:
        assert program == "clearhead" or any(part in line for part in NOT_RUN), f"mark it: {line}"


def check_json(text: str) -> None:
    """One object, the inside of one, or one on each line."""
    try:
        json.loads(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


# -- commands ------------------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, str]]:
    """Every `clearhead …` line in the pages' shell blocks and in the commands' own help."""
    for block in blocks():
        if block.kind in (*SHELL, ""):
            yield from ((block.page, line) for line in lines_in(block.text))
    for name in COMMANDS:
        yield from ((f"{name} --help", line) for line in lines_in(command_named(name).__doc__ or ""))


def lines_in(text: str) -> list[str]:
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    return [line for line in lines if line.startswith("clearhead ")]


LINES = sorted(set(command_lines()))


def test_there_are_command_lines_to_look_at() -> None:
    assert len(LINES) > 40
    assert {shlex.split(line, comments=True)[1] for _, line in LINES} >= set(COMMANDS)


@pytest.mark.parametrize("where, line", LINES, ids=[line for _, line in LINES])
def test_a_command_line_is_understood(where: str, line: str) -> None:
    """Its command exists, and takes these options with values of this kind; nothing is run."""
    words = re.split(r"\s(?:[<>|]|\|\|)\s", line)[0]
    name, *arguments = shlex.split(words, comments=True)[1:]
    if name in ("COMMAND", "--help") or "--help" in arguments:
        return
    root = typer.main.get_command(app())
    if name.startswith("--"):
        assert name in {option for parameter in root.params for option in parameter.opts}
        return
    command = root.commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, list(arguments))
    for setting in context.params.get("settings") or []:
        if name == "train" and "=" in setting and setting != "A.B=C":
            TrainConfig.check_names(nested(parse_settings([setting])))


def test_figures_of_the_first_page_are_those_of_the_tables() -> None:
    """README repeats some figures; where they come from they stand with their command and machine."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in readme.splitlines() if line.startswith("|") and "**" in line]
    tables = "".join((ROOT / page).read_text(encoding="utf-8") for page in SOURCES_OF_FIGURES)
    assert len(rows) >= 6
    for row in rows:
        cells = row[2] + re.sub(r"\(.*?\)", "", row[3])  # without years of publication
        for figure in re.findall(r"\d[\d,]*\.?\d*", cells):
            assert figure in tables, f"{figure} ({row[1].strip()}) is in no table any more"


# -- settings ------------------------------------------------------------------------------------------


def script(name: str) -> types.ModuleType:
    """A script of the docs folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def test_the_page_of_settings_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == script("write_settings").page(), "run `make docs`"


def test_the_page_of_settings_has_every_setting() -> None:
    """By another way than the page was written: the leaves of a whole config."""
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

    def leaves(config: Config) -> Iterator[str]:
        for name, value in vars(config).items():
            if isinstance(value, Config):
                yield from leaves(value)
            elif value is not None and value != ():  # may stand for a table, and then has no row
                yield name

    names = set(leaves(TrainConfig()))
    assert len(names) > 60
    assert {name for name in names if f"| `{name}` |" not in written} == set()


@pytest.mark.parametrize("page", ["training.md", "data.md", "evaluation.md", "coming-from.md", "README.md"])
def test_settings_named_in_a_page_exist(page: str) -> None:
    """Everything written like `table.name` or `table.name=value` that begins with a table of a recipe."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    tables = [name for name in TrainConfig().to_dict() if name not in ("task", "seed", "steps")]
    pattern = re.compile(rf"`((?:{'|'.join(tables)})\.[a-z_.]+)(?:=[^`]*)?`")
    found = pattern.findall(path.read_text(encoding="utf-8"))
    known = flat(TrainConfig().to_dict())
    assert [name for name in found if name not in known and f"{name}." not in " ".join(known)] == []


def flat(plain: dict[str, object], path: str = "") -> set[str]:
    found = set()
    for key, value in plain.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key}
    return found


def test_lines_of_the_log_in_the_page_are_json() -> None:
    (block,) = [one for one in blocks() if one.kind == "json" and one.page == "docs/training.md"]
    records = [json.loads(line) for line in block.text.splitlines()]
    source = (ROOT / "src" / "clearhead" / "training" / "loop.py").read_text(encoding="utf-8")
    texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    train = next(record for record in records if record["kind"] == "train")
    assert set(train) - {"kind", "step"} <= texts
    assert {record["kind"] for record in records} == {"train", "validation", "finding"}
