"""Recorded decoding finds what the general engine finds, and its Triton kernels compute what `plain` says."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from types import ModuleType

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import graphs
from clearhead.decoding.backend import (
    Batch,
    Event,
    Failed,
    Finished,
    Hypothesis,
    Parked,
    Request,
    Slot,
    Symbols,
    Wrote,
)
from clearhead.decoding.graphs import GraphBackend, plain
from clearhead.decoding.graphs.backend import IDLE
from clearhead.decoding.graphs.buffers import Buffers, Size, bytes_of_request
from clearhead.decoding.graphs.slots import GraphSlots, step_key
from clearhead.decoding.graphs.weights import Weights
from clearhead.decoding.options import Options
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.writer import Writer, make_search

from .bundles import ENGLISH, translator, writer
from .together import PROMPTS, together

SYMBOLS = Symbols(1, 2, (0, 1))
SEVERAL = Symbols(1, 9, (0, 1), other_stops=(2, 7, 30))  # the one that models like is not the first
VOCABULARY = 41

TRANSLATORS = {
    "paper": {},
    "pre": {"norm__place": "pre", "feedforward__activation": "gelu"},
    "rotary": {"position__name": "rotary", "attention__kv_heads": 2},
    "halves": {"position__name": "rotary", "position__layout": "halves", "attention__bias": False},
    "alibi": {
        "position__name": "alibi",
        "norm__kind": "rms",
        "attention__softcap": 5.0,
        "attention__scale": 0.3,
    },
    "t5": {"position__name": "t5", "norm__place": "pre", "embedding__output_scale": 0.2},
    "learned": {"position__name": "learned", "position__max_length": 64, "embedding__norm": True},
    "gated": {"feedforward__gated": True, "norm__final": True, "embedding__output_bias": True},
}
DECODERS = {
    "gpt": {"position__name": "learned", "position__max_length": 80, "norm__place": "pre"},
    "llama": {"position__name": "rotary", "attention__kv_heads": 2, "feedforward__gated": True},
    "latent": {"attention__kind": "latent", "attention__latent_dim": 20, "position__name": "rotary"},
    "latent, compressed queries": {
        "attention__kind": "latent",
        "attention__query_latent_dim": 12,
        "attention__bias": False,
        "position__name": "rotary",
        "position__layout": "halves",
    },
    "latent, alibi": {
        "attention__kind": "latent",
        "attention__value_dim": 12,
        "attention__rotary_dim": 0,
        "attention__softcap": 5.0,
        "position__name": "alibi",
        "norm__place": "pre",
    },
}
OPTIONS = {
    "greedy": Options(max_length=12),
    "least": Options(max_length=12, min_length=6),
    "beam": Options(beam=4, max_length=10),
    "wide": Options(beam=5, nbest=3, length_penalty=0.6, length_kind="wu", max_length=14),
    "no penalty": Options(beam=3, nbest=2, length_penalty=0.0, max_length=9),
    "sampling": Options(sample=True, temperature=0.8, top_k=9, top_p=0.9, seed=5, max_length=11),
}


def model_of(family: str, changes: dict[str, object], seed: int = 3) -> nn.Module:
    """Random weights that are far from uniform, so that near-ties are rare, and that like to stop."""
    torch.manual_seed(seed)
    settings = {"embedding__output_bias": True, "embedding__tie_output": False, **changes}
    if "embedding__output_scale" in changes:
        settings["embedding__tie_output"] = True
    model = clearhead.build("tiny", family=family, vocabulary=VOCABULARY, **settings).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        model.output.bias[SYMBOLS.stop] += 5.0 if model.output.factor == 1.0 else 1.0
    return model


def requests_for(model: nn.Module, options: Options, count: int = 9) -> list[Request]:
    generator = torch.Generator().manual_seed(11)
    found = []
    for number in range(count):
        size = int(torch.randint(1, 9, (), generator=generator))
        given = torch.randint(3, VOCABULARY, (size,), generator=generator).tolist()
        limit = (options.max_length or 10) - number % 3
        found.append(Request((*given, 2), limit, replace(options, seed=options.seed + number)))
    return found


def general(
    model: nn.Module, requests: list[Request], capacity: int, symbols: Symbols = SYMBOLS
) -> dict[int, list[Hypothesis]]:
    has_source = model.config.family == "encoder-decoder"

    def search(batch: Batch) -> object:
        return make_search(batch, has_source)

    return dict(rows_engine(TorchRows(model, symbols), symbols, search, capacity).run(requests))


def same(found: dict[int, list[Hypothesis]], wanted: dict[int, list[Hypothesis]], near: float) -> None:
    assert found.keys() == wanted.keys()
    for number, texts in wanted.items():
        assert [one.ids for one in found[number]] == [one.ids for one in texts], number
        for one, other in zip(found[number], texts, strict=True):
            assert (one.stopped, one.stop) == (other.stopped, other.stop)
            assert one.score == pytest.approx(other.score, abs=near)
            assert one.token_logps == pytest.approx(other.token_logps, abs=near)


def alone(backend: GraphBackend, requests: list[Request]) -> dict[int, list[Hypothesis]]:
    """One batch after another, as few at a time as the backend takes."""
    found: dict[int, list[Hypothesis]] = {}
    active: dict[Slot, int] = {}
    waiting = list(enumerate(requests))
    while waiting or active:
        if waiting:
            _, batch = next(groupby(waiting, lambda one: step_key(one[1].options)))
            batch = list(batch)
            slots = backend.admit([one for _, one in batch])
            active |= {slot: number for slot, (number, _) in zip(slots, batch, strict=False)}
            del waiting[: len(slots)]
        collect(backend.advance(64), active, found)
    nothing_left(backend)
    return found


def collect(
    events: list[Event], active: dict[Slot, int], found: dict[int, list[Hypothesis]]
) -> dict[int, tuple[int, ...]]:
    """Sort what has happened; returns the tokens told, by the requests' numbers."""
    told = {}
    for event in events:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            found[active.pop(event.slot)] = event.texts
        else:
            told[active[event.slot]] = event.ids
    return told


