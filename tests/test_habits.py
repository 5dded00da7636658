"""What hosts and hooks run is what contributors run: workflows, hooks, templates and the release's checks."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@(v\d+|release/v\d+)")
# job of a workflow -> what it may do besides reading; every other job may read and nothing else
MAY = {
    ("release", "attest"): {"id-token", "attestations"},
    ("release", "publish"): {"id-token"},
    ("release", "announce"): {"contents"},
}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs() -> list[tuple[str, str, dict[str, Any]]]:
    return [(path.stem, name, job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def steps() -> list[dict[str, Any]]:
    return [step for _, _, job in jobs() for step in job["steps"]]


def test_there_are_workflows_for_changes_releases_and_nights() -> None:
    assert [path.stem for path in WORKFLOWS] == ["nightly", "release", "test"]
    matrix = read(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]


def test_every_make_target_that_a_workflow_names_exists() -> None:
    named = {
        target for step in steps() for target in re.findall(r"^\s*make ([a-z-]+)", step.get("run", ""), re.M)
    }
    assert named <= TARGETS, named - TARGETS
    wanted = {
        "setup",
        "test",
        "test-native",
        "test-browser",
        "web-check",
        "wheel",
        "site",
        "release",
        "try-wheel",
    }
    assert named >= wanted | {"test-slow", "test-hard", "bench-nightly"}


def test_workflows_may_do_no_more_than_they_must() -> None:
    for path in WORKFLOWS:
        assert read(path)["permissions"] == {"contents": "read"}, path.name
    for workflow, name, job in jobs():
        given = job.get("permissions", {})
        writing = {what for what, how in given.items() if how == "write"}
        assert writing == MAY.get((workflow, name), set()), f"{workflow}: {name}"
        assert job["timeout-minutes"] <= 180
    for step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "a value of an event would become part of a script"


def test_actions_are_pinned_to_a_major_version() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert [one for one in used if PINNED.fullmatch(one) is None] == []
    versions: dict[str, set[str]] = {}
    for one in used:
        versions.setdefault(one.partition("@")[0], set()).add(one)
    assert [sorted(found) for found in versions.values() if len(found) > 1] == []


def test_the_release_is_attested_before_it_is_published() -> None:
    release = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    order = {name: job.get("needs") for name, job in release.items()}
    assert order == {
        "build": None,
        "try": "build",
        "attest": "try",
        "publish": "attest",
        "announce": "publish",
    }
    (attest,) = [step for step in release["attest"]["steps"] if "attest-build-provenance" in step["uses"]]
    assert attest["with"]["subject-path"] == "dist/*"


def test_hooks_call_the_tools_of_make_lint() -> None:
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in local["hooks"]}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lint is not None
    tools = {line.split("/")[1].split()[0] for line in lint[1].splitlines()}
    assert tools == {"ruff", "mypy"}
    for tool in tools:
        assert any(entry.startswith(f".venv/bin/{tool}") for entry in entries.values()), tool
    for entry in entries.values():
        for path in re.findall(r"tests/\S+", entry):
            assert (ROOT / path).exists(), path
        assert not entry.startswith("make ") or entry.split()[1] in TARGETS


def test_templates_and_papers_are_there_and_whole() -> None:
    bug = read(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    asked = {field["id"]: field for field in bug["body"]}
    assert "clearhead env" in asked["env"]["attributes"]["label"]
    for template in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        assert {"name", "description", "body"} <= set(read(template)), template.name
    citation = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "license"} <= set(citation)
    for name in ("SECURITY.md", "CODE_OF_CONDUCT.md", "ROADMAP.md", ".github/PULL_REQUEST_TEMPLATE.md"):
        assert len((ROOT / name).read_text(encoding="utf-8")) > 300, name


# -- make release ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "wheels" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree(folder: Path, version: str, changelog: str) -> Path:
    package = folder / "src" / "clearhead"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n")
    (folder / "CITATION.cff").write_text(f"version: {version}\ndate-released: 2026-11-16\n")
    return folder


@pytest.mark.parametrize(
    "version, changelog, tag, sentence",
    [
        ("0.2.0.dev0", "## 0.2.0 (2026-11-16)\n\n- New.", None, "__version__ is 0.2.0.dev0: set"),
        ("0.2.0", "## 0.2.0 (2026-11-16)\n\n- New.", "v0.2.1", "The tag is v0.2.1, but __version__ is 0.2.0"),
        ("0.2.0", "## 0.3.0 (2026-11-16)\n\n- New.", None, "begins with 0.3.0, but __version__ is 0.2.0"),
        ("0.2.0", "## 0.2.0 (unreleased)\n\n- New.", None, "has no date"),
        ("0.2.0", "## 0.2.0\n\n- New.", None, "has no date"),
        ("0.2.0", "## 0.2.0 (2026-11-16)", None, "lists no change"),
        (
            "0.2.0",
            "## 0.2.0 (2026-11-17)\n\n- New.",
            None,
            "CITATION.cff does not say 'date-released: 2026-11-17'",
        ),
        ("0.2.0", "## 0.2.0 (2026-11-16)\n\n- New.", "v0.2.0", None),
        ("0.2.0rc1", "## 0.2.0rc1 (2026-11-16)\n\n- New.", None, None),
    ],
)
def test_version_and_changelog_must_agree(
    release: types.ModuleType,
    version: str,
    changelog: str,
    tag: str | None,
    sentence: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--only", "version", "changelog", *(["--tag", tag] if tag else [])]
    assert release.main(words, tree(tmp_path, version, changelog)) == (0 if sentence is None else 1)
    said = capsys.readouterr().out
    assert "Ready to be released." in said if sentence is None else sentence in said
    assert "skipped  demo" in said


def test_what_is_not_committed_is_named(
    release: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tree(tmp_path, "0.2.0", "## 0.2.0 (2026-11-16)\n\n- New.")
    assert release.main(["--only", "clean"], tmp_path) == 1
    assert "3 files are not committed" in capsys.readouterr().out


def test_a_failed_build_installs_nothing(
    release: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, "0.2.0", "## 0.2.0 (2026-11-16)\n\n- New.")
    (root / "wheels").mkdir()
    (root / "wheels" / "build.py").write_text("import sys; sys.exit('no compiler')")
    assert release.main(["--only", "wheels", "install"], root) == 1
    said = capsys.readouterr().out
    assert "no compiler" in said
    assert "skipped  install: there are no wheels" in said
    assert release.main(["--only", "install"], root) == 1
    assert "There is no wheel in dist/" in capsys.readouterr().out


def test_the_notes_are_the_newest_section(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "wheels" / "release.py"), "--notes"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("### ")
    assert "\n## " not in done.stdout


def test_each_step_can_be_skipped(release: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--skip", *release.STEPS]) == 0
    assert capsys.readouterr().out.count("skipped  ") == len(release.STEPS) == 7
