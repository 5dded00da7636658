"""The batch a plan is made for: how many sequences, how long, and which sides each family has.

Knows a model's config and nothing about costs.

Shapes: R rows (sequences, or pairs of them), S source tokens, T target tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig

PAIR_LENGTH = 25  # default tokens of a sentence: about the mean of WMT 2014 in subwords
TEXT_LENGTH = 2048  # default tokens of a text if the position scheme sets no limit
PAIRS = ("encoder-decoder", "recurrent", "convolutional")  # families with a source and a target


@dataclass(frozen=True)
class Batch:
    """One training step's sequences, all of one length; a side that a family lacks has length 0."""

    rows: int
    source_length: int
    target_length: int

    @property
    def source_tokens(self) -> int:
        """Tokens the encoder reads in one step."""
        return self.rows * self.source_length

    @property
    def target_tokens(self) -> int:
        """Tokens the decoder writes in one step."""
        return self.rows * self.target_length

    @property
    def tokens(self) -> int:
        """What `batch_tokens` counts: target tokens, or those of the only sequence."""
        return self.target_tokens or self.source_tokens


def make_batch(
    config: ModelConfig, batch_tokens: int, source_length: int | None, target_length: int | None
) -> Batch:
    """The batch of whole sequences nearest to `batch_tokens`, with at least one sequence."""
    for name, value in (
        ("batch_tokens", batch_tokens),
        ("source_length", source_length),
        ("target_length", target_length),
    ):
        if value is not None and value < 1:
            raise UserError(f"A plan's {name} must be at least 1, not {value}.")
    source, target = _lengths(config, source_length, target_length)
    for longest, limit in ((source, config.source_limit), (target, config.target_limit)):
        if limit is None or longest <= limit or config.family == "vision":
            continue
        learned = config.position.name == "learned" and limit == config.position.max_length
        what = "learned positions" if learned else "attention"
        raise UserError(
            f"This model has {what} for {limit} tokens, not for {longest}: plan for shorter sequences, or "
            f"set {'position' if learned else 'attention'}.max_length."
        )
    return Batch(max(1, round(batch_tokens / (target or source))), source, target)


def _lengths(config: ModelConfig, source: int | None, target: int | None) -> tuple[int, int]:
    """(S, T): as given, or the usual values for the family."""
    if config.family in PAIRS:
        return source or PAIR_LENGTH, target or PAIR_LENGTH
    if config.family == "vision":
        if source is not None or target is not None:
            raise UserError(
                "The number of tokens in an image follows from image.size and image.patch: leave the "
                "length out."
            )
        return config.image.tokens, 0
    usual = config.text_limit or TEXT_LENGTH
    if config.family == "decoder":
        if source is not None:
            raise UserError("A decoder has one sequence, the target: give target_length, not source_length.")
        return 0, target or usual
    if target is not None:
        raise UserError("An encoder has one sequence, the source: give source_length, not target_length.")
    return source or usual, 0