def nothing_left(backend: GraphBackend) -> None:
    assert backend.free == backend.capacity
    assert not backend.sets
    assert not backend.slots
    assert len(backend.idle) <= IDLE
    assert not any(any(held.active) or bool((held.buffers.done == 0).any()) for held in backend.idle)


def check(
    model: nn.Module, options: Options, capacity: int, near: float = 1e-4, symbols: Symbols = SYMBOLS
) -> dict[int, list[Hypothesis]]:
    requests = requests_for(model, options)
    wanted = general(model, requests, 64, symbols)
    backend = GraphBackend(model, symbols, capacity)
    same(alone(backend, requests), wanted, near)
    same(alone(backend, requests), wanted, near)  # slots that were used before
    return wanted


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("changes", TRANSLATORS.values(), ids=TRANSLATORS)
def test_translators_write_the_same(changes: dict[str, object], options: Options) -> None:
    check(model_of("encoder-decoder", changes), options, capacity=64)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("changes", DECODERS.values(), ids=DECODERS)
def test_decoders_write_the_same(changes: dict[str, object], options: Options) -> None:
    check(model_of("decoder", changes), options, capacity=64)


def test_slots_hold_latents_alone() -> None:
    model = model_of("decoder", DECODERS["latent"])
    size = Size(requests=3, beam=2, kept=1, positions=64, source=0)
    weights = Weights(model)
    planned = clearhead.plan(model.config, dtype="float32").memory.state_per_token
    assert bytes_of_request(weights, size) == 2 * 64 * planned
    buffers = Buffers(weights, size)
    held = sum(one.numel() * one.element_size() for one in (*buffers.keys, *buffers.values))
    assert held == 3 * bytes_of_request(weights, size)


