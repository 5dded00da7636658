"""Evidence is what really happens: each number is found again by brute force on a copy of the model."""

from __future__ import annotations

import copy
import itertools
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.explorer import evidence as views
from clearhead.explorer import interventions
from clearhead.explorer.evidence import evidence, kendall, sentence
from clearhead.explorer.interventions import SHUFFLES, shuffled, without_each
from clearhead.nn.attention.problem import masked_softmax

from .conftest import SEVERAL

Make = Callable[..., Any]
TEXT, TARGET = "who sees the old green house ?", "qui voit la vieille maison ?"
CLOSE = 2e-5  # float32 through a few layers

# model, kind of attention, and dials that change how attention is computed
CASES = [
    ("encoder-decoder", "encoder.self", {}),
    ("encoder-decoder", "decoder.self", {}),
    ("encoder-decoder", "decoder.cross", {}),
    ("separate", "decoder.cross", {"position__name": "rotary", "attention__kv_heads": 2}),
    ("encoder-decoder", "decoder.self", {"position__name": "shaw", "position__values": True}),
    ("encoder-decoder", "encoder.self", {"position__name": "t5", "attention__softcap": 5.0}),
    ("decoder", "decoder.self", {"position__name": "alibi"}),
    ("decoder", "decoder.self", {"position__name": "learned", "position__max_length": 16}),
    ("encoder", "encoder.self", {}),
    ("encoder", "encoder.self", {"head__kind": "tag"}),
    ("encoder", "encoder.self", {"head__kind": "mlm"}),
    ("encoder", "encoder.self", SEVERAL),
    ("encoder-decoder", "decoder.cross", {"residual": False}),
    ("decoder", "decoder.self", {"causal_mask": False}),
    ("encoder-decoder", "decoder.self", {"cross_attention": False, "causal_mask": False}),
    ("encoder-decoder", "encoder.self", {"cross_attention": False}),
]


def edited(session: Any, kind: str, layer: int, edit: Callable[[Tensor], None]) -> Any:
    """A copy whose attention makes its weights by the definition, and lets them be changed in place."""
    model = copy.deepcopy(session.model)
    stack, part = kind.split(".")
    one = getattr(model, stack).layers[layer]
    attention = one.attention if part == "self" else one.cross_attention

    def kernel(problem: Any) -> Tensor:
        scores, allowed = problem.block(problem.q, problem.k, problem.queries, problem.keys)
        weights = masked_softmax(scores, allowed)
        edit(weights)
        return problem.mix(weights, problem.v, problem.queries, problem.keys)

    attention.kernel = kernel
    return model


def outcome(model: Any, session: Any, kind: str, row: int, target: str | None) -> tuple[Tensor, Tensor]:
    """The watched log-probability by hand, and the distributions it is from."""
    trace = session.trace(TEXT, target)
    with torch.no_grad():
        logits, own = (m(*trace.inputs).logits[0].double() for m in (model, session.model))
    if kind.startswith("decoder"):
        rows, ids = [row], [int(own[row].argmax())]
    elif session.has_source:
        rows, ids = list(range(len(trace.target))), list(trace.reading.following)
    elif session.config.head.kind == "classify":
        logits, own = logits[None], own[None]
        rows, ids = [0], [int(own[0].argmax())]
    elif session.config.head.columns:
        logits, own = logits[row], own[row]
        rows, ids = list(range(len(own))), own.argmax(-1).tolist()
    else:
        rows, ids = [row], [int(own[row].argmax())]
    chances = logits[rows].softmax(-1)
    return sum(chances[i, id].log() for i, id in enumerate(ids)), chances  # type: ignore[return-value]


