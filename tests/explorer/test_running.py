"""What the view "run" draws is what the library does: same texts, same scores, same distributions."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate
from clearhead.decoding.text_requests import opening
from clearhead.decoding.writer import Writer
from clearhead.explorer import beams
from clearhead.explorer.running import Asked, run
from clearhead.explorer.session import Session

from ..decoding.bundles import labeller, translator, writer

SOURCE, PROMPT = "who sees the old green house", "abba"
MAKERS = {
    "encoder-decoder": (translator, SOURCE),
    "separate": (lambda: translator(separate=True), SOURCE),
    "recurrent": (lambda: translator(family="recurrent"), SOURCE),
    "decoder": (writer, PROMPT),
    "no cross-attention": (lambda: translator(cross_attention=False), SOURCE),
}
UNMASKED = {"unmasked": (lambda: writer(causal_mask=False), PROMPT)}  # steps otherwise than it reads
SESSIONS: dict[str, Session] = {}
WAYS = [
    Asked(),
    Asked(frequency=0.7, presence=-0.4, max_length=9),
    Asked(strategy="sample", temperature=1.7, seed=3),
    Asked(strategy="sample", temperature=0.8, top_k=5, top_p=0.9, min_p=0.01, presence=0.5, seed=11),
    Asked(strategy="beam"),
    Asked(strategy="beam", beam=7, length_penalty=0.3, frequency=0.5, max_length=6),
]


def session_of(kind: str) -> Session:
    if kind not in SESSIONS:
        SESSIONS[kind] = Session((MAKERS | UNMASKED)[kind][0](), kind)
    return SESSIONS[kind]


def library_options(asked: Asked) -> Options:
    """The options a user of the library would write down, built without help of the code under test."""
    plain: dict[str, Any] = {"frequency": asked.frequency, "presence": asked.presence}
    plain |= {"max_length": asked.max_length, "length_penalty": asked.length_penalty, "seed": asked.seed}
    if asked.strategy == "beam":
        plain["beam"] = asked.beam
    if asked.strategy == "sample":
        plain |= {
            "sample": True,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "min_p": asked.min_p,
        }
        plain["top_k"] = asked.top_k or None
    return Options(**plain)


@pytest.mark.parametrize("asked", WAYS, ids=lambda one: f"{one.strategy}-{WAYS.index(one)}")
@pytest.mark.parametrize("kind", MAKERS)
def test_the_result_is_the_library_s(kind: str, asked: Asked) -> None:
    session, text = session_of(kind), MAKERS[kind][1]
    found = run(session, text, asked)
    [(_, [expected, *_])] = Writer(session.bundle, way="torch").write([text], library_options(asked))
    assert [word["id"] for word in found["output"]["words"]] == list(expected.ids)
    assert found["output"]["logp"] == expected.logp
    assert found["output"]["score"] == expected.score
    assert found["output"]["stopped"] == ("stop" if expected.stopped else "length")
    assert [step["logp"] for step in found["steps"]] == list(expected.token_logps)
    assert [step["chosen"]["id"] for step in found["steps"]] == [*expected.ids, session.symbols.stop]
    if kind == "decoder":
        assert PROMPT + found["output"]["text"] == generate(
            session.bundle, PROMPT, library_options(asked), way="torch"
        )
    else:
        assert found["output"]["text"] == expected.text
    assert (found["tree"] is None) == (asked.strategy != "beam")


def own_logps(bundle: Bundle, text: str, ids: list[int]) -> torch.Tensor:
    """(T+1, V) by one masked pass over the finished text: nothing of the search is used."""
    writer = Writer(bundle, way="torch")
    with torch.no_grad():
        if writer.has_source:
            [request] = writer.requests(text, Options())
            targets = torch.tensor([[writer.symbols.start, *ids]])
            logits = bundle.model(torch.tensor([request.given]), targets).logits[0]
        else:
            given = opening(bundle, text)
            logits = bundle.model(torch.tensor([[*given, *ids]])).logits[0, len(given) - 1 :]
    return logits.log_softmax(-1)


def shaped_by_hand(logp: torch.Tensor, before: list[int], asked: Asked, forbidden: Any) -> dict[int, float]:
    """Penalties, temperature and truncation in plain Python; token → probability."""
    scores = logp.tolist()
    for token, count in Counter(before).items():
        scores[token] -= asked.frequency * count + asked.presence
    left = {token: score for token, score in enumerate(scores) if token not in forbidden}
    if asked.strategy == "sample":
        left = {token: score / asked.temperature for token, score in left.items()}
        ranked = sorted(left, key=lambda token: (-left[token], token))
        if asked.top_k:
            ranked = ranked[: asked.top_k]
        chances = normalised({token: left[token] for token in ranked})
        kept, total = [], 0.0
        for token in ranked:
            if total >= asked.top_p - 1e-6 and kept:
                break
            kept.append(token)
            total += chances[token]
        most = chances[ranked[0]]
        left = {token: left[token] for token in kept if chances[token] >= asked.min_p * most}
    return normalised(left)


def normalised(scores: dict[int, float]) -> dict[int, float]:
    top = max(scores.values())
    total = math.fsum(math.exp(score - top) for score in scores.values())
    return {token: math.exp(score - top) / total for token, score in scores.items()}


@pytest.mark.parametrize("asked", WAYS, ids=lambda one: f"{one.strategy}-{WAYS.index(one)}")
@pytest.mark.parametrize("kind", MAKERS)
def test_distributions_are_those_of_a_plain_pass(kind: str, asked: Asked) -> None:
    session, text = session_of(kind), MAKERS[kind][1]
    found = run(session, text, asked)
    ids = [word["id"] for word in found["output"]["words"]]
    every = own_logps(session.bundle, text, ids)
    assert len(every) == len(found["steps"]) == len(ids) + 1
    for place, step in enumerate(found["steps"]):
        own = every[place].exp()
        listed = {one["id"]: one["p"] for one in step["before"]}
        assert listed == pytest.approx({token: float(own[token]) for token in listed}, rel=1e-3, abs=1e-6)
        likeliest = [one["p"] for one in step["before"][:10]]
        assert likeliest == pytest.approx(own.topk(10).values.tolist(), rel=1e-3, abs=1e-6)
        left = shaped_by_hand(every[place], ids[:place], asked, session.symbols.forbidden)
        assert step["kept"] == len(left)
        shown = {one["id"]: one["p"] for one in step["after"]}
        assert shown == pytest.approx({token: left[token] for token in shown}, rel=1e-3, abs=1e-6)
        assert sum(sorted(left.values())[-10:]) == pytest.approx(sum([*shown.values()][:10]), rel=1e-3)
        assert step["chosen"]["id"] in listed
        assert step["forced"] or step["chosen"]["id"] in shown


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["encoder-decoder", "decoder"]),
    beam=st.integers(2, 9),
    alpha=st.floats(-1, 2),
    most=st.integers(1, 7),
)
def test_every_node_of_the_tree_is_scored_as_forced_decoding_scores_it(
    kind: str, beam: int, alpha: float, most: int
) -> None:
    session, text = session_of(kind), MAKERS[kind][1]
    asked = Asked(strategy="beam", beam=beam, length_penalty=alpha, max_length=most)
    nodes = run(session, text, asked)["tree"]["nodes"]
    for node in nodes:
        ids = path_of(nodes, node)
        every = own_logps(session.bundle, text, ids[:-1])
        logp = sum(float(every[place, token]) for place, token in enumerate(ids))
        assert node["logp"] == pytest.approx(logp, rel=1e-4, abs=1e-4)
        assert node["score"] == pytest.approx(logp / len(ids) ** alpha, rel=1e-4, abs=1e-4)


def path_of(nodes: list[dict[str, Any]], node: dict[str, Any]) -> list[int]:
    ids: list[int] = []
    here: dict[str, Any] | None = node
    while here is not None:
        ids.insert(0, here["word"]["id"])
        here = None if here["parent"] is None else nodes[here["parent"]]
    return ids


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_the_tree_shows_what_was_kept_and_what_was_not(kind: str) -> None:
    session, text = session_of(kind), MAKERS[kind][1]
    found = run(session, text, Asked(strategy="beam", beam=3, max_length=8))
    nodes, best, stop = found["tree"]["nodes"], found["tree"]["best"], session.symbols.stop
    assert [node["id"] for node in nodes] == list(range(len(nodes)))
    assert path_of(nodes, nodes[best[-1]]) == [step["chosen"]["id"] for step in found["steps"]]
    assert nodes[best[-1]]["score"] == pytest.approx(found["output"]["score"], abs=1e-9)
    assert {node["state"] for node in nodes} >= {"best", "pruned"}
    assert [node["id"] for node in nodes if node["state"] == "best"] == best
    last = max(node["step"] for node in nodes)
    for step in range(last + 1):
        here = [node for node in nodes if node["step"] == step]
        going = [node for node in here if node["kept"] and node["word"]["id"] != stop]
        others = [node for node in here if not node["kept"] and node["word"]["id"] != stop]
        assert len(going) <= 3
        if going and others:
            assert min(one["score"] for one in going) >= max(one["score"] for one in others)
    children = Counter(node["parent"] for node in nodes)
    for node in nodes:
        if not node["kept"] or node["word"]["id"] == stop:
            assert children[node["id"]] == 0
        leads = [one for one in nodes if node["id"] in ids_above(nodes, one)]
        ended = any(one["state"] in ("finished", "best") and one["word"]["id"] == stop for one in leads)
        alive = any(one["kept"] and one["step"] == last for one in leads)
        assert (node["state"] == "pruned") == (not ended and not alive)


def ids_above(nodes: list[dict[str, Any]], node: dict[str, Any]) -> set[int]:
    found = {node["id"]}
    while node["parent"] is not None:
        node = nodes[node["parent"]]
        found.add(node["id"])
    return found


def test_a_tree_that_nobody_could_look_at_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("encoder-decoder")
    asked = Asked(strategy="beam", beam=5)
    whole = run(session, SOURCE, asked)
    assert whole["tree"]["left_out"] == 0
    for most in (len(whole["tree"]["nodes"]) - 1, 1):
        monkeypatch.setattr(beams, "MOST_NODES", most)
        thin = run(session, SOURCE, asked)
        assert thin["tree"]["left_out"] + len(thin["tree"]["nodes"]) == len(whole["tree"]["nodes"])
        assert thin["tree"]["left_out"] > 0
        assert thin["steps"] == whole["steps"]
        nodes = thin["tree"]["nodes"]
        assert path_of(nodes, nodes[thin["tree"]["best"][-1]]) == [
            step["chosen"]["id"] for step in whole["steps"]
        ]


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder", "unmasked"])
@pytest.mark.parametrize("asked", [WAYS[0], WAYS[4]], ids=["greedy", "beam"])
def test_passes_and_keys_are_counted_as_the_model_makes_them(kind: str, asked: Asked) -> None:
    session, text = session_of(kind), (MAKERS | UNMASKED)[kind][1]
    seen: list[tuple[int, int, int]] = []  # rows, new tokens, keys that were there

    def watch(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = given[-1]
        seen.append((len(ids), ids.shape[1], named["state"].slots))

    hook = session.model.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        cost = run(session, text, asked)["cost"]
    finally:
        hook.remove()
    written = cost["inference"]
    assert written["passes"] == len(seen)
    assert written["rows"] == [rows for rows, _, _ in seen]
    assert written["cached"] == [there for _, _, there in seen]
    masked = kind != "unmasked"
    pairs = [
        rows * sum(there + (1 + place if masked else new) for place in range(new))
        for rows, new, there in seen
    ]
    assert written["attended"] == sum(pairs)
    assert written["uncached"] >= written["attended"]
    learned = cost["training"]
    mask = torch.ones(learned["positions"], learned["positions"])
    mask = mask.tril() if masked else mask
    assert learned == {"passes": 1, "positions": len(mask), "attended": int(mask.sum())}
    if asked.strategy == "greedy" and masked:  # the same pairs, whether at once or one after another
        assert learned["attended"] == written["attended"]


def test_at_the_limit_only_the_stop_symbol_is_left() -> None:
    session = session_of("encoder-decoder")
    found = run(session, SOURCE, Asked(max_length=2, frequency=5.0))
    assert len(found["steps"]) == len(found["output"]["words"]) + 1
    free = run(session, SOURCE, Asked(frequency=5.0))
    assert len(free["steps"]) > 3
    assert [step["forced"] for step in found["steps"]] == [False, False, True]
    assert found["output"]["stopped"] == "length"


def test_what_is_written_is_shown_however_unlikely() -> None:
    session = session_of("decoder")
    asked = Asked(strategy="sample", temperature=50.0, shown=1, seed=5)
    steps = run(session, PROMPT, asked)["steps"]
    assert any(step["before"][0]["id"] != step["chosen"]["id"] for step in steps)
    for step in steps:
        assert step["chosen"]["id"] in [one["id"] for one in step["before"]]
        assert len(step["before"]) <= 2


def test_running_changes_nothing() -> None:
    session = session_of("encoder-decoder")
    before = [one.clone() for one in session.model.parameters()]
    first, again = (run(session, SOURCE, WAYS[3]) for _ in range(2))
    assert first == again
    assert all(torch.equal(one, two) for one, two in zip(before, session.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "text, asked, part",
    [
        ("", {}, "nothing to translate"),
        ("  \n", {"strategy": "beam"}, "nothing to translate"),
        ("cat " * 600, {}, "at most 512"),
        (SOURCE, {"strategy": "guess"}, "no strategy 'guess'"),
        (SOURCE, {"strategy": "beam", "beam": 1}, "2 to 16"),
        (SOURCE, {"strategy": "beam", "beam": 17}, "2 to 16"),
        (SOURCE, {"strategy": "sample", "temperature": 0.0}, "above 0"),
        (SOURCE, {"strategy": "sample", "top_p": 0.0}, "top.p"),
        (SOURCE, {"max_length": 0}, "max_length"),
        (SOURCE, {"seed": -1}, "seed"),
        (SOURCE, {"frequency": float("nan")}, "frequency"),
    ],
)
def test_what_cannot_be_run_is_a_sentence(text: str, asked: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part) as error:
        run(session_of("encoder-decoder"), text, Asked(**asked))
    assert str(error.value).endswith(".")


def test_at_least_one_token_is_shown() -> None:
    with pytest.raises(UserError, match="'shown' must be a whole number from 1"):
        Asked(shown=0)


def test_a_classifier_writes_nothing() -> None:
    with pytest.raises(UserError, match="does not write text"):
        run(Session(labeller("classify", ["good", "bad"])), SOURCE)


def test_damaged_weights_are_a_sentence() -> None:
    bundle = translator()
    with torch.no_grad():
        next(bundle.model.parameters()).fill_(float("nan"))
    for asked in WAYS:
        with pytest.raises(UserError, match="not finite"):
            run(Session(bundle), SOURCE, asked)