@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("capacity", [1, 4, 13])
def test_slots_are_filled_again(name: str, capacity: int) -> None:
    check(model_of("encoder-decoder", {"position__name": "rotary"}), OPTIONS[name], capacity)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_several_stop_symbols(options: Options) -> None:
    """Every one of them ends texts; none does before the least length."""
    found = check(model_of("decoder", DECODERS["llama"]), options, capacity=64, symbols=SEVERAL)
    texts = [one for texts in found.values() for one in texts]
    assert not any(set(one.ids) & set(SEVERAL.stops) for one in texts)
    assert all(len(one.ids) >= options.min_length for one in texts)
    assert options.min_length or {one.stop for one in texts} - {SEVERAL.stop}


def test_requests_that_ask_for_different_things() -> None:
    model = model_of("encoder-decoder", {})
    requests = [
        replace(one, options=OPTIONS["beam" if number % 2 else "greedy"])
        for number, one in enumerate(requests_for(model, OPTIONS["greedy"]))
    ]
    same(alone(GraphBackend(model, SYMBOLS, 8), requests), general(model, requests, 8), 1e-4)


def mixed(model: nn.Module, count: int) -> list[Request]:
    """Requests of every kind, their limits far apart; some stream."""
    names = ["greedy", "least", "beam", "sampling", "wide", "warmer"]
    kinds = {**OPTIONS, "warmer": OPTIONS["sampling"].replace(temperature=1.4)}
    return [
        replace(
            one,
            limit=70 if number % 7 == 3 else 3 + 5 * number % 18,
            options=kinds[names[number % 6]].replace(max_length=None, seed=number),
            stream=number % 4 == 0,
        )
        for number, one in enumerate(requests_for(model, Options(), count))
    ]


def disturbed(
    backend: GraphBackend, requests: list[Request], chance: random.Random
) -> dict[int, list[Hypothesis]]:
    """Requests come, go, are parked, go on and are begun anew at random moments."""
    found: dict[int, list[Hypothesis]] = {}
    told: dict[int, tuple[int, ...]] = {}
    active: dict[Slot, int] = {}
    parked: list[tuple[int, Parked]] = []
    waiting = list(range(len(requests)))
    chance.shuffle(waiting)
    dropped = 0
    while waiting or active or parked:
        what = chance.choice(["admit", "evict", "park", "resume", "advance", "advance"])
        if what == "admit" and waiting:
            first = waiting[0]
            batch = [one for one in waiting if requests[one].options == requests[first].options]
            slots = backend.admit([requests[one] for one in batch[: chance.randint(1, 5)]])
            assert slots or active
            active |= dict(zip(slots, batch, strict=False))
            waiting = [one for one in waiting if one not in active.values()]
        elif what in ("evict", "park") and active:
            slot = chance.choice(list(active))
            number = active.pop(slot)
            if what == "park":
                parked.append((number, backend.park(slot, on_host=chance.random() < 0.5)))
            elif dropped < 6:
                dropped += 1
                backend.evict(slot)
                told.pop(number, None)
                waiting.append(number)
            else:
                active[slot] = number
        elif what == "resume" and parked:
            number, one = parked.pop(chance.randrange(len(parked)))
            active[backend.resume(one)] = number
        elif active:
            for number, ids in collect(backend.advance(chance.randint(1, 9)), active, found).items():
                told[number] = told.get(number, ()) + ids
    nothing_left(backend)
    streaming = [n for n, one in enumerate(requests) if one.stream and one.options.beam == 1]
    assert {n: ids for n, ids in told.items() if ids} == {
        n: found[n][0].ids for n in streaming if found[n][0].ids
    }
    return found


