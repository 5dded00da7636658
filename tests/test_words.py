"""Words and phrases that we do not use, in pages and in what the package says to its users.

Each stands with what a native engineer would write instead. A word of the list in its plain sense is written
in `FINE`, with its whole phrase.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md")])
PAGES += sorted((ROOT / ".github").rglob("*.md"))
SOURCE = ROOT / "src" / "clearhead"
WEB = ROOT / "web" / "src"
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
    r"\bpasses over (the|its|a) corpus\b|\bwanted passes\b": "epochs",
    r"\b[Kk]e(ep|eps|pt) ([^.;:|]{1,40} )?apart\b": "hold out, held out",
    r"\bnats a token\b": "nats per token",
    r"\ba (model|number) that is (there|none)\b": "an existing model, not a number",
    r", of which (each|a|one|every)\b": "two sentences, or 'each of which'",
    r"\b(is|are) read off the\b": "the head reads",
    r"\bpassed over for\b": "skipped",
    r"\bcan be asked for\b": "work too, use",
    r"\bgoes on bit for bit\b": "resumes bit for bit",
    r"\blearnt less (its|their)\b": "standardised",
}
# in what the package and the explorer say, besides
IN_MESSAGES = {
    r", so that (it|they|there|no|nothing|texts?|the)\b": "so (for a result)",
    r"\banew\b": "again",
    r"\b[Ll]ikeliest\b": "most likely",
    r"\b[Ll]eave out (them|it)\b": "leave them out",
    r"\bdealt to\b": "split over",
    r"\bhangs? on\b": "depends on",
    r"\bstands? (in|where|beside|before|between|on|yet|written)\b": "is, occurs",
    r"(?<![Tt]here )\b(is|are) no (file|folder|list|model|product|head|table|number|bundle)\b": "is not a",
    r"\b[Gg]o(es|ing)? on (with|from|at|to|behind|after)\b": "resume, continue",
    r"\bcome to its end\b": "finish",
    r"\bbegun\b": "started",
    r"\btakes? no part\b|\btake part\b": "is left out",
    r"\b[Kk]nown are\b": "use one of",
    r"\b(setting|bias|axis) is written\b": "write a … as",
    r"\b(nats|tags?|words) an? (token|word|output|picture|head)\b": "per",
    r"\bby heart\b": "overfitting",
    r"\bcustomary\b": "usual",
    r"\blooks at the model\b|\bof the looks\b": "validations",
    r"\bin vain\b": "timed out",
    r"\bfetch (it|them|this)\b": "download",
    r"\btaken? back\b": "undo",
    r"\b(C\+\+|slower|faster) way\b": "engine, path",
    r"\b(least length|so (many|wide|far) an?)\b": "minimum length, this wide",
    r"\badds? up to 1\b": "sums to 1",
    r"\bhow alike\b": "how similar",
}
FINE = (
    "in flight",  # what networks and caches call a request that has been sent
)


def texts() -> Iterator[tuple[str, str]]:
    """Where a text stands, and the text."""
    for page in PAGES:
        yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        where = file.relative_to(ROOT).as_posix()
        yield from ((f"{where}:{line}", text) for line, text in said(tree))
        if file.parent.name == "cli":
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            yield from ((f"{where}:{one.lineno}", ast.get_docstring(one) or "") for one in functions)


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The literal texts of a module, but for docstrings: each may end in a sentence that a user reads."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield node.lineno, literal(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def literal(node: ast.JoinedStr) -> str:
    """A text without its computed parts, for which stands a letter."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)


def found_in(text: str, words: Mapping[str, str] = INSTEAD) -> list[str]:
    plain = re.sub(r"\s+", " ", text)
    for phrase in FINE:
        plain = plain.replace(phrase, "")
    hits = ((re.search(pattern, plain), instead) for pattern, instead in words.items())
    return [f"'{hit[0]}' → {instead}" for hit, instead in hits if hit is not None]


def test_pages_and_messages_use_none_of_these_words() -> None:
    wrong = [f"{where}: {hit}" for where, text in texts() for hit in found_in(text)]
    assert wrong == []


def test_messages_use_none_of_these_words_besides() -> None:
    said_here = ((where, text) for where, text in texts() if ".py:" in where)
    wrong = [f"{where}: {hit}" for where, text in said_here for hit in found_in(text, IN_MESSAGES)]
    assert wrong == []


@pytest.mark.skipif(not WEB.is_dir(), reason="the page's sources are not part of the sdist")
def test_the_explorer_uses_none_of_these_words() -> None:
    wrong = []
    for file in sorted([*WEB.rglob("*.ts"), *WEB.rglob("*.svelte")]):
        shown = re.findall(
            r"\"([^\"\n]* [^\"\n]*)\"|>([^<>{}\n]+)<|`([^`\n]* [^`\n]*)`", file.read_text("utf-8")
        )
        for text in ("".join(parts) for parts in shown):
            wrong += [f"{file.name}: {hit}" for hit in found_in(text, {**INSTEAD, **IN_MESSAGES})]
    assert wrong == []


def test_the_list_finds_what_it_is_for() -> None:
    assert found_in("Leave --beam away, or begin\nanew.") != []
    assert len(found_in("There is no room for this cohort, which nobody can mend.")) == 3
    assert found_in("There are 3 requests in flight.") == []
    assert len(found_in("Whoever knows it by heart is quicker, at 9 tokens a second.")) == 4
    assert found_in("So it begins anew.", IN_MESSAGES) != []
    said_so = ast.parse(
        'def f():\n  "A docstring."\n  raise UserError(f"{x} is none of " "those" if a else "fine")'
    )
    assert sorted(text for _, text in said(said_so)) == ["X is none of those", "fine"]
