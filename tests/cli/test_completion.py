"""Tab completion: the scripts that are shown, and what the command answers to each shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RESPONSES = {  # what a shell sets, and how it is answered
    "bash": ({"COMP_WORDS": "clearhead train --re", "COMP_CWORD": "2"}, "--recipe\n--resume\n"),
    "zsh": (
        {"_TYPER_COMPLETE_ARGS": "clearhead train --re"},
        '_arguments \'*: :(("--recipe":"Settings in a TOML or JSON file."\n"--resume":',
    ),
    "fish": (
        {"_TYPER_COMPLETE_ARGS": "clearhead train --re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "--recipe\tSettings in a TOML or JSON file.\n--resume\t",
    ),
}


def clearhead(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clearhead", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.parametrize("shell", RESPONSES)
def test_options_are_completed_for_each_shell(shell: str) -> None:
    variables, answer = RESPONSES[shell]
    found = clearhead(_CLEARHEAD_COMPLETE=f"complete_{shell}", **variables)
    assert found.stdout.startswith(answer)
    assert found.stderr == ""


def test_bash_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    command = tmp_path / "clearhead"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clearhead "$@"\n')
    command.chmod(0o755)
    shown = clearhead("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    typed = "COMP_WORDS=(clearhead tra); COMP_CWORD=1; _clearhead_completion clearhead"
    done = subprocess.run(
        [bash, "-c", f'{shown}\n{typed}; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["train", "translate"]
