"""The command line: its surface is frozen here, and no mistake of a user ends in a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any, get_type_hints

import pytest
import typer
from typer.models import OptionInfo

import clearhead
from clearhead.base.errors import UserError
from clearhead.cli import main as cli

# Every command with its options. To change this table is to change what users have in their scripts.
ASKING = [
    "--ban",
    "--beam",
    "--bias",
    "--choice",
    "--contrastive",
    "--coverage",
    "--device",
    "--diversity",
    "--draft",
    "--dtype",
    "--early-stopping",
    "--fast",
    "--force",
    "--frequency",
    "--groups",
    "--include",
    "--input",
    "--json",
    "--length-kind",
    "--length-penalty",
    "--max-length",
    "--min-length",
    "--min-p",
    "--nbest",
    "--no-repeat",
    "--output",
    "--prefix",
    "--presence",
    "--regex",
    "--repetition",
    "--restart",
    "--sample",
    "--seed",
    "--stop",
    "--temperature",
    "--threads",
    "--top-k",
    "--top-p",
    "--typical",
    "--way",
]
SURFACE = {
    "demo": ["--again", "--json", "--out", "--pair", "--view"],
    "compare": [
        *(
            "--architectures",
            "--data",
            "--equal",
            "--file",
            "--json",
            "--metric",
            "--minutes",
            "--only",
            "--out",
        ),
        *("--processes", "--recipe", "--seeds", "--set", "--source", "--source-column", "--target"),
        *("--target-column", "--task", "--vary", "--view"),
    ],
    "train": [
        "--data",
        "--file",
        "--from",
        "--hub",
        "--json",
        "--minutes",
        "--old-domain",
        "--out",
        "--recipe",
        "--resume",
        "--set",
        "--source",
        "--source-column",
        "--target",
        "--target-column",
        "--task",
        "--test",
        "--validation",
        "--view",
        "--weight",
    ],
    "translate": sorted(["--alignments", *ASKING, "--source-prefix", "BUNDLE", "TEXTS"]),
    "fill": ["--device", "--json", "--top", "BUNDLE", "TEXTS"],
    "generate": sorted([*ASKING, "--out", "--picture", "BUNDLE", "PROMPT"]),
    "verify": ["--device", "--draft", "--json", "--quick", "--texts", "BUNDLE"],
    "score": [
        "--device",
        "--file",
        "--json",
        "--length-kind",
        "--length-penalty",
        "--source",
        "--target",
        "--threads",
        "--tokens",
        "BUNDLE",
        "TEXTS",
    ],
    "label": ["--device", "--json", "BUNDLE", "TEXTS"],
    "embed": [
        "--device",
        "--file",
        "--json",
        "--layer",
        "--nearest",
        "--normalise",
        "--out",
        "--pooling",
        "-k",
        "BUNDLE",
        "TEXTS",
    ],
    "evaluate": [
        "--against",
        "--beam",
        "--device",
        "--file",
        "--formats",
        "--json",
        "--length-penalty",
        "--lowercase",
        "--out",
        "--source",
        "--source-column",
        "--source-prefix",
        "--stride",
        "--target",
        "--target-column",
        "--task",
        "--tokenised",
        "BUNDLE",
    ],
    "explore": ["--device", "--host", "--open", "--port", "BUNDLES"],
    "explain": ["--device", "--out", "--target", "BUNDLE", "TEXT"],
    "contexts": ["--device", "--json", "--out", "BUNDLE", "SENTENCES", "WORD"],
    "examples": ["--json", "--list", "--markdown", "--slips", "NAME"],
    "quiz": ["--json", "--list", "NAME"],
    "presets": ["--json"],
    "plan": [
        "--batch-tokens",
        "--config",
        "--crossing",
        "--device",
        "--dtype",
        "--json",
        "--layout",
        "--preset",
        "--ranks",
        "--set",
        "--source-length",
        "--steps",
        "--target-length",
    ],
    "bench": [
        *("--bundle", "--causal", "--decode", "--device", "--dtype", "--heads", "--json", "--kinds"),
        *("--lengths", "--out", "--rows", "--seconds", "--text", "--width", "WHAT"),
    ],
    "inspect": ["--json", "BUNDLE"],
    "import": ["--out", "--overwrite", "FOLDER"],
    "export": ["--out", "--quantize", "--to", "BUNDLE"],
    "env": ["--json", "--no-test"],
}


WITHOUT_FIGURES = {"explore", "explain", "import", "export"}  # they write files, or serve a page


def surface_of(command: Any) -> list[str]:
    return sorted(
        parameter.name.upper() if parameter.param_type_name == "argument" else parameter.opts[0]
        for parameter in command.params
        if parameter.name != "help"
    )


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_an_option_whose_value_bears_its_name_is_named_outright(name: str) -> None:
    """Typer 0.27 makes `--FILE` of `file: Option(metavar="FILE")`; a name that is given stays as it is."""
    for argument, kind in get_type_hints(cli.command_named(name), include_extras=True).items():
        for option in getattr(kind, "__metadata__", ()):
            if isinstance(option, OptionInfo) and option.metavar == argument.upper():
                # Typer reads the first of the names as a default
                given = (option.default, *(option.param_decls or ()))
                assert f"--{argument}" in given, f"clearhead {name} --{argument}"


def test_the_surface_is_frozen() -> None:
    root: Any = typer.main.get_command(cli.app())
    assert {name: surface_of(command) for name, command in root.commands.items()} == SURFACE
    assert surface_of(root) == ["--install-completion", "--show-completion", "--version"]


def test_every_command_that_prints_figures_has_them_as_json() -> None:
    assert {name for name, options in SURFACE.items() if "--json" not in options} == WITHOUT_FIGURES


def test_only_the_command_that_is_asked_for_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would take a tenth of a second; without one, or with a wrong one, all can be named."""
    built: list[list[str]] = []
    whole = cli.app
    monkeypatch.setattr(cli, "app", lambda names: built.append(sorted(names)) or whole(names))
    for arguments in (["presets"], ["--version"], ["preset"], []):
        cli.main(arguments)
    every = sorted(cli.COMMANDS)
    assert built == [["presets"], every, every, every]


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in SURFACE:
        assert cli.main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"\n    clearhead {name}" in shown, name


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"clearhead {clearhead.__version__}\n"
    for arguments in (["--help"], ["-h"], []):
        assert cli.main(arguments) == 0
        assert "Usage: clearhead" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["plna"], "No such command 'plna'"),
        (["plan", "--stepz", "3"], "No such option: --stepz"),
        (["plan", "--steps", "many"], "Invalid value for '--steps'"),
        (["plan", "--steps", "0"], "Invalid value for '--steps'"),
        (["plan", "--set", "layers"], "Write a setting as name=value"),
        (["plan", "--config", "absent.toml"], "'absent.toml' cannot be read"),
        (["plan", "--config", "model.yaml"], "must end in .toml or .json"),
        (["import"], "Missing argument"),
        (["import", "folder"], "Missing option '--out'"),
        (["export", "bundle", "--out", "x"], "Missing option '--to'"),
        (["inspect", "a", "b"], "unexpected extra argument"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("clearhead: ")
    assert captured.err.count("\n") == 1
    assert part in captured.err


def use_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Put an app in the place of ours whose only command fails with `error`."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", lambda names: app)


def test_user_errors_exit_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use_command(monkeypatch, UserError("The bundle 'x' is damaged."))
    assert cli.main([]) == 2
    assert capsys.readouterr().err == "clearhead: The bundle 'x' is damaged.\n"


def test_our_own_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    use_command(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main([])


def test_interrupt_in_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use_command(monkeypatch, KeyboardInterrupt())
    assert cli.main([]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_interrupt_of_a_process() -> None:
    code = (
        "import sys, time, clearhead.cli.main as cli\n"
        "import typer; app = typer.Typer(); cli.app = lambda names: app\n"
        "@app.command()\n"
        "def wait() -> None:\n    print('ready', flush=True); time.sleep(60)\n"
        "sys.exit(cli.main([]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(timeout=20)
    process.stderr.close()
    assert errors == ""


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, clearhead.cli.main as cli; cli.main(['--help']);"
        "heavy = {'torch', 'numpy', 'rich', 'tokenizers', 'transformers', 'matplotlib', 'PIL'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "[]"


def test_as_a_module() -> None:
    done = python("-m", "clearhead", "nonsense")
    assert done.returncode == 2
    assert done.stderr == "clearhead: No such command 'nonsense'. Try 'clearhead --help'.\n"