@pytest.mark.parametrize(
    ("family", "seed", "count"),
    [
        ("encoder-decoder", 1, 14),
        ("decoder", 2, 14),
        *(pytest.param("encoder-decoder", seed, 40, marks=pytest.mark.slow) for seed in range(3, 9)),
    ],
)
def test_any_order_of_coming_and_going(family: str, seed: int, count: int) -> None:
    """Parked on either side, resumed in other and larger slots, evicted, begun anew: the same texts."""
    model = model_of(family, {"position__name": "rotary"})
    requests = mixed(model, count)
    backend = GraphBackend(model, SYMBOLS, capacity=21)
    same(disturbed(backend, requests, random.Random(seed)), general(model, requests, 64), 1e-4)


def test_parking_is_exact() -> None:
    """Every part of a slot comes out of larger slots as it went in."""
    model = model_of("encoder-decoder", {})
    backend = GraphBackend(model, SYMBOLS, capacity=64)
    options = OPTIONS["wide"].replace(max_length=None)
    [slot] = backend.admit([Request((5, 6, 7, 2), 20, options)])
    backend.advance(4)
    parked = backend.park(slot)
    assert parked.used == (5, 4)
    backend.admit([Request((3,) * 30, 150, options), Request((3, 4), 5, options)])  # slots of another size
    again = backend.park(backend.resume(parked))
    assert backend.sets[0].size.positions > 64
    assert parked.taken.keys() == again.taken.keys() == backend.sets[0].buffers.tables.keys()
    assert all(torch.equal(one, again.taken[name]) for name, one in parked.taken.items())


def test_settings_that_differ_by_request_share_a_step() -> None:
    """Temperature and least length are looked at row by row; other settings make another set of slots."""
    model = model_of("encoder-decoder", {})
    backend = GraphBackend(model, SYMBOLS, capacity=64)
    drawn = OPTIONS["sampling"]
    asked = [drawn, drawn.replace(temperature=1.7), drawn.replace(min_length=4, max_length=None)]
    requests = [replace(requests_for(model, one)[number], options=one) for number, one in enumerate(asked)]
    active = {backend.admit([one])[0]: number for number, one in enumerate(requests)}
    assert len({held.key for held in backend.sets}) == 1
    other = backend.admit([Request((4, 2), 9, drawn.replace(top_k=3))])
    assert len({held.key for held in backend.sets}) == 2
    backend.evict(other[0])
    found: dict[int, list[Hypothesis]] = {}
    while active:
        collect(backend.advance(3), active, found)
    same(found, general(model, requests, 8), 1e-4)


def test_callers_with_different_settings_progress_together() -> None:
    """Neither waits for the other to end, and newcomers find slots beside those in use."""
    model = model_of("encoder-decoder", {})
    late = Options(min_length=50)  # nobody ends of itself
    backend = GraphBackend(model, SYMBOLS, capacity=64)
    first = backend.admit([Request((4, 5, 2), 40, late, stream=True)])
    second = backend.admit([Request((4, 5, 2), 40, replace(late, sample=True), stream=True)])
    third = backend.admit([Request((6, 2), 40, late, stream=True)])
    for _ in range(3):
        events = backend.advance(1)
        assert {event.slot for event in events} == {*first, *second, *third}
        assert all(isinstance(event, Wrote) and len(event.ids) == 1 for event in events)


def test_few_sets_of_slots_serve_many_who_come_one_by_one() -> None:
    model = model_of("encoder-decoder", {})
    backend = GraphBackend(model, SYMBOLS, capacity=64)
    for number in range(33):
        backend.admit([Request((4 + number % 5, 2), 40, Options(min_length=50))])
    assert [held.size.requests for held in backend.sets] == [1, 2, 4, 8, 16, 32]
    assert backend.free.rows == 31
    backend.reset()
    nothing_left(backend)