@pytest.mark.parametrize("kind_of_model, kind, dials", CASES)
@pytest.mark.parametrize("row", [0, 4])
def test_every_number_by_brute_force(
    session_of: Make, kind_of_model: str, kind: str, dials: Any, row: int
) -> None:
    session = session_of(kind_of_model, "pre", **dials)
    target = TARGET if session.has_source else None
    layer, head = 1 if row else 0, 2
    found = evidence(session, TEXT, target, kind=kind, layer=layer, head=head, row=row)
    json.dumps(found, allow_nan=False)
    weights = session.trace(TEXT, target).attention(kind, layer, head)[row]
    assert found["weights"] == weights.tolist()
    seen = row + 1 if kind == "decoder.self" and session.config.causal_mask else len(weights)
    assert (found["visible"], found["tried"]) == (seen, seen)

    given: list[Tensor] = []

    def edit(all: Tensor) -> None:
        all[:, head, row] = given[-1]

    model = edited(session, kind, layer, edit)

    def changed(new: Tensor) -> tuple[float, Tensor]:
        given.append(new)
        value, chances = outcome(model, session, kind, row, target)
        return float(value), chances

    before, chances = outcome(session.model, session, kind, row, target)
    for name in ("head_ablation", "permuted"):
        assert found[name]["before"] == pytest.approx(float(before), abs=CLOSE)
    for column in range(len(weights)):
        new = weights.clone()
        new[column] = 0.0
        new = new / new.sum() if float(new.sum()) > 0 else new
        assert found["ablated"][column] == pytest.approx(changed(new)[0] - float(before), abs=CLOSE)
        assert column < seen or found["ablated"][column] == found["gradient"][column] == 0.0

    after = [changed(new) for new in shuffled(weights, torch.arange(seen))]
    assert found["permuted"]["mean_after"] == pytest.approx(sum(x for x, _ in after) / SHUFFLES, abs=CLOSE)
    moved = sum(float((other - chances).abs().sum(-1).mean()) / 2 for _, other in after) / SHUFFLES
    assert found["permuted"]["total_variation"] == pytest.approx(moved, abs=CLOSE)

    def silence(all: Tensor) -> None:
        all[:, head] = 0.0

    silent, _ = outcome(edited(session, kind, layer, silence), session, kind, row, target)
    assert found["head_ablation"]["after"] == pytest.approx(float(silent), abs=CLOSE)
    assert found["tau"]["gradient"] == kendall(found["weights"][:seen], found["gradient"][:seen])


@pytest.mark.parametrize(
    "kind_of_model, kind", [*((m, k) for m, k, dials in CASES if not dials), ("recurrent", "decoder.cross")]
)
def test_gradient_times_input_is_the_slope_of_a_stretched_embedding(
    session_of: Make, kind_of_model: str, kind: str
) -> None:
    """Stretch one token's vector by 1 + ε: the slope of log p in ε is Σ gradient · input."""
    session = session_of(kind_of_model)
    target = TARGET if session.has_source else None
    row = 3
    found = evidence(session, TEXT, target, kind=kind, layer=0, head=0, row=row)
    model, side = copy.deepcopy(session.model).double(), "target" if kind == "decoder.self" else "source"
    name = next(one for one in (f"{side}_embedding", "embedding") if hasattr(model, one))
    if kind_of_model == "recurrent":  # one table for both sides
        model.source_embedding = copy.deepcopy(model.target_embedding)
    factors = torch.ones(len(found["columns"]), 1).double()
    getattr(model, name).register_forward_hook(lambda _, __, vectors: vectors * factors)
    for column in range(len(factors)):
        values = []
        for stretch in (1 + 1e-5, 1 - 1e-5):
            factors[column] = stretch
            values.append(float(outcome(model, session, kind, row, target)[0]))
        factors[column] = 1.0
        slope = abs(values[0] - values[1]) / 2e-5
        assert found["gradient"][column] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_the_recurrent_model_by_brute_force(session_of: Make) -> None:
    session = session_of("recurrent")
    row = 2
    found = evidence(session, TEXT, TARGET, kind="decoder.cross", layer=0, head=0, row=row)
    weights = session.trace(TEXT, TARGET).attention("decoder.cross", 0, 0)[row]
    assert found["weights"] == weights.tolist()
    before, _ = outcome(session.model, session, "decoder.cross", row, TARGET)
    for column in range(len(weights)):
        model, step = copy.deepcopy(session.model), itertools.count()
        own = model._attend

        def attend(*given: Any, column: int = column, own: Any = own, step: Any = step) -> Tensor:
            made = own(*given)
            if next(step) == row:
                made[..., column] = 0.0
                made = made / made.sum(-1, keepdim=True)
            return made

        model._attend = attend
        value, _ = outcome(model, session, "decoder.cross", row, TARGET)
        assert found["ablated"][column] == pytest.approx(float(value - before), abs=CLOSE)
    silent = copy.deepcopy(session.model)
    silent._attend = lambda *given: session.model._attend(*given) * 0.0
    value, _ = outcome(silent, session, "decoder.cross", row, TARGET)
    assert found["head_ablation"]["after"] == pytest.approx(float(value), abs=CLOSE)


