"""Comparisons: who takes part, at what size; runs that are measured, resumed and drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.cli.main import main
from clearhead.data.encodings import Pairs
from clearhead.jobs import compare as job
from clearhead.jobs import compare_page
from clearhead.jobs import gradient_by_distance as gradients
from clearhead.jobs.compare_page import figure, page, table
from clearhead.jobs.members import CompareConfig, Comparison, Member, differing, invited
from clearhead.jobs.refusals import check_settings
from clearhead.models.build import count_parameters
from clearhead.tasks import TASKS
from clearhead.training.flops import StepFlops

from ..models.families import ids, model_for
from .making import settings, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")
BASE = {"model": {"width": 128, "layers": 2, "attention": {"heads": 4}, "feedforward": {"width": 256}}}


def base_of(tmp_path: Path) -> Any:
    """A run as sizing would have it for a vocabulary of 8,000."""
    found = check_settings(settings(write_corpus(tmp_path), **BASE))
    return found.replace(model__vocabulary=8000)


# --- who takes part --------------------------------------------------------------------------------


def test_members_are_named_architectures_times_what_varies() -> None:
    config = CompareConfig(
        architectures=("gru", "transformer"), vary={"model.layers": (1, 2), "model.norm.kind": ("rms", None)}
    )
    found = differing(config, writes=True)
    assert list(found) == [
        f"{name} layers={layers}, norm.kind={kind}"
        for name in ("gru", "transformer")
        for layers in (1, 2)
        for kind in ("rms", "none")
    ]
    assert (
        found["gru layers=2, norm.kind=none"]["model"]["layers"] == 2
    )  # what varies goes before the name's own
    assert list(differing(CompareConfig(vary={"model.causal_mask": (True, False)}), True)) == [
        "causal_mask=true",
        "causal_mask=false",
    ]
    assert len(differing(CompareConfig(), writes=True)) == 9
    assert list(differing(CompareConfig(), writes=False)) == ["encoder", "decoder", "encoder-decoder"]
    with pytest.raises(UserError, match="no architecture 'gruu': did you mean 'gru'"):
        differing(CompareConfig(architectures=("gruu",)), True)


@pytest.mark.parametrize("equal", ["parameters", "flops"])
def test_members_are_made_equal_by_their_widths(tmp_path: Path, equal: str) -> None:
    base, said = base_of(tmp_path), settings(write_corpus(tmp_path), **BASE)
    names = ("rnn", "lstm+attention", "convs2s", "transformer", "decoder")
    config = CompareConfig.from_dict({"architectures": list(names), "equal": equal})
    sizes = {}
    for one in invited(config, said, base, writes=True):
        assert one.model is not None, one.refused
        lengths = (1, 0, 50) if one.model.family == "decoder" else (1, 25, 25)
        by = {"parameters": count_parameters, "flops": lambda model, at=lengths: StepFlops(model)(*at)}[equal]
        sizes[one.name] = by(one.model)
        if one.model.family in ("encoder-decoder", "decoder"):
            inner = one.model.feedforward.width
            assert inner == pytest.approx(2 * one.model.width, abs=1), "the shape stays"
    wanted = sizes["transformer"]
    assert {name: size / wanted for name, size in sizes.items()} == {
        name: pytest.approx(1.0, abs=0.05) for name in sizes
    }


def test_what_a_member_sets_itself_is_left_alone(tmp_path: Path) -> None:
    base, said = base_of(tmp_path), settings(write_corpus(tmp_path), **BASE)
    config = CompareConfig(vary={"model.width": (64, 128), "steps": (6, 12)})
    members = invited(config, said, base, True)
    found = [(one.model.width if one.model else None, one.settings["steps"]) for one in members]
    assert found == [(64, 6), (64, 12), (128, 6), (128, 12)]
    assert [check_settings(one.settings).schedule.steps for one in members] == [6, 12, 6, 12]
    with pytest.raises(UserError, match="'seed' cannot vary"):
        differing(CompareConfig(vary={"seed": (1, 2)}), True)


def test_a_member_that_cannot_be_trained_is_told_and_left_out(tmp_path: Path) -> None:
    base, said = base_of(tmp_path), settings(write_corpus(tmp_path), **BASE)
    config = CompareConfig(architectures=("encoder", "decoder"))
    encoder, decoder = invited(config, said, base, True)
    assert "cannot train a model of the family 'encoder'" in str(encoder.refused)
    assert decoder.refused is None
    with pytest.raises(UserError, match="cannot train a model"):
        invited(CompareConfig(architectures=("encoder",)), said, base, True)
    with pytest.raises(UserError, match="no architectures to compare for the task 'image': vary a setting"):
        invited(CompareConfig(), {**said, "task": "image"}, base.replace(task="image"), False)


def test_axes_are_read_like_settings() -> None:
    assert job.axes_of(["a.b=1,x,true"]) == {"a.b": (1, "x", True)}
    for wrong, words in (("a.b", "Write an axis as"), ("a=1,1", "has a value twice")):
        with pytest.raises(UserError, match=words):
            job.axes_of([wrong])


# --- what is measured ------------------------------------------------------------------------------


def test_confidence_is_student_s() -> None:
    found = figure([1.0, 2.0, 4.0])
    assert found is not None
    assert (found.mean, found.half) == (pytest.approx(7 / 3), pytest.approx(4.303 * 1.5275252 / math.sqrt(3)))
    assert figure([]) is None
    assert str(figure([5.0])) == "5"
    many = figure([float(i) for i in range(40)])
    assert many is not None
    assert many.half == pytest.approx(2.0227 * 11.69045 / math.sqrt(40), rel=0.01)


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "decoder", "encoder"])
def test_gradients_equal_those_of_the_embeddings_given_by_hand(family: str) -> None:
    """Each label's gradient, taken alone, at embeddings that are a leaf of their own."""
    head = {"head__kind": "classify", "head__classes": 3} if family == "encoder" else {}
    net: Any = model_for(family, dtype=torch.float32, **head)
    pair = family in ("encoder-decoder", "recurrent")
    source, target = ids(2, 5), ids(2, 4, seed=1)
    labels = torch.tensor([1, 2]) if family == "encoder" else ids(2, 4, seed=2)
    read, lengths = (source, [5, 3]) if pair or family == "encoder" else (target, [4, 2])
    batch = gradients.Batch.of(
        inputs=target if pair else read,
        lengths=torch.tensor([4, 4]) if pair else torch.tensor(lengths),
        labels=labels,
        rows=2,
        source=source if pair else None,
        source_lengths=torch.tensor(lengths) if pair else None,
    )
    found = [
        (int(d), float(norm))
        for distances, norms in gradients._of_batch(net, batch)
        for d, norm in zip(distances, norms, strict=True)
    ]
    wanted = []
    embedding = net.source_embedding if pair else net.embedding
    given = [] if embedding.__class__.__name__ == "TokenEmbedding" else [gradients_tokens(read)]
    vectors = embedding(read, *given).detach().requires_grad_()
    calls = iter([vectors])
    hook = embedding.register_forward_hook(lambda *_: next(calls, None))
    logp = gradients.run_model(net, batch).log_softmax(-1)
    hook.remove()
    for t in range(1 if family == "encoder" else 4):
        for row in range(2):
            one = logp[row] if family == "encoder" else logp[row, t]
            label = labels[row] if family == "encoder" else labels[row, t]
            (gradient,) = torch.autograd.grad(one[label], vectors, retain_graph=True)
            for s in range(lengths[row]):
                norm = float(gradient[row, s].norm())
                far = lengths[row] - s + (t if pair else 0)
                if family == "decoder":
                    far = abs(t - s) + 1
                    if norm == 0.0:
                        continue
                wanted.append((far, norm))
    assert sorted(far for far, _ in found) == sorted(far for far, _ in wanted)
    assert sorted(norm for _, norm in found) == pytest.approx(sorted(norm for _, norm in wanted), rel=1e-4)
    assert embedding._forward_hooks == {}
    if family == "encoder-decoder":
        deaf = model_for(family, dtype=torch.float32, cross_attention=False)
        assert all(not norms.any() for _, norms in gradients._of_batch(deaf, batch))


