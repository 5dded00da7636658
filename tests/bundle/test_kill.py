"""A save that is killed, at any moment, leaves the old bundle or the new one, whole.

The work is done in one process of its own that forks a writer for each kill:
torch is imported once, and pytest's own threads are not forked along.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked writers")

COMMON = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from clearhead.bundle import load_bundle, save
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer

torch.set_num_threads(1)
target = Path(sys.argv[1]) / "bundle"
tokenizer = Tokenizer.words("to be or not to be")

model = build("tiny", family="decoder", vocabulary=10, width=64, layers=2)

def version(number):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(number))
    return model

def write(number):
    save(version(number), target, tokenizer=tokenizer, metadata={"version": number})

def read():
    bundle = load_bundle(target)
    values = {value for p in bundle.model.parameters() for value in p.unique().tolist()}
    assert values == {float(bundle.metadata["version"])}, values
    return bundle.metadata["version"]
"""

AT_RANDOM = (
    COMMON
    + """
random.seed(0)
started = time.monotonic()
for number in range(4):
    write(number)
long = time.monotonic() - started  # enough for a few saves under the present load; more, if that grows
seen = set()
round_ = 0
while round_ < 30 or (len(seen) <= 5 and round_ < 300):
    round_ += 1
    child = os.fork()
    if child == 0:
        number = 100 * round_
        while True:
            number += 1
            write(number)
    time.sleep(random.uniform(0, long * max(1, round_ / 30)))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seen.add(read())
assert len(seen) > 5, seen  # saves did come to an end between the kills
write(1)
assert read() == 1
assert [path.name for path in target.parent.iterdir()] == ["bundle"]  # the next save clears up
"""
)

# The interpreter announces every file it opens, renames or removes to an audit hook: kill at the first
# of these, at the second, … until a save gets through.
AT_EVERY_STEP = (
    COMMON
    + """
write(0)
step, kept, replaced = 0, 0, 0
while True:
    step += 1
    old = read()
    child = os.fork()
    if child == 0:
        count = 0
        def hook(event, arguments):
            global count
            if event.split(".")[0] in ("open", "os", "shutil", "ctypes"):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        write(step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    new = read()
    assert new in (old, step), (old, step, new)
    kept, replaced = kept + (new == old), replaced + (new == step)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
assert kept > 10 and replaced > 1, (kept, replaced)
"""
)


def run(code: str, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr


def test_killed_at_random(tmp_path: Path) -> None:
    run(AT_RANDOM, tmp_path)


def test_killed_at_every_step(tmp_path: Path) -> None:
    run(AT_EVERY_STEP, tmp_path)