def test_memory_is_bounded() -> None:
    """No more slots than memory allows, but always one; idle ones make room for others."""
    model = model_of("encoder-decoder", {})
    backend = GraphBackend(model, SYMBOLS, capacity=64)
    each = bytes_of_request(backend.weights, Size(1, 1, 1, 64, 8))
    backend.memory = 3.5 * each
    requests = [Request((4, 5, 2), 20) for _ in range(8)]
    slots = backend.admit(requests)
    assert len(slots) == 3
    assert backend.admit(requests) == []
    backend.evict(slots[0])
    assert len(backend.admit(requests)) == 1
    parked = backend.park(slots[1])
    backend.admit(requests)
    backend.evict(backend.resume(parked))  # who was let in once is let in again
    for slot in list(backend.slots):
        backend.evict(slot)
    assert sum(held.size.requests for held in backend.idle) <= 3
    assert len(backend.admit([Request((4, 5, 2), 800)])) == 1  # larger than all memory: alone
    assert not backend.idle


@pytest.mark.parametrize("options", [OPTIONS["greedy"], OPTIONS["beam"]], ids=["greedy", "beam"])
def test_damaged_weights_are_a_sentence(options: Options) -> None:
    model = model_of("encoder-decoder", {})
    model.decoder.layers[1].feedforward.output.weight.data[0, 0] = torch.nan
    backend, requests = GraphBackend(model, SYMBOLS, 64), requests_for(model, options)
    slots, failures = backend.admit(requests), dict[Slot, Exception]()
    while backend.slots:
        failures |= {one.slot: one.error for one in backend.advance(8) if isinstance(one, Failed)}
    assert failures.keys() == set(slots)
    assert all(isinstance(one, UserError) and "not finite" in str(one) for one in failures.values())


def test_nobody_is_admitted_where_one_cannot_be() -> None:
    backend = GraphBackend(model_of("decoder", DECODERS["gpt"]), SYMBOLS, 64)
    with pytest.raises(UserError, match="gives the model nothing"):
        backend.admit([Request((4, 5), 5), Request((), 5)])
    nothing_left(backend)