def gradients_tokens(tokens: torch.Tensor) -> Any:
    from clearhead.nn.tokens import Tokens

    return Tokens.padded(tokens.shape[1])


# --- whole comparisons -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], CompareConfig]:
    """Two members, one of which cannot take part, two seeds, four steps."""
    folder = tmp_path_factory.mktemp("compare")
    said = settings(write_corpus(folder), steps=4, validation={"every": 2})
    config = CompareConfig(architectures=("gru", "encoder"), seeds=2)
    job.compare(folder / "out", said, config, view="quiet", processes=1)
    return folder / "out", said, config


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their charts, which `test_a_comparison_measures_and_draws` looks at."""
    monkeypatch.setattr(compare_page, "svg", lambda height, draw: "<svg></svg>")


def test_a_comparison_measures_and_draws(compared: tuple[Path, dict[str, Any], CompareConfig]) -> None:
    out, _, _ = compared
    found = job.read(out)
    assert {name: len(results) for name, results in found.results.items()} == {"gru": 2}
    for results in found.results.values():
        for one in results:
            assert one["parameters"] > 0
            assert one["flops"] > 0
            assert one["planned_bytes"] > 0
            assert one["gradients"]
            assert one["by_length"]
            assert "BLEU" in one["figures"]
            assert one["decode_tokens_per_second"] > 0
            assert len(one["curve"]) == 2
    assert found.results["gru"][0]["figures"] != found.results["gru"][1]["figures"], "seeds differ"
    shown = table(found)
    assert [row[0] for row in shown.rows] == ["gru", "encoder"]
    assert shown.rows[1][1] == "cannot"
    assert " ± " in shown.rows[0][1]
    assert (out / "compare.md").read_text(encoding="utf-8").startswith("# Comparison: translate")
    html = (out / "compare.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 4
    assert "http-equiv" not in html
    assert "is left out" in html
    assert [one.title for one in page(found, draw=False).sections][3:] == [
        "Gradient by distance",
        "Validation loss",
    ]


@pytest.mark.parametrize("task", ["image", "music"])
def test_pictures_and_pieces_are_compared(task: str, tmp_path: Path, undrawn: None) -> None:
    said = settings(write_corpus(tmp_path, task), task, steps=3, validation={"every": 3})
    said["tokenizer"] = {"vocabulary": 600}
    config = CompareConfig(vary={"model.layers": (1, 2)}, equal="none", seeds=1)
    found = job.compare(tmp_path / "out", said, config, view="quiet", processes=1)
    for results in found.results.values():
        assert bool(results[0]["gradients"]) == (task == "music")  # a picture is no sequence
        assert results[0]["by_length"] == []
    titles = [one.title for one in page(found, draw=False).sections]
    assert ("Gradient by distance" in titles) == (task == "music")
    assert len(table(found).rows) == 2


def result(**figures: float) -> dict[str, Any]:
    facts = {"device": "cpu", "dtype": "float32", "by_length": [], "gradients": [], "curve": [], "load": []}
    sizes = {"parameters": 1, "width": 1, "flops": 1.0, "planned_bytes": 1}
    speeds = {"train_tokens_per_second": None, "decode_tokens_per_second": None}
    return {"figures": figures, **facts, **sizes, **speeds}


def test_every_metric_is_shown_and_the_compared_one_by_length() -> None:
    scores = {"BLEU": 3.0, "mean sentence ROUGE-L": 20.0}
    one = result(**{"ROUGE-1": 10.0, "perplexity": 9.0}) | {"by_length": [{"low": 1, "scores": scores}]}
    other = result(**{"ROUGE-1": 12.0, "perplexity": 7.0})
    found = Comparison(CompareConfig(), "summarise", [Member("D", {})], {"D": [one, other]})
    sections = {part.title: part.tables[0] for part in page(found, draw=False).sections if part.tables}
    assert sections["All metrics"].header == ("member", "ROUGE-1", "perplexity")
    assert sections["All metrics"].rows == [["D", "11 ± 13", "8 ± 13"]]
    assert sections["mean sentence ROUGE-L by source length"].rows == [["1", "20.00"]]
    alone = Comparison(CompareConfig(), "generate", [Member("D", {})], {"D": [result(perplexity=9.0)]})
    assert [part.title for part in page(alone, draw=False).sections] == ["Figures"]


def test_the_load_of_experts_is_shown() -> None:
    """How it began, where it was halfway, how it ended, and when it was first nearly even."""
    line = [[10, 2.5], [20, 1.3], [30, 1.09], [40, 1.02]]
    one = result(perplexity=9.0)
    members = [Member(name, {}) for name in ("dense", "experts", "uneven")]
    results = {
        "dense": [{**one, "load": []}],
        "experts": [{**one, "load": line}],
        "uneven": [{**one, "load": line[:1]}],
    }
    shown = page(Comparison(CompareConfig(), "generate", members, results), draw=False)
    [section] = [part for part in shown.sections if part.title == "Load of the experts"]
    assert section.tables[0].rows == [
        ["experts", "2.50", "1.30", "1.02", "30"],
        ["uneven", "2.50", "2.50", "2.50", "never"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_it_goes_on_where_it_was(
    compared: tuple[Path, dict[str, Any], CompareConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost result is measured again by resuming its run; what is there is not touched."""
    out, said, config = compared
    lost = out / "results" / "gru-seed2.json"
    before = json.loads(lost.read_text())
    lost.unlink()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a run was begun anew")

    monkeypatch.setattr(job, "train", never)
    job.compare(out, said, config, view="quiet", processes=1)
    after = json.loads(lost.read_text())
    for name in ("figures", "gradients", "by_length", "curve", "flops"):
        assert after[name] == before[name]
    monkeypatch.setattr(job, "resume", never)
    job.compare(out, view="quiet")  # nothing is left to do
    with pytest.raises(UserError, match="another comparison"):
        job.compare(out, said, CompareConfig(architectures=("lstm",)))
    with pytest.raises(UserError, match="is not empty"):
        job.compare(out / "gru-seed1", said, config)
    with pytest.raises(UserError, match="no comparison to resume in"):
        job.compare(out / "nowhere")


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_fails_keeps_no_other_from_its_end(
    compared: tuple[Path, dict[str, Any], CompareConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _, _ = compared
    kept = {path: path.read_text() for path in (out / "results").iterdir()}
    for path in kept:
        path.unlink()

    def broken(place: Path, **_: Any) -> None:
        raise UserError(f"The loss of '{place.name}' was not finite.")

    monkeypatch.setattr(job, "resume", broken)
    assert main(["compare", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "gru-seed1 did not finish: The loss of 'gru-seed1' was not finite." in said.out
    assert "gru-seed2 did not" in said.out
    assert "retries the runs that failed" in said.err
    for path, text in kept.items():
        path.write_text(text)


@pytest.mark.usefixtures("undrawn")
def test_the_command_shows_the_table(
    compared: tuple[Path, dict[str, Any], CompareConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _, _ = compared
    assert main(["compare", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "training FLOPs" in said
    assert "gru" in said
    assert "compare.html" in said
    assert main(["compare", "--out", str(out), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["results"]) == {"gru"}


@pytest.mark.parametrize(
    "given, words",
    [
        ((), "Say where to put the comparison"),
        (("--out", "x", "--vary", "a=1"), "Say what to train on"),
        (("--out", "x", "--file", "f", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("--out", "x", "--file", "f", "--equal", "size"), "'compare.equal' cannot be 'size'"),
        (("--out", "x", "--file", "f", "--architectures", "lstn"), "did you mean 'lstm'"),
    ],
)
def test_mistakes_are_one_sentence(
    given: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *given]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_runs_side_by_side_are_the_same(tmp_path: Path) -> None:
    said = settings(write_corpus(tmp_path), steps=4)
    config = CompareConfig(vary={"model.position.name": ("rotary", "alibi")}, seeds=1)
    alone = job.compare(tmp_path / "one", said, config, view="quiet", processes=1)
    both = job.compare(tmp_path / "two", said, config, view="quiet", processes=2)
    for name, results in alone.results.items():
        assert both.results[name][0]["figures"] == results[0]["figures"]


def test_every_task_has_somebody_to_compare() -> None:
    for task in TASKS.values():
        names = differing(CompareConfig(), task.columns.writes)
        families = {one.get("model", {}).get("family", task.families[0].name) for one in names.values()}
        assert families & {family.name for family in task.families} or task.name in ("generate", "image")
    assert isinstance(TASKS["translate"].encoding("convolutional"), Pairs)