def test_predictions_are_named(session_of: Make) -> None:
    session = session_of()
    trace = session.trace(TEXT, TARGET)
    found = evidence(session, TEXT, TARGET, kind="decoder.cross", layer=0, head=0, row=2)
    assert found["predicted"]["id"] == int(trace.logits[2].argmax())
    assert found["columns"] == trace.source
    whole = evidence(session, TEXT, TARGET, kind="encoder.self", layer=0, head=0, row=2)
    assert whole["predicted"] == {"id": -1, "text": TARGET, "kind": "word"}
    assert "whole target" in whole["what"]
    labels = session_of("encoder")
    chosen = int(labels.trace(TEXT).logits.argmax())
    found = evidence(labels, TEXT, kind="encoder.self", layer=0, head=0, row=1)
    assert found["predicted"]["text"] == labels.bundle.metadata["labels"][chosen]


def test_rows_in_small_groups_give_the_same(session_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("encoder.self", "decoder.self", "decoder.cross"):
        session = session_of()
        asked = {"kind": kind, "layer": 1, "head": 0, "row": 3}
        at_once = evidence(session, TEXT, TARGET, **asked)
        monkeypatch.setattr(interventions, "MOST_NUMBERS", 1)
        one_by_one = evidence(session, TEXT, TARGET, **asked)
        monkeypatch.undo()
        assert one_by_one["ablated"] == pytest.approx(at_once["ablated"], abs=CLOSE)
        assert one_by_one["permuted"] == pytest.approx(at_once["permuted"], abs=CLOSE)


def test_in_a_long_encoder_text_the_largest_weights_are_tried(
    session_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("encoder")
    text = f"{TEXT} {TEXT}"
    whole = evidence(session, text, kind="encoder.self", layer=0, head=0, row=3)
    monkeypatch.setattr(views, "TOKENS", 0)
    found = evidence(session, text, kind="encoder.self", layer=0, head=0, row=3)
    weights = found["weights"]
    largest = sorted(range(len(weights)), key=lambda column: -weights[column])[: views.FEWEST]
    assert found["tried"] == views.FEWEST < found["visible"] == len(weights)
    assert {column for column, value in enumerate(found["ablated"]) if value is not None} == set(largest)
    assert [found["ablated"][one] for one in largest] == pytest.approx(
        [whole["ablated"][one] for one in largest], abs=CLOSE
    )


# --- the model is left as it was ----------------------------------------------------------------


def fingerprint(model: Any) -> tuple[Any, ...]:
    kernels = [getattr(module, "kernel", None) for module in model.modules()]
    names = [(name, id(module)) for name, module in model.named_modules()]
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    return names, kernels, hooks, [(p.grad, p.requires_grad, p._version) for p in model.parameters()]


@pytest.mark.parametrize("kind_of_model", ["encoder-decoder", "decoder", "encoder", "recurrent"])
def test_the_model_is_never_touched(
    session_of: Make, kind_of_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(kind_of_model)
    target = TARGET if session.has_source else None
    before = fingerprint(session.model)
    weights = {name: tensor.clone() for name, tensor in session.model.state_dict().items()}
    for kind in session.kinds:
        evidence(session, TEXT, target, kind=kind, layer=0, head=0, row=2)
    monkeypatch.setattr(interventions.Goal, "logp", lambda *_: 1 / 0)  # in the middle of it
    for kind in session.kinds:
        with pytest.raises(ZeroDivisionError):
            evidence(session, TEXT, target, kind=kind, layer=0, head=0, row=1)
    assert torch.is_grad_enabled()
    assert fingerprint(session.model) == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in session.model.state_dict().items())


def test_other_threads_see_the_model_as_it_is(session_of: Make) -> None:
    session = session_of()
    trace = session.trace(TEXT, TARGET)
    with torch.no_grad():
        wanted = session.model(*trace.inputs).logits
    asked = [{"kind": kind, "layer": 0, "head": 1, "row": 3} for kind in session.kinds]
    alone = [evidence(session, TEXT, TARGET, **ask) for ask in asked]
    failures: list[str] = []

    def look() -> None:
        for _ in range(40):
            with torch.no_grad():
                if not torch.equal(session.model(*trace.inputs).logits, wanted):
                    failures.append("another model was seen")

    def ask(number: int) -> None:
        for _ in range(5):
            if evidence(session, TEXT, TARGET, **asked[number]) != alone[number]:
                failures.append(f"evidence {number} differs")

    threads = [threading.Thread(target=look), *(threading.Thread(target=ask, args=(n,)) for n in range(3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_model_whose_weights_need_no_gradient(session_of: Make) -> None:
    session = session_of()
    asked = {"kind": "decoder.cross", "layer": 0, "head": 0, "row": 1}
    wanted = evidence(session, TEXT, TARGET, **asked)
    session.model.requires_grad_(False)
    with torch.no_grad():
        assert evidence(session, TEXT, TARGET, **asked) == wanted


# --- rows and rankings --------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.data())
def test_tau_b_against_a_count_of_pairs(one: list[int], data: Any) -> None:
    other = data.draw(st.lists(st.integers(0, 6), min_size=len(one), max_size=len(one)))
    agree = against = ties_one = ties_other = 0
    for i, j in itertools.combinations(range(len(one)), 2):
        a, b = one[i] - one[j], other[i] - other[j]
        agree += a * b > 0
        against += a * b < 0
        ties_one += a == 0
        ties_other += b == 0
    pairs = len(one) * (len(one) - 1) // 2
    below = math.sqrt((pairs - ties_one) * (pairs - ties_other))
    found = kendall(one, other)
    if below == 0:
        assert found is None
    else:
        assert found == pytest.approx((agree - against) / below, abs=1e-12)


def test_tau_b_counted_by_hand() -> None:
    # of 10 pairs 2 are tied in the first and 1 of these in the second; the other 8 agree
    assert kendall([1, 2, 2, 3, 3], [1, 2, 3, 4, 4]) == pytest.approx(8 / math.sqrt(8 * 9))


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9).filter(lambda row: sum(row) > 1e-3))
def test_removing_and_shuffling_keep_what_they_must(row: list[float]) -> None:
    weights = torch.tensor(row) / sum(row)
    visible = torch.arange(len(row))
    rest = without_each(weights, visible)
    for column in range(len(row)):
        assert rest[column, column] == 0.0
        others = [weights[i].item() for i in range(len(row)) if i != column]
        wanted = [x / sum(others) if sum(others) > 0 else 0.0 for x in others]
        assert [rest[column, i].item() for i in range(len(row)) if i != column] == pytest.approx(
            wanted, abs=1e-6
        )
    for changed in shuffled(weights, visible):
        assert sorted(changed.tolist()) == sorted(weights.tolist())
    assert torch.equal(shuffled(weights, visible), shuffled(weights, visible))
    half = visible[: len(row) // 2]
    assert all(torch.equal(changed[len(half) :], weights[len(half) :]) for changed in shuffled(weights, half))


# --- in words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gradient, ablated, moved, said, unsaid",
    [
        (0.9, 0.8, 0.3, ["is matched by gradient × input (τ = 0.90) and", "depends clearly"], ["not"]),
        (
            0.9,
            0.1,
            0.05,
            ["matched by gradient", "but not by what removing", "depends on them a little"],
            ["by construction"],
        ),
        (0.1, 0.9, 0.05, ["matched by what removing", "partly by construction", "but not by gradient"], []),
        (
            0.1,
            -0.1,
            0.0,
            ["is not matched by", "where the head looked, not why", "explains little"],
            ["reversed"],
        ),
        (-0.9, 0.1, 0.2, ["is not matched", "(τ = −0.90)", "even reversed"], []),
        (None, 0.9, 0.2, ["all equal"], []),
    ],
)
def test_the_sentence_says_what_the_numbers_say(
    gradient: float | None, ablated: float, moved: float, said: list[str], unsaid: list[str]
) -> None:
    text = sentence({"gradient": gradient, "ablated": ablated}, 12, 12, moved, "chat")
    assert all(part in text for part in said), text
    assert not any(part in text for part in unsaid), text


def test_few_columns_are_not_made_much_of() -> None:
    assert "too few" in sentence({"gradient": 1.0, "ablated": 1.0}, 3, 3, 0.2, "x")
    assert "Shuffling" not in sentence({"gradient": None, "ablated": None}, 1, 1, 0.0, "x")


@pytest.mark.parametrize("row", [-1, 7, 1000])
def test_rows_that_are_not_there_are_refused(session_of: Make, row: int) -> None:
    with pytest.raises(UserError, match=f"no row {row}"):
        evidence(session_of(), TEXT, TARGET, kind="decoder.cross", layer=0, head=0, row=row)


def test_a_model_that_predicts_nothing_is_refused(session_of: Make) -> None:
    session = session_of("encoder", head__kind="none")
    with pytest.raises(UserError, match="no head"):
        evidence(session, TEXT, kind="encoder.self", layer=0, head=0, row=0)
