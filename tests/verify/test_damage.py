"""Every check can fail: something is broken on purpose, and just the checks that it concerns say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.decoding import (
    beam,
    beam_state,
    greedy_and_sampling,
    native,
    processors,
    random_draws,
    speculative,
    truncation,
)
from clearhead.decoding import writer as writing
from clearhead.decoding.backend import Scores
from clearhead.decoding.beam_state import Stopping
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.rows import PlainScores
from clearhead.models import encoder_decoder, stack
from clearhead.nn.attention import KeyValues
from clearhead.nn.attention.kernels import KERNELS
from clearhead.nn.attention.masks import Everything
from clearhead.nn.attention.tiled import tiled
from clearhead.nn.tokens import Tokens
from clearhead.verify import CHECKS, Effort, verify
from clearhead.verify.text_to_text import TEXTS

from ..decoding.bundles import translator, writer

pytestmark = pytest.mark.slow

SMALL = Effort(texts=3, longest=6, write=6, draws=300, searched=1)
COMPARED = [name for name in CHECKS if name != TEXTS][:-3]  # other number formats are another matter
NO_NATIVE = native.why_not()
Patch = pytest.MonkeyPatch


def failed(**how: Any) -> set[str]:
    report = verify(how.pop("bundle", None) or translator(), effort=SMALL, **how)
    assert report.passed == all(check.passed for check in report.checks)
    return {check.name for check in report.checks if not check.passed}


def a_state_that_forgets(patch: Patch) -> None:
    right = KeyValues.append

    def forgetful(self: KeyValues, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        keys, values = right(self, k, v, tokens)
        values = values.clone()
        values[:, :, :-1][:, :, :1] = 0.0  # the first token, as soon as there is another
        return keys, values

    patch.setattr(KeyValues, "append", forgetful)


def packed_texts_that_see_each_other(patch: Patch) -> None:
    def careless(ids: Tensor, lengths: Any, what: str = "tokens") -> Any:
        if ids.dim() == 2:
            return stack.as_rows(ids, lengths, what)
        return ids.unsqueeze(0), Tokens.padded(len(ids)), Everything()

    patch.setattr(encoder_decoder, "as_rows", careless)


def chance_by_place_in_the_batch(patch: Patch) -> None:
    def careless(seeds: Sequence[int], texts: Sequence[int], device: torch.device) -> Tensor:
        return random_draws.keys([seed + 7 * row for row, seed in enumerate(seeds)], texts, device)

    patch.setattr(greedy_and_sampling, "keys", careless)


class ReluctantLine(GreedyOrSampling):
    """Greedy search that would rather not stop."""

    def advance(self, scores: Scores) -> Any:
        if self.sample:
            return super().advance(scores)
        logp = scores.logp().clone()
        logp[:, 2] -= 6.0
        return super().advance(PlainScores(logp))


def a_greedy_search_of_its_own(patch: Patch) -> None:
    patch.setattr(writing, "GreedyOrSampling", ReluctantLine)


class ShiftedPenalty(LengthPenalty):
    def at(self, length: int) -> float:
        return super().at(length + 1)


def a_length_off_by_one(patch: Patch) -> None:
    for module in (beam, beam_state):
        patch.setattr(module, "LengthPenalty", ShiftedPenalty)


def a_bound_for_the_present_length(patch: Patch) -> None:
    """The stopping rule of many toolkits: what a live text would score if it ended now."""
    right = Stopping._exactly

    def hasty(self: Stopping, *given: Any) -> Any:
        far, self.last_divisor = self.last_divisor, self.last_divisor * 0
        try:
            return right(self, *given)
        finally:
            self.last_divisor = far

    patch.setattr(Stopping, "_exactly", hasty)


def a_bound_for_the_longest_text(patch: Patch) -> None:
    """Wrong where short texts are preferred: a live text may end at once."""
    right = Stopping._exactly

    class Nothing(LengthPenalty):
        def at(self, length: int) -> float:
            return 0.0

    def late(self: Stopping, *given: Any) -> Any:
        kept, self.penalty = self.penalty, Nothing()
        try:
            return right(self, *given)
        finally:
            self.penalty = kept

    patch.setattr(Stopping, "_exactly", late)


def skewed_chance(patch: Patch) -> None:
    patch.setattr(greedy_and_sampling, "uniform", lambda key, place: random_draws.uniform(key, place) ** 1.5)


def a_temperature_that_is_not_applied(patch: Patch) -> None:
    patch.setattr(truncation.Temperature, "__call__", lambda self, logp, past: logp)


def a_frequency_penalty_with_the_wrong_sign(patch: Patch) -> None:
    right = processors.Counts.__call__
    patch.setattr(processors.Counts, "__call__", lambda self, logp, past: 2 * logp - right(self, logp, past))


def a_repetition_penalty_that_divides(patch: Patch) -> None:
    def divides(self: Any, logp: Tensor, past: Any) -> Tensor:
        seen = self.history(past)
        return logp.scatter(1, seen, logp.gather(1, seen) / self.penalty) if seen.shape[1] else logp

    patch.setattr(processors.Repetition, "__call__", divides)


def pairs_that_may_return(patch: Patch) -> None:
    patch.setattr(processors.NoRepeat, "__call__", lambda self, logp, past: logp)


def a_prefix_that_is_only_preferred(patch: Patch) -> None:
    patch.setattr(processors.Prefix, "__call__", lambda self, logp, past: logp)


def a_nucleus_with_one_token_too_many(patch: Patch) -> None:
    right = truncation.TopP._kept

    def generous(self: Any, logp: Tensor, ranked: Tensor, reached: Tensor, total: Tensor) -> Tensor:
        kept = ~torch.isneginf(right(self, logp, ranked, reached, total))
        more = logp.masked_fill(kept, -torch.inf).argmax(-1, keepdim=True)
        return logp.masked_fill(~kept.scatter(1, more, True), -torch.inf)

    patch.setattr(truncation.TopP, "_kept", generous)


def a_kernel_that_is_off(patch: Patch) -> None:
    patch.setitem(KERNELS, "tiled", lambda problem: tiled(problem) + 1e-2)


def compiled_scores_that_are_off(patch: Patch) -> None:
    right = native.NativeScores.logp
    patch.setattr(native.NativeScores, "logp", lambda self: right(self) + 0.002)


def int8_weights_of_too_few_bits(patch: Patch) -> None:
    right = native.NativeRows.step

    def coarse(self: Any, parent: Tensor, token: Tensor) -> Any:
        scores = right(self, parent, token)
        return scores if self.dtype != "int8" else PlainScores((scores.logp() * 0.7).log_softmax(-1))

    patch.setattr(native.NativeRows, "step", coarse)


DAMAGES: dict[Callable[[Patch], None], set[str]] = {
    packed_texts_that_see_each_other: {"alone = in any batch"},
    chance_by_place_in_the_batch: {"alone = beside others"},
    a_greedy_search_of_its_own: {"beam 1 = greedy"},
    a_length_off_by_one: {"beam score = forced score", "stopping costs nothing"},
    a_bound_for_the_present_length: {"stopping costs nothing"},
    a_bound_for_the_longest_text: {"stopping costs nothing"},
    skewed_chance: {"sampling = its distribution (p)"},
    a_temperature_that_is_not_applied: {"sampling = its distribution (p)", "cut-offs = their sets"},
    a_frequency_penalty_with_the_wrong_sign: {"penalties = their formulas"},
    a_repetition_penalty_that_divides: {"penalties = their formulas"},
    pairs_that_may_return: {"penalties = their formulas"},
    a_prefix_that_is_only_preferred: {"penalties = their formulas"},
    a_nucleus_with_one_token_too_many: {"sampling = its distribution (p)", "cut-offs = their sets"},
    a_kernel_that_is_off: {"fast kernels = reference"},
}
COMPILED: dict[Callable[[Patch], None], set[str]] = {
    compiled_scores_that_are_off: {"C++ float32 = PyTorch"},
    int8_weights_of_too_few_bits: {"drift of int8 (nats)"},
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_damage_is_found_by_its_checks_alone(damage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    damage(monkeypatch)
    assert failed(only=COMPARED) == DAMAGES[damage]


@pytest.mark.skipif(NO_NATIVE is not None, reason=str(NO_NATIVE))
@pytest.mark.parametrize("damage", COMPILED, ids=lambda one: one.__name__)
def test_a_damage_of_the_compiled_engine_is_found(
    damage: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    damage(monkeypatch)
    assert failed(only=[*list(CHECKS)[:2], *list(CHECKS)[-3:]]) == COMPILED[damage]


def test_a_state_that_forgets_is_found(monkeypatch: Patch) -> None:
    """Searches still agree with each other, but not with passes over whole texts."""
    a_state_that_forgets(monkeypatch)
    with_whole_passes = {"cached = uncached", "beam score = forced score"}
    assert (
        with_whole_passes <= failed(only=COMPARED) <= with_whole_passes | {"sampling = its distribution (p)"}
    )


def test_guesses_that_are_never_checked_are_found(monkeypatch: Patch) -> None:
    bundle, small = writer(position__max_length=32), writer(layers=1, position__max_length=32)
    assert failed(bundle=bundle, draft=small, only=["speculative = greedy"]) == set()
    monkeypatch.setattr(speculative._Choice, "keeps", lambda self, guess, p, q: True)
    assert failed(bundle=bundle, draft=small, only=["speculative = greedy"]) == {"speculative = greedy"}


def test_a_check_that_breaks_off_has_failed_and_the_others_are_made(monkeypatch: Patch) -> None:
    def broken(problem: Any) -> Tensor:
        raise RuntimeError("no such\ninstruction")

    monkeypatch.setitem(KERNELS, "tiled", broken)
    names = ["beam 1 = greedy", "fast kernels = reference"]
    report = verify(translator(), effort=SMALL, only=names)
    assert [check.passed for check in report.checks] == [True, False]
    assert report.checks[1].sentence == "Stopped with RuntimeError: no such instruction"
    assert report.to_dict()["checks"][1]["worst"] is None  # JSON has no infinity
