"""Words and phrases that we do not use, in pages and in what the package says to its users.

Each stands with what a native engineer would write instead. A word of the list in its plain sense is written
in `FINE`, with its whole phrase.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md")])
PAGES += sorted((ROOT / ".github").rglob("*.md"))
SOURCE = ROOT / "src" / "clearhead"
WEB = ROOT / "web" / "src"
# calls whose texts a user reads
SAYING = {
    "UserError",
    "NoLibrary",
    "option",
    "Option",
    "Argument",
    "echo",
    "warn",
    "_say",
    "_say_once",
    "print",
}
SAYING |= {"_beam", "_chance", "_text", "_files", "_computing"}

INSTEAD = {
    r"\b[Ll]eav(e|es|ing) (it|them|[^.;:|]{1,40}) away\b": "leave out, turn off",
    r"\b(is|are) none of\b": "is not one of",
    r"\bnumbers that are none\b": "non-finite numbers",
    r"\bcohorts?\b": "batch",
    r"\b(in )?flights?\b": "CUDA-graph slot, active request",
    r"\b(texts|requests|is|are) under way\b": "active, running",
    r"\b[Rr]ooms?\b": "package, capacity, memory",
    r"\bbooks of\b": "state",
    r"\b[Mm]end(s|ed|ing)?\b": "fix, repair",
    r"\btells all of it\b": "see … for the details",
    r"\bset otherwise\b": "override",
    r"\ba loss scale that finds itself\b": "dynamic loss scaling",
    r"\bslower to ask\b": "launching takes longer than running",
    r"\bholds the rule\b": "enforces this",
    r"\beffects of an import\b": "import side effects",
    r"\bEarly end\b": "early stopping",
    r"\b[Ww]hat is laid on top\b": "precedence",
    r"\blabels of (texts|words)\b": "text classification, token tagging",
    r"\b(rows|sequences) and places\b": "sequences and positions",
    r"\b[Pp]laces of (the|a) beam\b": "beam size",
    r"\bkinds of people are meant\b": "is for … kinds of people",
    r"\bbegin(s|ning)? anew\b|\btrain(s|ed)? anew\b": "start over",
    r"\b(is|are) there already\b": "already exists",
    r"\ball is saved\b": "everything is saved",
    r"\bGo on with `": "resume with",
    r"\bgoing on behind\b": "resuming after",
    r"\b(un)?likelier\b": "more (less) likely",
    r"\bwhat it makes of\b": "what becomes of",
    r"\bwhich cannot be:|\S+ cannot be: the\b": "cannot be used",
    r"\bbears? (its|their) (\w+'s )?name\b": "carries the name",
    r"\bsay what the file in it is called\b": "name a file in it",
    r"\bdealt to the\b": "spread over",
    r"\bfor want of\b|\bby dint of\b": "without, by",
    r"\b(be|is|are) left away\b": "optional, left out",
    r"\bby heart\b": "memorised",
    r"\b(of|very) (un)?like (lengths?|sizes?)\b": "similar (different) lengths",
    r"\b[Qq]uick(er|est)\b": "faster, fastest",
    r"\blikeliest\b": "most probable",
    r"\bmodels? of numbers\b": "regression model",
    r"\b(has|have) not got\b": "does not have",
    r"\b[Ww]hoever\b": "name who does it",
    r"\bin spite of\b": "despite",
    r"\bwhat stands around\b": "the special tokens around",
    r"\bnot at hand\b|\bwas at hand\b": "we did not have",
    r"\b[Ww]ho takes part\b": "what is compared",
    r"\brecorded GPU steps?\b": "CUDA graphs",
    r"\bdo(es)? not know (them|this kind|these kinds)\b": "do not support",
    r"\b(tokens|labels|lines|steps) a second\b|\bms a step\b": "per second, per step",
    r"\b(tags a word|one vector a text|one (row|object|source) a (line|recipe))\b": "per word, per line",
    r"\bcome in and go out\b": "can be imported and exported",
    r"\bundisturbed run\b": "uninterrupted run",
    r"\bdrawn anew\b": "drawn again",
}
FINE = (
    "in flight",  # what networks and caches call a request that has been sent
)


def texts() -> Iterator[tuple[str, str]]:
    """Where a text stands, and the text."""
    for page in PAGES:
        if page.name != "log.md":  # a diary, which keeps the words of its day
            yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        where = file.relative_to(ROOT).as_posix()
        yield from ((f"{where}:{line}", text) for line, text in said(tree))
        if file.parent.name == "cli":
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            yield from ((f"{where}:{one.lineno}", ast.get_docstring(one) or "") for one in functions)


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The literal texts inside calls that speak to a user."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in SAYING:
                for argument in (*node.args, *(one.value for one in node.keywords)):
                    yield node.lineno, literal(argument)


def literal(node: ast.AST) -> str:
    """A text without its computed parts, for which stands a name."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "X" for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return literal(node.body) + " " + literal(node.orelse) if isinstance(node, ast.IfExp) else ""


def found_in(text: str) -> list[str]:
    plain = re.sub(r"\s+", " ", text)
    for phrase in FINE:
        plain = plain.replace(phrase, "")
    hits = ((re.search(pattern, plain), instead) for pattern, instead in INSTEAD.items())
    return [f"'{hit[0]}' → {instead}" for hit, instead in hits if hit is not None]


def test_pages_and_messages_use_none_of_these_words() -> None:
    wrong = [f"{where}: {hit}" for where, text in texts() for hit in found_in(text)]
    assert wrong == []


@pytest.mark.skipif(not WEB.is_dir(), reason="the page's sources are not part of the sdist")
def test_the_explorer_uses_none_of_these_words() -> None:
    wrong = []
    for file in sorted([*WEB.rglob("*.ts"), *WEB.rglob("*.svelte")]):
        shown = re.findall(
            r"\"([^\"\n]* [^\"\n]*)\"|>([^<>{}\n]+)<|`([^`\n]* [^`\n]*)`", file.read_text("utf-8")
        )
        for text in ("".join(parts) for parts in shown):
            wrong += [f"{file.name}: {hit}" for hit in found_in(text)]
    assert wrong == []


def test_the_list_finds_what_it_is_for() -> None:
    assert found_in("Leave --beam away, or begin\nanew.") != []
    assert len(found_in("There is no room for this cohort, which nobody can mend.")) == 3
    assert found_in("There are 3 requests in flight.") == []
    assert len(found_in("Whoever knows it by heart is quicker, at 9 tokens a second.")) == 4
    said_so = ast.parse('raise UserError(f"{x} is none of " "those" if a else "fine")')
    assert [text for _, text in said(said_so)] == ["X is none of those fine"]
