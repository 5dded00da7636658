"""Is this tree ready to be released? `make release` checks it step by step, and builds what is released.

    python wheels/release.py [--tag v0.2.0] [--skip STEP ...] [--only STEP ...]
    python wheels/release.py --notes        # the changelog's section on this version

version    the package has a final version, and the tag (where one is given) is that version's
changelog  the newest section of CHANGELOG.md is about this version, has a date, and is not empty;
           CITATION.cff names the same version and date
clean      everything is committed
wheels     the sdist and the wheels of all platforms are built into dist/ and examined
install    the wheel is installed into an empty environment, where it decodes with its own engine and
           passes `clearhead env`
demo       `make demo` in a fresh clone
test       `make test` in the same clone

All steps run, whatever becomes of the others, except that nothing is installed that was not built. The exit
code is 1 if one fails. Needs nothing but Python and what the steps need themselves.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FINAL = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")  # no .dev, which is what lies between releases
HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<date>[^)]*)\))?$", re.MULTILINE)


class NotReady(Exception):
    """A sentence that says what has to be done before the release."""


def version_of(root: Path) -> str:
    text = (root / "src" / "clearhead" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReady("src/clearhead/__init__.py does not set __version__.")
    return found[1]


def newest_section(root: Path) -> tuple[str, str, str]:
    """The version, the date and the text of the changelog's first section."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    heading = HEADING.match(sections[0]) if sections else None
    if heading is None:
        raise NotReady(
            "CHANGELOG.md does not begin with a section: write '## VERSION (DATE)' above what is new."
        )
    return heading["version"], heading["date"] or "", sections[0][heading.end() :].strip()


def check_version(root: Path, tag: str | None) -> str:
    version = version_of(root)
    if FINAL.fullmatch(version) is None:
        raise NotReady(f"__version__ is {version}: set the version to be released in __init__.py.")
    if tag is not None and tag != f"v{version}":
        raise NotReady(f"The tag is {tag}, but __version__ is {version}: tag v{version}.")
    return version


def check_changelog(root: Path, tag: str | None) -> str:
    version = version_of(root)
    section, date, text = newest_section(root)
    if section != version:
        raise NotReady(f"CHANGELOG.md begins with {section}, but __version__ is {version}: make them agree.")
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise NotReady(
            f"The section {section} of CHANGELOG.md has no date: write '## {section} (YYYY-MM-DD)'."
        ) from None
    if not re.search(r"^- ", text, re.MULTILINE):
        raise NotReady(f"The section {section} of CHANGELOG.md lists no change.")
    cited = (root / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    for line in (f"version: {version}", f"date-released: {date}"):
        if line not in cited:
            raise NotReady(f"CITATION.cff does not say '{line}': write it there.")
    return f"{section}, {date}"


def check_clean(root: Path, tag: str | None) -> str:
    changed = run(["git", "status", "--porcelain"], root).splitlines()
    if changed:
        raise NotReady(
            f"{len(changed)} files are not committed, such as {changed[0][3:]}: commit or remove them."
        )
    return run(["git", "rev-parse", "HEAD"], root).strip()


def build_wheels(root: Path, tag: str | None) -> str:
    dist = root / "dist"
    if dist.is_dir():
        for old in dist.iterdir():
            old.unlink()
    run([sys.executable, "wheels/build.py"], root)
    made = sorted(path.name for path in dist.iterdir())
    wrong = [name for name in made if not name.startswith(f"clearhead-{version_of(root)}")]
    if wrong or len(made) < 2:
        raise NotReady(f"dist/ holds {', '.join(made) or 'nothing'} after the build of {version_of(root)}.")
    return ", ".join(made)


def install(root: Path, tag: str | None) -> str:
    """Install from dist/ into an empty environment, and use it where no source is in sight."""
    if not list((root / "dist").glob("*.whl")):
        raise NotReady("There is no wheel in dist/: run `make wheel` first.")
    with tempfile.TemporaryDirectory(prefix="clearhead-release-") as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        # torch and the rest from the index; clearhead from dist/ alone, whatever the index has
        wheels = ["--no-deps", "--no-index", "--find-links", str(root / "dist"), "clearhead"]
        run([*pip, *wheels], place, elsewhere)
        run([*pip, *requirements(python, place, elsewhere)], place, elsewhere)
        command = str(python.with_name("clearhead"))
        said = run([command, "--version"], place, elsewhere).strip()
        if said != f"clearhead {version_of(root)}":
            raise NotReady(f"The installed command says '{said}', but the version is {version_of(root)}.")
        engine = run([str(python), str(root / "wheels" / "try_engine.py")], place, elsewhere)
        run([command, "env"], place, elsewhere)
        return "; ".join(engine.splitlines())


def requirements(python: Path, place: Path, environment: dict[str, str]) -> list[str]:
    """What the installed package asks for, without its extras."""
    program = "import importlib.metadata as m; print(*m.requires('clearhead'), sep='\\n')"
    found = run([str(python), "-c", program], place, environment).splitlines()
    return [line for line in found if "extra ==" not in line]


def demo(root: Path, tag: str | None) -> str:
    told = run(["make", "demo"], clone(root))
    return next((line for line in told.splitlines() if "test sentences" in line), "")


def test(root: Path, tag: str | None) -> str:
    return run(["make", "test"], clone(root)).strip().splitlines()[-1]


@functools.cache
def clone(root: Path) -> Path:
    """A fresh clone, with an environment of its own that `make` builds; it is gone when the program ends."""
    folder = tempfile.mkdtemp(prefix="clearhead-clone-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run(["git", "clone", "--quiet", str(root), "clearhead"], Path(folder))
    return Path(folder) / "clearhead"


def run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed; `NotReady` with the end of it where it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stdout + done.stderr)[-3000:]
        raise NotReady(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")
    return done.stdout


STEPS: dict[str, Callable[[Path, str | None], str]] = {
    "version": check_version,
    "changelog": check_changelog,
    "clean": check_clean,
    "wheels": build_wheels,
    "install": install,
    "demo": demo,
    "test": test,
}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Check that this tree is ready to be released.")
    parser.add_argument("--tag", help="the tag that the version must match, such as v0.2.0")
    parser.add_argument(
        "--skip", nargs="+", choices=STEPS, default=[], metavar="STEP", help="leave steps out"
    )
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--notes", action="store_true", help="print the changelog's section and stop")
    asked = parser.parse_args(arguments)
    if asked.notes:
        print(newest_section(root)[2])
        return 0
    failed: list[str] = []
    for name, step in STEPS.items():
        if name in asked.skip or name not in asked.only:
            print(f"skipped  {name}")
            continue
        if name == "install" and "wheels" in failed:
            print("skipped  install: there are no wheels")
            continue
        try:
            print(f"ok       {name}: {step(root, asked.tag)}", flush=True)
        except NotReady as reason:
            failed.append(name)
            print(f"FAILED   {name}: {reason}", flush=True)
    print(f"Not ready: {', '.join(failed)}." if failed else "Ready to be released.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
