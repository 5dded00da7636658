"""A session reads texts as the library does, refuses what it cannot show, and keeps a few traces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.run import translate
from clearhead.decoding.text_requests import opening, read_sources
from clearhead.explorer import reading
from clearhead.explorer.session import KEPT, Session
from clearhead.models import build
from clearhead.models.config import LayerRule
from clearhead.text.tokenizer import Tokenizer

from ..nn.own_parts import TellingConfig, add

Make = Callable[..., Any]
TEXT = "the cat sleeps ."


@pytest.mark.parametrize("kind", ["encoder-decoder", "separate", "recurrent"])
def test_source_and_greedy_target(bundle_of: Make, kind: str) -> None:
    bundle = bundle_of(kind)
    trace = Session(bundle).trace(TEXT)
    symbols = Session(bundle).symbols
    [own] = translate(bundle, [TEXT], way="torch")
    assert [list(trace.reading.source)] == read_sources(bundle, [TEXT])
    assert trace.reading.target == (symbols.start, *own.ids)
    assert trace.reading.following == (*own.ids, symbols.stop)
    assert [word["id"] for word in trace.following] == [*own.ids, symbols.stop]
    # and it is what the model itself prefers at each place, as far as it is allowed to
    assert len(trace.logits) == len(trace.target)
    masked = trace.logits.clone()
    masked[:, list(symbols.forbidden)] = -torch.inf
    stopped = len(own.ids) if own.stopped else len(own.ids) - 1
    assert masked.argmax(-1).tolist()[:stopped] == list(own.ids)[:stopped]


def test_a_target_of_ones_own(bundle_of: Make) -> None:
    bundle = bundle_of("separate")
    session = Session(bundle)
    trace = session.trace(TEXT, "le chat dort .")
    ids = bundle.tokenizer.encode("le chat dort .")
    assert trace.reading.target == (1, *ids)
    assert [word["text"] for word in trace.source] == ["the", "cat", "sleeps", ".", "<stop>"]
    assert [word["text"] for word in trace.following] == ["le", "chat", "dort", ".", "<stop>"]
    assert session.trace(TEXT, "") is session.trace(TEXT)
    assert session.trace(TEXT, "  ").reading == session.trace(TEXT).reading


def test_a_decoder_reads_the_text_itself(bundle_of: Make) -> None:
    bundle = bundle_of("decoder")
    trace = Session(bundle).trace(TEXT)
    assert list(trace.reading.target) == opening(bundle, TEXT)
    assert trace.source == []
    likeliest = int(bundle.model(torch.tensor([trace.reading.target])).logits[0, -1].argmax())
    assert [word["id"] for word in trace.following] == [*trace.reading.target[1:], likeliest]


def test_a_classifier_reads_as_in_training(bundle_of: Make) -> None:
    bundle = bundle_of("encoder")
    trace = Session(bundle).trace(TEXT)
    assert [list(trace.reading.source)] == read_sources(bundle, [TEXT])
    assert trace.target == []
    assert trace.following == []
    assert torch.equal(trace.logits, bundle.model(trace.source_ids).logits[0])


@pytest.mark.parametrize(
    "kind, text, target, sentence",
    [
        ("encoder-decoder", "", None, "The text is empty"),
        ("decoder", " \n", None, "The text is empty"),
        ("encoder", 3, None, "must be a string"),
        ("encoder-decoder", "the " * 600, None, "has 601 tokens, and the explorer shows at most 512"),
        ("encoder-decoder", "the cat", "le " * 600, "The target has 601 tokens"),
        ("encoder-decoder", "a" * 60_000, None, "60,000 characters"),
        ("decoder", "the cat", "le chat", "has no target"),
        ("encoder", "the cat", "le chat", "has no target"),
        ("decoder", "\ud800", None, "valid Unicode"),
        ("encoder-decoder", "the cat", 3, "target must be a string"),
    ],
)
def test_what_cannot_be_shown(
    bundle_of: Make, kind: str, text: Any, target: str | None, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Session(bundle_of(kind)).trace(text, target)


def test_learned_positions_set_the_limit(bundle_of: Make) -> None:
    session = Session(bundle_of("encoder-decoder", position__name="learned", position__max_length=6))
    assert session.limit == 6
    trace = session.trace("the cat sleeps . .")
    assert len(trace.source) == 6
    assert 1 <= len(trace.target) <= 6
    with pytest.raises(UserError, match="7 tokens, and the explorer shows at most 6"):
        session.trace("the cat sleeps . . .")


def test_bundles_that_cannot_be_explored() -> None:
    with pytest.raises(UserError, match="no tokenizer"):
        Session(Bundle(build("tiny")))
    for changes, sentence in (
        ({"family": "convolutional"}, "cannot show convolutional models"),
        ({"family": "recurrent", "recurrent__attention": "none"}, "this one has no attention"),
    ):
        with pytest.raises(UserError, match=sentence):
            Session(Bundle(build("tiny", **changes), Tokenizer.words("a")))


def test_kinds_of_parts_that_nobody_can_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch)
    own = TellingConfig()
    for changes in ({"feedforward": own}, {"layer_pattern": (LayerRule(first=1, feedforward=own),)}):
        with pytest.raises(UserError, match="cannot show a model with parts of the kind 'telling'"):
            Session(Bundle(build("tiny", **changes), Tokenizer.words("a")))


def test_the_callers_model_stays_as_it_is(bundle_of: Make) -> None:
    training = bundle_of("decoder")
    training.model.train()
    half = bundle_of("decoder")
    half.model.to(torch.bfloat16)
    at_rest = bundle_of("decoder")
    for bundle, shared in ((training, False), (half, False), (at_rest, True)):
        session = Session(bundle)
        assert (session.model is bundle.model) == shared
        assert not session.model.training
        assert session.trace(TEXT).logits.dtype == torch.float32
    assert training.model.training
    assert next(half.model.parameters()).dtype == torch.bfloat16


def test_a_few_traces_are_kept(bundle_of: Make) -> None:
    session = Session(bundle_of("decoder"))
    first = session.trace("the cat")
    for number in range(KEPT - 1):
        session.trace("the cat" + " sleeps" * (number + 1))
    assert session.trace("the cat") is first  # used again, so it is the newest now
    session.trace("a dog")
    assert session.trace("the cat") is first
    for number in range(KEPT):
        session.trace("a dog" + " sleeps" * (number + 1))
    assert session.trace("the cat") is not first


def test_many_threads_get_the_same_numbers(bundle_of: Make) -> None:
    session = Session(bundle_of("encoder-decoder", "pre"))
    alone = Session(bundle_of("encoder-decoder", "pre")).trace(TEXT)
    names = [name for name in alone.names if not name.endswith("masked")]
    wrong: list[str] = []

    def ask(turn: int) -> None:
        trace = session.trace(TEXT)
        order = names[turn * 7 :] + names[: turn * 7]
        wrong.extend(name for name in order if not torch.equal(trace[name], alone[name]))

    threads = [threading.Thread(target=ask, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_will_be_asked_is_seen_in_one_pass(bundle_of: Make) -> None:
    bundle = bundle_of("encoder-decoder")
    session = Session(bundle)
    session.trace(TEXT).names  # noqa: B018 - the first pass
    calls = []
    hook = bundle.model.register_forward_hook(lambda *_: calls.append(1))
    trace = session.trace(TEXT, asked=["*.weights", "logits"])
    trace.attention("decoder.cross")
    trace.attention("encoder.self", layer=1, head=2)
    assert trace.logits.dim() == 2
    hook.remove()
    assert len(calls) == 1


def test_a_limit_for_letters_is_for_letters(bundle_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LETTERS", 3)
    with pytest.raises(UserError, match="4 characters"):
        Session(bundle_of("decoder")).trace("abcd")


def test_a_vocabulary_without_a_start(bundle_of: Make) -> None:
    bundle = bundle_of("encoder-decoder")
    bare = Tokenizer(bundle.tokenizer.backend, {"pad": 0, "stop": 2, "unknown": 3})
    with pytest.raises(UserError, match="no start token"):
        Session(replace(bundle, tokenizer=bare)).trace(TEXT)


def test_a_text_of_which_nothing_is_left(bundle_of: Make) -> None:
    bundle = bundle_of("encoder", head__kind="none")
    backend = bundle.tokenizer.backend
    backend.normalizer = normalizers.Replace("…", "")
    with pytest.raises(UserError, match="has no tokens"):
        Session(bundle).trace("…")
    assert Session(bundle).trace("the … cat").source


def test_kinds_and_layers(session_of: Make) -> None:
    assert session_of("encoder-decoder", decoder_layers=1).layers == {"encoder": 2, "decoder": 1}
    assert session_of("decoder").kinds == ["decoder.self"]
    assert session_of("encoder").kinds == ["encoder.self"]
    for kind in ("encoder-decoder", "decoder", "encoder", "recurrent"):
        session = session_of(kind)
        for name in session.kinds:
            assert session.trace(TEXT).attention(name).dim() == 4
