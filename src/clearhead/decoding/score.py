"""A model's scores of given texts: forced decoding of all tokens in one pass.

A search sums the same numbers: the score of a text that a search wrote equals the score found here.

Shapes: B rows, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.exiting import in_compiled_work
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.decoding.batches import NUMBERS, at_work, by_length, padded
from clearhead.decoding.options import WITH_SOURCE, LengthPenalty
from clearhead.decoding.text_requests import opening, read_sources, symbols_of, translates

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Scored:
    """A text and its natural log-probability."""

    tokens: tuple[str, ...]  # without the stop symbol
    token_logps: tuple[float, ...]  # of each token, and finally of the stop symbol
    logp: float  # their sum
    score: float  # over the length penalty, by which a search ranks texts

    @property
    def perplexity(self) -> float:
        """e to the power of the mean surprise per token, the stop symbol included."""
        return float(torch.tensor(-self.logp / len(self.token_logps), dtype=torch.float64).exp())


def score(
    bundle: Bundle,
    pairs: Sequence[tuple[str, str]],
    *,
    penalty: LengthPenalty | None = None,
    device: str | torch.device | None = None,
) -> list[Scored]:
    """The model's scores of each pair's target after its source (a decoder: after its prompt, maybe empty).

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> [one] = score(bundle, [("the cat", "cat sleeps")])
    >>> len(one.token_logps), one.tokens
    (3, ('cat', 'sleeps'))
    """
    _, writer = tokenizers_of(bundle)
    # after a prompt nothing new begins; a separate target may have more before it than the start symbol
    before = framings_of(bundle).target.before if translates(bundle) else []
    targets = [(*before, *ids) for ids in writer.encode_batch([target for _, target in pairs])]
    return score_ids(bundle, [source for source, _ in pairs], targets, penalty=penalty, device=device)


@in_compiled_work
@torch.no_grad()
def score_ids(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[Sequence[int]],
    *,
    stops: Sequence[int | None] | None = None,
    penalty: LengthPenalty | None = None,
    device: str | torch.device | None = None,
) -> list[Scored]:
    """As `score`, of targets given as ids; `stops` are their stop symbols, if not the first."""
    _, writer = tokenizers_of(bundle)
    symbols, divisor = symbols_of(bundle), penalty or LengthPenalty()
    given = _given(bundle, sources)
    _refuse_too_long(bundle, given, targets)
    found: list[Scored | None] = [None] * len(targets)
    with at_work(bundle.model, device) as place:
        ends = [symbols.stop if one is None else one for one in stops or [None] * len(targets)]
        for group, logps in _passes(bundle, given, targets, ends, symbols.start, place):
            for number, row in zip(group, logps.tolist(), strict=True):
                ids = targets[number]
                own = tuple(row[: len(ids) + 1])
                total = sum(own)
                tokens = tuple(writer.token(id) for id in ids)
                found[number] = Scored(tokens, own, total, total / divisor.at(len(own)))
    return [one for one in found if one is not None]


def _given(bundle: Bundle, sources: Sequence[str]) -> list[list[int]]:
    if translates(bundle):
        return read_sources(bundle, sources)
    return [opening(bundle, text) for text in sources]


def _refuse_too_long(bundle: Bundle, given: Sequence[list[int]], targets: Sequence[Sequence[int]]) -> None:
    config = bundle.config
    limits = {"source": config.source_limit, "target": config.target_limit}
    for number, (source, target) in enumerate(zip(given, targets, strict=True), start=1):
        sides = {"source": len(source), "target": len(target) + 1}
        if config.family == "decoder":
            sides = {"text with its prompt": len(source) + len(target)}
        for name, size in sides.items():
            positions = limits.get(name, config.target_limit)
            if positions is not None and size > positions:
                raise UserError(
                    f"The {name} of pair {number} has {size} tokens, and this model reads at most "
                    f"{positions}: shorten it."
                )


def _passes(
    bundle: Bundle,
    given: Sequence[list[int]],
    targets: Sequence[Sequence[int]],
    stops: Sequence[int],
    start: int | None,
    place: torch.device,
) -> Iterator[tuple[list[int], Tensor]]:
    """Indices of pairs, and the log-probabilities (B, T+1) of their targets and stop symbols."""
    model, has_source = bundle.model, bundle.config.family in WITH_SOURCE
    if has_source and start is None:
        raise UserError("This vocabulary has no start token, which every target needs.")
    sizes = [max(len(a), 1) + len(b) + 1 for a, b in zip(given, targets, strict=True)]
    most = max(1, NUMBERS // (bundle.config.vocabulary * max(sizes, default=1)))
    for group in by_length(sizes, BATCH_TOKENS, most):
        labels, lengths = padded([[*targets[i], stops[i]] for i in group], 0, place)
        if has_source:
            source, source_lengths = padded([given[i] for i in group], 0, place)
            inputs, _ = padded([[start or 0, *targets[i]] for i in group], 0, place)
            logits = model(source, inputs, source_lengths=source_lengths, target_lengths=lengths).logits
        else:
            inputs, whole = padded([[*given[i], *targets[i]] for i in group], 0, place)
            every = model(inputs, lengths=whole).logits
            first = torch.tensor([len(given[i]) - 1 for i in group], device=place)
            where = first.unsqueeze(1) + torch.arange(labels.shape[1], device=place)
            where = where.clamp(max=every.shape[1] - 1)
            logits = every.gather(1, where.unsqueeze(-1).expand(-1, -1, every.shape[-1]))
        wide = logits if logits.dtype == torch.float64 else logits.float()
        logp = wide.log_softmax(-1).gather(2, labels.unsqueeze(-1)).squeeze(-1)
        yield group, logp.cpu().double()
