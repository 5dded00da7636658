"""The check of speculative decoding: with the guesses of a smaller model, greedy text stays the same."""

from __future__ import annotations

import copy

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.speculative import speculate
from clearhead.verify.report import Check, within
from clearhead.verify.subject import Subject

DRAFT = "speculative = greedy"


def refuse_unlike(subject: Subject, draft: Bundle) -> None:
    """A sentence for a smaller model whose tokens are not this model's."""
    for large, small in (
        (subject.bundle.tokenizer, draft.tokenizer),
        (subject.bundle.source_tokenizer, draft.source_tokenizer),
    ):
        if (large and large.to_json()) != (small and small.to_json()):
            raise UserError("The draft bundle has another tokenizer: guesses are checked token by token.")


def speculative(subject: Subject, draft: Bundle) -> Check:
    """Greedy texts with and without the smaller model, in the exact copy."""
    numbers = list(range(len(subject.given)))
    options = Options(max_length=subject.effort.write)
    wanted = subject.decode(subject.exact_writer, options, numbers)
    dtype = next(subject.exact.model.parameters()).dtype
    small = copy.deepcopy(draft.model).to(device=subject.device, dtype=dtype).eval()
    made = pipeline(options, subject.symbols, subject.config.vocabulary, subject.has_source)
    worst, unlike, accepted, guessed = 0.0, 0, 0, 0
    for number in numbers:
        found = speculate(
            subject.exact.model,
            small,
            subject.given[number],
            symbols=subject.symbols,
            limit=subject.limit(number),
            options=options,
            before=made.before,
        )
        unlike += found.hypothesis.ids != wanted[number][0].ids
        worst = max(worst, abs(found.hypothesis.logp - wanted[number][0].logp))
        accepted, guessed = accepted + found.accepted, guessed + found.guessed
    what = f"{len(numbers)} texts with the draft's guesses, against greedy search alone"
    details = {"guesses kept": accepted, "guesses": guessed}
    check = within(DRAFT, worst, subject.bound, what, **details)
    if not unlike:
        return check
    sentence = f"{what}: {unlike} texts have other tokens."
    return Check(DRAFT, False, max(worst, float(unlike)), subject.bound, sentence, details)