class Unlaunched:
    """A Triton kernel that only looks at its arguments."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn, self.seen = fn, []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: object, num_warps: int = 4, **named: object) -> None:
            self.seen.append(inspect.signature(self.fn).bind(*args, **named).arguments)

        return launch


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`graphs.fused` as it is where there is Triton, but for the kernels themselves."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language, language.constexpr = Unlaunched, language, int
    triton.cdiv, triton.next_power_of_2 = lambda a, b: -(-a // b), lambda n: 1 << (n - 1).bit_length()
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    names = "fused", "layer_kernels", "choice_kernels"
    for name in names:
        monkeypatch.delitem(sys.modules, f"{graphs.__name__}.{name}", raising=False)
        monkeypatch.delattr(graphs, name, raising=False)
    yield importlib.import_module(f"{graphs.__name__}.fused")
    for name in names:  # nobody else is to find these
        del sys.modules[f"{graphs.__name__}.{name}"]
        delattr(graphs, name)


@torch.no_grad()
def test_every_kernel_is_given_what_it_names(unlaunched: ModuleType) -> None:
    """On machines without a GPU: arguments that are missing, unknown, or of another type than always."""
    kernels = unlaunched.layer_kernels, unlaunched.choice_kernels
    for changes in TRANSLATORS.values():
        weights = Weights(model_of("encoder-decoder", changes))
        for options, count in ((OPTIONS["greedy"], 1), (OPTIONS["greedy"], 8), (OPTIONS["wide"], 4)):
            size = Size(count, options.beam, options.nbest, 64, 8)
            chosen = unlaunched.kernels_of(count * options.beam, weights.widest)
            GraphSlots(weights, size, SYMBOLS, options, chosen).step()
    started = [one for module in kernels for one in vars(module).values() if isinstance(one, Unlaunched)]
    for one in started:
        assert one.seen or one.fn.__name__.startswith("_"), one.fn.__name__
        for arguments in one.seen:
            assert {name: type(value) for name, value in arguments.items()} == {
                name: type(value) for name, value in one.seen[0].items()
            }


def test_what_is_left_to_the_general_engine() -> None:
    assert graphs.why_not_options(Options(beam=5, nbest=2, max_length=9)) is None
    for name, value in (
        ("frequency", 0.1),
        ("no_repeat", 2),
        ("banned", ((5,),)),
        ("stop_texts", ("a",)),
        ("bias", ((4, 1.0),)),
        ("regex", "a*"),
        ("prefix", (4,)),
        ("not_first", (4,)),
        ("beam", 17),
    ):
        assert graphs.why_not_options(Options(**{name: value})) is not None
    for name, value in (("early_stopping", True), ("early_stopping", False), ("forced", "cut")):
        assert graphs.why_not_options(Options(**{name: value})) is None
        assert graphs.why_not_options(Options(beam=2, **{name: value})) is not None
    assert "CUDA" in str(graphs.why_not(model_of("encoder-decoder", {}), torch.device("cpu")))


# -- on a GPU -------------------------------------------------------------------------------------


@pytest.fixture
def onto_gpu() -> Callable[[nn.Module], nn.Module]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return lambda model: model.to("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("changes", TRANSLATORS.values(), ids=TRANSLATORS)
def test_recorded_translators(onto_gpu, changes: dict[str, object], options: Options) -> None:
    model = onto_gpu(model_of("encoder-decoder", changes))
    assert graphs.why_not(model, torch.device("cuda")) is None
    check(model, options, capacity=20)


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("changes", DECODERS.values(), ids=DECODERS)
def test_recorded_decoders(onto_gpu, changes: dict[str, object], options: Options) -> None:
    model = onto_gpu(model_of("decoder", changes))
    assert graphs.why_not(model, torch.device("cuda")) is None
    check(model, options, capacity=20)


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_recorded_with_several_stop_symbols(onto_gpu, options: Options) -> None:
    check(onto_gpu(model_of("decoder", DECODERS["llama"])), options, capacity=20, symbols=SEVERAL)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("seed", [1, 2])
def test_recorded_in_any_order(onto_gpu, family: str, seed: int) -> None:
    model = onto_gpu(model_of(family, {"position__name": "rotary"}))
    requests = mixed(model, 24)
    backend = GraphBackend(model, SYMBOLS, capacity=21)
    same(disturbed(backend, requests, random.Random(seed)), general(model, requests, 64), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("made", [translator, writer], ids=["translator", "writer"])
def test_two_threads_with_aborts_on_recorded_steps(onto_gpu, made: Callable[[], Bundle]) -> None:
    bundle = made()
    onto_gpu(bundle.model)
    assert Writer(bundle).why_not_graphs is None
    assert together(bundle, ENGLISH if made is translator else PROMPTS, "auto", 200, 40, seed=1) > 60


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [OPTIONS["greedy"], OPTIONS["wide"]], ids=["greedy", "wide"])
def test_kernels_are_the_plain_functions(onto_gpu, options: Options, dtype: torch.dtype) -> None:
    """Both sets of kernels on one device, with a vocabulary of several parts and long texts."""
    torch.manual_seed(0)
    model = clearhead.build("tiny", vocabulary=9001, position__name="rotary", attention__kv_heads=2).eval()
    model = onto_gpu(model).to(dtype)
    requests = [replace(one, limit=150) for one in requests_for(model, options)]
    fast = alone(GraphBackend(model, SYMBOLS, 40), requests)
    unrecorded = GraphBackend(model, SYMBOLS, 40, kernels=plain.KERNELS)
    unrecorded.device = torch.device("cpu")  # nothing is recorded: the plain functions ask the device
    slow = alone(unrecorded, requests)
    if dtype == torch.float32:
        same(fast, slow, 1e-3)
    else:  # rounding decides between near-equals, rarely and late
        heads = [fast[number][0].ids[:5] == slow[number][0].ids[:5] for number in slow]
        assert sum(heads) >= len(heads) - 1
