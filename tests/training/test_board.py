"""TensorBoard's files hold the log's own figures, and the run does not notice them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clearhead.training.board import Board
from clearhead.training.interrupt import Interrupted
from clearhead.training.log import read_log
from clearhead.training.validation import Checked
from clearhead.training.view import Sample

from .making import a_trainer, run_config
from .test_events import events, fields, scalars_of

FILES = "events.out.tfevents.*"


def points(folder: Path) -> dict[tuple[str, int], float]:
    """Curve and step → value, over all files of a folder."""
    found = {}
    for path in sorted(folder.glob(FILES)):
        for event in events(path):
            if 5 in event and 8 not in fields(fields(event[5][0])[1][0]):
                found.update({(tag, event[2][0]): value for tag, value in scalars_of(event).items()})
    return found


def texts(folder: Path) -> list[str]:
    return [
        fields(value[8][0])[8][0].decode()
        for path in sorted(folder.glob(FILES))
        for event in events(path)
        if 5 in event
        for value in [fields(fields(event[5][0])[1][0])]
        if 8 in value
    ]


def looking(model: torch.nn.Module) -> Checked:
    return Checked({"bleu": 12.5}, [Sample("un # deux", "a\nb", "out <b>")])


def test_the_curves_are_those_of_the_log(tmp_path: Path) -> None:
    a_trainer(tmp_path / "data", tmp_path / "run", run_config(), validator=looking).run()
    found = points(tmp_path / "run")
    logged = 0
    for record in (one for one in read_log(tmp_path / "run") if one["kind"] != "finding"):
        for name, value in record.items():
            if name not in ("kind", "step", "best"):
                assert found[f"{record['kind']}/{name}", record["step"]] == pytest.approx(value, rel=1e-6)
                logged += 1
    assert logged > 30
    assert ("clock/seconds", 12) in found
    assert texts(tmp_path / "run")[0] == (
        "    source: un # deux\n    reference: a\n    reference: b\n    output: out <b>"
    )


def test_a_run_is_the_same_with_and_without(tmp_path: Path) -> None:
    for name, wanted in (("with", True), ("without", False)):
        config = run_config(saving__tensorboard=wanted)
        a_trainer(tmp_path / "data", tmp_path / name, config, validator=looking).run()
    assert not list((tmp_path / "without").glob(FILES))
    logs = [(tmp_path / name / "log.jsonl").read_bytes() for name in ("with", "without")]
    assert logs[0] == logs[1]


def test_a_resumed_run_says_where_it_went_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = a_trainer(tmp_path / "data", folder, run_config())
    trainer.snapshots.restore()

    def stop(model: torch.nn.Module) -> Checked:
        trainer.save()
        raise Interrupted(trainer.state.step, "a test")

    trainer.validator = stop
    with pytest.raises(Interrupted):
        trainer.run()
    a_trainer(tmp_path / "data", folder, run_config()).run()
    first, second = (events(path) for path in sorted(folder.glob(FILES)))
    assert not any(7 in event for event in first)
    assert second[1][2] == [5]  # the first step that is new
    assert 7 in second[1]


def test_a_finished_run_that_is_opened_again_writes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        a_trainer(tmp_path / "data", tmp_path / "run", run_config()).run()
    assert len(list((tmp_path / "run").glob(FILES))) == 1


def test_what_has_no_value_has_no_point(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.curves("clock", 1, {"mfu": None})
    board.samples(1, [])
    assert not list(tmp_path.glob(FILES))
    board.curves("clock", 2, {"mfu": None, "seconds": 3.0})
    board.close()
    board.close()
    assert points(tmp_path) == {("clock/seconds", 2): 3.0}
