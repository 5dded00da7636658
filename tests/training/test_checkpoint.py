"""Checkpoints: exact, atomic, and never trusted when a byte is not what was written.

The faults are real: processes are killed in the middle of saving, files are cut
and bits are flipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.training.checkpoint import FORMAT, Checkpoints, rng_tensors, set_rng

FILES = ("state.safetensors", "state.json", "SHA256SUMS")


def content(step: int) -> tuple[dict[str, Tensor], dict[str, object]]:
    """A checkpoint's content as a function of its step."""
    chance = torch.Generator().manual_seed(step)
    tensors = {
        "weights": torch.randn(50, 40, generator=chance),
        "half": torch.randn(7, generator=chance).bfloat16(),
        "step": torch.tensor(float(step)),
        "chance": torch.randint(0, 256, (99,), dtype=torch.uint8, generator=chance),
        "empty": torch.zeros(0),
    }
    return tensors, {"best": step / 3, "words": ["é", "NaN"], "none": None, "position": 10**12 + step}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(
        torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one
    )


def check(store: Checkpoints, step: int) -> list[str]:
    """The newest is this one and right to the bit; returns the sentences."""
    found, sentences = store.newest()
    assert found is not None
    assert found.step == step
    tensors, facts = content(step)
    assert equal(found.tensors, tensors)
    assert found.facts == facts
    return sentences


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    store = Checkpoints(folder, keep)
    for step in steps:
        store.save(step, *content(step))
    return store


def test_what_is_saved_comes_back_and_old_ones_go(tmp_path: Path) -> None:
    store = saved(tmp_path / "deep" / "checkpoints", 100, 200, 300)
    assert store.steps() == [300, 200]
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000200", "step-00000300"]
    assert check(store, 300) == []
    found, _ = store.newest()
    shutil.rmtree(store.folder)
    assert found is not None
    assert equal(found.tensors, content(300)[0])  # what was read does not hang on the files


