"""The experiments behind `clearhead quiz` show what they say they show."""

from __future__ import annotations

import io
import math
import sys

import pytest
import torch

from clearhead.cli.main import main
from clearhead.jobs import experiments
from clearhead.jobs.experiments import EXPERIMENTS, Experiment
from clearhead.lectures import SOURCES, names


def columns(found: Experiment) -> dict[str, list[str]]:
    """By the row's name, its cells."""
    assert all(len(row) == len(found.columns) for row in found.rows)
    return {name: list(cells) for name, *cells in found.rows}


def share(cell: str) -> float:
    return float(cell.removesuffix(" %")) / 100


def test_every_experiment_belongs_to_a_question() -> None:
    assert set(EXPERIMENTS) <= {name for name in names() if SOURCES[name].question}


def test_the_made_up_language_is_what_its_floors_say() -> None:
    """Counted over many draws: a free register, determined words, verbs that agree."""
    with experiments.seeded() as chance:
        (sources, read), target = experiments.translations(chance)(4000)
    assert torch.equal(read[:, 1:], target[:, :-1])
    register = target[:, :1] - experiments.REGISTER
    assert float(register.double().mean()) == pytest.approx(0.5, abs=0.05)
    words = sources - experiments.SOURCE
    for word in range(2 * experiments.KINDS):
        for form in (0, 1):
            chosen = target[:, 1:][(words == word) & (register == form)]
            assert len(chosen.unique()) == 1  # the word and the register determine it
    follow = experiments.successors()
    assert (follow[..., 0] != follow[..., 1]).all()
    theme, told = experiments.stories(torch.Generator().manual_seed(1))(50)
    for row, which in zip(told.tolist(), theme.tolist(), strict=True):
        for before, word in zip([experiments.WORDS, *row], row, strict=False):
            assert word in follow[which, before].tolist()


def test_a_silenced_source_gives_one_output_whatever_was_learned() -> None:
    """Without a single step of training, too: nothing of the source is left to depend on."""
    found = columns(experiments.cross_attention(steps=2))
    assert found["cross-attention switched off after training"][-1] == "1"
    assert found["trained without cross-attention"][-1] == "1"


def test_what_needs_no_training() -> None:
    rows = columns(experiments.exchanged_roles())
    assert (rows["decoder"][1], rows["encoder"][1]) == ("3", "5")
    longer = columns(experiments.past_the_table())
    assert "learned positions for 8 tokens" in longer["learned"][-1]
    assert longer["rotary"] == longer["sinusoidal"] == ["an answer", "an answer"]


@pytest.mark.slow
def test_what_the_experiments_show() -> None:
    found = columns(experiments.cross_attention())
    whole, afterwards, blind, alone = found.values()
    floor = math.log(2) / (experiments.LENGTH + 1)
    without = (math.log(2) + experiments.LENGTH * math.log(2 * experiments.KINDS)) / (experiments.LENGTH + 1)
    assert floor < float(whole[0]) < floor + 0.05
    assert without - 0.02 < float(blind[0]) < without + 0.05
    assert share(whole[1]) == share(whole[2]) == 1
    assert share(afterwards[1]) < 0.3
    assert share(alone[1]) == 1
    assert share(alone[2]) < 0.9
    masked, unmasked = columns(experiments.causal_mask()).values()
    assert float(unmasked[0]) < math.log(2) < float(masked[0])
    assert share(masked[1]) > 0.95 > 0.85 > share(unmasked[1])
    encoder, decoder, both = columns(experiments.architectures()).values()
    assert min(share(one[1]) for one in (encoder, decoder, both)) > 0.9
    assert share(encoder[2]) > 0.95 > 0.8 > share(decoder[2])
    assert min(share(decoder[3]), share(both[3])) > 0.95 > 0.6 > share(encoder[3])


def test_the_quiz_asks_waits_and_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quiz", "which-is-correct"]) == 0  # nobody is there to wait for
    shown = capsys.readouterr().out
    source = SOURCES["which-is-correct"]
    assert (
        shown.index(source.question) < shown.index(source.answer) < shown.index("Beyond the maximum length")
    )

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("q\n"))
    assert main(["quiz", "layer-norm"]) == 0
    shown = capsys.readouterr().out
    assert SOURCES["layer-norm"].question in shown
    assert SOURCES["layer-norm"].answer not in shown
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    assert main(["quiz", "layer-norm"]) == 0
    assert SOURCES["layer-norm"].answer in capsys.readouterr().out
    assert main(["quiz", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == sum(bool(one.question) for one in SOURCES.values())
    assert main(["quiz", "layer-nrom"]) == 2
    assert "did you mean 'layer-norm'" in capsys.readouterr().err