def test_nothing_saved_is_nothing_found(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none").newest() == (None, [])
    assert not (tmp_path / "none").exists()


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    store = saved(tmp_path, 100)
    store.save(100, {"other": torch.ones(2)}, {})
    found, sentences = store.newest()
    assert found is not None
    assert list(found.tensors) == ["other"]
    assert sentences == []


def test_checksums_are_those_of_the_standard_tool(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    folder = tmp_path / "step-00000005"
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_shared_tensors_are_stored_once(tmp_path: Path) -> None:
    whole = torch.randn(1000, 100)
    tensors = {"a": whole, "b": whole, "part": whole[3:5], "turned": whole.t(), "flat": whole.view(-1)}
    store = Checkpoints(tmp_path)
    path = store.save(1, {"a": whole, "b": whole}, {})
    assert (path / "state.safetensors").stat().st_size < whole.numel() * 4 + 1000
    store.save(2, tensors, {})
    found, _ = store.newest()
    assert found is not None
    assert equal(found.tensors, tensors)
    assert found.tensors["a"] is found.tensors["b"]
    assert found.tensors["a"].data_ptr() != found.tensors["flat"].data_ptr()


def test_parameters_and_gradients_are_saved_as_plain_numbers(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    store = Checkpoints(tmp_path)
    store.save(1, dict(layer.named_parameters()), {})
    found, _ = store.newest()
    assert found is not None
    assert not found.tensors["weight"].requires_grad
    assert torch.equal(found.tensors["weight"], layer.weight)


@pytest.mark.parametrize("facts", [{"a": float("nan")}, {"a": (1, 2)}, {"a": {1: 2}}, {"a": {1, 2}}])
def test_facts_that_json_would_change_are_refused(tmp_path: Path, facts: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Checkpoints(tmp_path).save(1, {}, facts)
    assert list(tmp_path.iterdir()) == []


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", [damage_cut, damage_flip, damage_empty, damage_longer, damage_missing, damage_folder]
)
def test_damage_is_found_and_the_one_before_is_used(tmp_path: Path, name: str, damage: object) -> None:
    store = saved(tmp_path, 200, 300)
    damage(tmp_path / "step-00000300" / name)  # type: ignore[operator]
    (sentence,) = check(store, 200)
    assert sentence.startswith("The checkpoint step-00000300 is damaged (")
    assert sentence.endswith("); resuming from step-00000200.")
    if damage in (damage_missing, damage_folder):
        assert f"{name} is missing" in sentence
    elif name != "SHA256SUMS":
        assert f"({name} does not match its checksum)" in sentence


def test_the_sentences_name_each_that_is_passed_over(tmp_path: Path) -> None:
    store = saved(tmp_path, 100, 200, 300, keep=5)
    damage_flip(tmp_path / "step-00000300" / "state.safetensors")
    damage_missing(tmp_path / "step-00000200" / "state.json")
    assert check(store, 100) == [
        "The checkpoint step-00000300 is damaged (state.safetensors does not match its checksum); "
        "resuming from step-00000200.",
        "The checkpoint step-00000200 is damaged (state.json is missing); resuming from step-00000100.",
    ]
    damage_empty(tmp_path / "step-00000100" / "SHA256SUMS")
    found, sentences = store.newest()
    assert found is None
    assert sentences[-1].endswith("there is no earlier one.")
    assert len(sentences) == 3


def test_what_a_checkpoint_needs_outside_itself_can_be_checked_too(tmp_path: Path) -> None:
    store = saved(tmp_path, 200, 300)
    found, sentences = store.newest(lambda one: "its weights are gone" if one.facts["best"] == 100 else None)
    assert found is not None
    assert found.step == 200
    assert sentences == [
        "The checkpoint step-00000300 is damaged (its weights are gone); resuming from step-00000200."
    ]
    found, sentences = store.newest(lambda one: "no")
    assert found is None
    assert len(sentences) == 2


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_cut_and_no_flipped_bit_goes_unseen(data: st.DataObject, both: Path) -> None:
    """Anywhere in any file: whatever is altered, the newest is not trusted and the older one is right."""
    folder = both / "step-00000300"
    shutil.rmtree(folder)
    shutil.copytree(both / "good", folder)
    path = folder / data.draw(st.sampled_from(FILES))
    content_now = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content_now) - 1))
    if data.draw(st.booleans()):
        content_now[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content_now[place:]
    path.write_bytes(bytes(content_now))
    assert len(check(Checkpoints(both), 200)) == 1


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    saved(folder, 200, 300)
    shutil.copytree(folder / "step-00000300", folder / "good")
    return folder


def test_a_folder_that_lies_about_its_step_is_passed_over(tmp_path: Path) -> None:
    store = saved(tmp_path, 200, 300)
    (tmp_path / "step-00000300").rename(tmp_path / "step-00000900")
    assert check(store, 200) == [
        "The checkpoint step-00000900 is damaged (its state.json says step 300); resuming from step-00000200."
    ]


def rewrite(folder: Path, change: dict[str, object]) -> None:
    """Alter state.json and make its checksum right again."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8")) | change
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES[:2]]
    (folder / "SHA256SUMS").write_text("".join(sums))


def test_another_format_is_not_taken_for_damage(tmp_path: Path) -> None:
    store = saved(tmp_path, 200, 300)
    rewrite(tmp_path / "step-00000300", {"format": FORMAT + 1})
    with pytest.raises(
        UserError, match=f"has the format {FORMAT + 1}, .* reads format {FORMAT}: resume with"
    ):
        store.newest()
    assert store.steps() == [300, 200]


def test_right_checksums_of_wrong_content_do_not_pass(tmp_path: Path) -> None:
    store = saved(tmp_path, 200, 300)
    rewrite(tmp_path / "step-00000300", {"same": {"b": "not there"}})
    assert len(check(store, 200)) == 1
    folder = tmp_path / "step-00000300"
    (folder / "state.json").write_text("[]")
    digests = [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES[:2]]
    (folder / "SHA256SUMS").write_text("".join(f"{d}  {n}\n" for d, n in zip(digests, FILES, strict=False)))
    assert len(check(store, 200)) == 1


def test_a_run_that_went_back_gives_up_the_damaged_future(tmp_path: Path) -> None:
    store = saved(tmp_path, 100, 200, 300, keep=3)
    damage_cut(tmp_path / "step-00000300" / "state.safetensors")
    Checkpoints(tmp_path, keep=1).save(250, *content(250))
    assert store.steps() == [250]
    assert check(store, 250) == []


def test_leftovers_are_cleared_away(tmp_path: Path) -> None:
    store = saved(tmp_path, 200)
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    host = "".join(c for c in platform.node() if c.isalnum() and c.isascii())
    dead = tmp_path / f".step-00000300.writing-{host}-{int(gone.stdout)}-0123abcd"
    alive = tmp_path / f".step-00000300.writing-{host}-{os.getppid()}-0123abcd"
    foreign = tmp_path / ".step-00000400.writing-elsewhere-7-0123abcd"
    ancient = tmp_path / ".step-00000500.writing-elsewhere-7-0123abcd"
    removing = tmp_path / ".step-00000100.removing"
    unrelated = tmp_path / "notes"
    for folder in (dead, alive, foreign, ancient, removing, unrelated):
        folder.mkdir()
        (folder / "file").write_text("x")
    os.utime(ancient, (0, time.time() - 3 * 24 * 3600))
    assert check(store, 200) == []
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"step-00000200", alive.name, foreign.name, unrelated.name}


def test_a_replacement_cut_off_between_two_renames_is_brought_back(tmp_path: Path) -> None:
    store = saved(tmp_path, 200, 300)
    (tmp_path / "step-00000300").rename(tmp_path / ".step-00000300.previous")
    assert check(store, 300) == []
    shutil.copytree(tmp_path / "step-00000300", tmp_path / ".step-00000300.previous")
    assert check(store, 300) == []
    assert not (tmp_path / ".step-00000300.previous").exists()


def test_a_save_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    store = saved(tmp_path, 200)
    with pytest.raises(RuntimeError):
        store.save(300, {"bad": torch.ones(2, device="meta")}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000200"]
    assert check(store, 200) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    store = saved(tmp_path, 200)
    full = resource_limit(200_000)
    run = subprocess.run(
        [sys.executable, "-c", full, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("Cannot write the checkpoint '")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000200"]
    assert check(store, 200) == []


def resource_limit(size: int) -> str:
    """A program that may write no file larger than `size`, and tries."""
    return f"""
import resource, signal, sys, torch
from clearhead.base.errors import UserError
from clearhead.training.checkpoint import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
try:
    Checkpoints(sys.argv[1]).save(300, {{"large": torch.zeros({size})}}, {{}})
except UserError as error:
    print(error)
"""


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="At least one checkpoint"):
        Checkpoints(tmp_path, keep=0)


# For each step it reads, starts a copy of itself that saves one checkpoint after another from there on.
SAVERS = """
import os, sys, torch
torch.set_num_threads(1)
from clearhead.training.checkpoint import Checkpoints
store = Checkpoints(sys.argv[1], keep=int(sys.argv[2]))
for line in sys.stdin:
    step, process = int(line), os.fork()
    while process == 0:
        step += 1
        numbers = torch.randn(200_000, generator=torch.Generator().manual_seed(step))
        store.save(step, {"numbers": numbers, "step": torch.tensor(step)}, {"step": step, "text": "x" * step})
        print(step, flush=True)
    print("process", process, flush=True)
    os.waitpid(process, 0)
    print("ended", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be copied here")
@pytest.mark.parametrize("keep", [1, 2])
def test_killed_at_any_moment_a_whole_checkpoint_is_there(tmp_path: Path, keep: int) -> None:
    """kill -9 in a loop of saves, again and again in one folder."""
    folder = tmp_path / "checkpoints"
    chance = random.Random(keep)
    step = unfinished = 0
    pace = 0.08  # seconds until a kill, at most; more where the machine is slow
    command = [sys.executable, "-c", SAVERS, str(folder), str(keep)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as savers:
        assert savers.stdin is not None
        assert savers.stdout is not None
        for _ in range(25):
            told = kill_one(savers.stdin, savers.stdout, step, chance.uniform(0.0, pace))
            pace *= 1.4 if told == step else 1.0
            unfinished += folder.exists() and any(path.name.startswith(".") for path in folder.iterdir())
            found, sentences = Checkpoints(folder, keep).newest()
            assert sentences == []
            if found is None:
                assert told == 0  # killed before the first one was whole
                continue
            # what was said to be saved is there; one more may have been finished and not yet said
            assert found.step in (told, told + 1)
            pruned = told > step  # some save came to its end; else kills before the pruning may add up
            step = found.step
            assert torch.equal(
                found.tensors["numbers"], torch.randn(200_000, generator=torch.Generator().manual_seed(step))
            )
            assert int(found.tensors["step"]) == step
            assert found.facts == {"step": step, "text": "x" * step}
            left = sorted(path.name for path in folder.iterdir())
            assert all(name.startswith("step-") for name in left), left
            assert not pruned or len(left) <= keep + 1
        savers.stdin.close()
    assert step > 0
    assert unfinished > 0  # some kills must have come in the middle


def kill_one(orders: IO[str], answers: IO[str], step: int, seconds: float) -> int:
    """Let a process save from `step` on, kill it after `seconds`; the last step it said to have saved."""
    orders.write(f"{step}\n")
    orders.flush()
    told = step
    while not (line := answers.readline()).startswith("process"):
        told = int(line)
    time.sleep(seconds)
    os.kill(int(line.split()[1]), signal.SIGKILL)
    while not (line := answers.readline()).endswith("ended\n"):  # behind what the kill cut short, maybe
        told = int(line)
    return told


def draw() -> list[object]:
    return [
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        numpy.random.rand(3).tolist(),
        numpy.random.randn(),  # draws a pair and keeps the second
        random.random(),
        random.gauss(0, 1),  # so does this
    ]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), draws=st.integers(0, 3))
def test_chance_goes_on_where_it_stood(seed: int, draws: int, stored_chance: Path) -> None:
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)
    for _ in range(draws):
        draw()
    store = Checkpoints(stored_chance)
    store.save(1, rng_tensors(), {})
    expected = [draw() for _ in range(3)]
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    draw()
    found, _ = store.newest()
    assert found is not None
    set_rng(found.tensors)
    assert [draw() for _ in range(3)] == expected


@pytest.fixture(scope="module")
def stored_chance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chance")


@pytest.mark.gpu
def test_chance_on_the_gpu_goes_on_too() -> None:
    torch.rand(5, device="cuda")
    stored = rng_tensors()
    assert "cuda/0" in stored
    expected = torch.rand(5, device="cuda")
    torch.cuda.manual_seed(0)
    set_rng(stored)
    assert torch.equal(torch.rand(5, device="cuda"), expected)
