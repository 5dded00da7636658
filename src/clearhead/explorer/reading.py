"""A text as the ids a model is fed, just as in training and decoding, and a model prepared for inspection.

An encoder-decoder reads a source, and its decoder the start symbol and the target; a decoder reads the text
itself, or the source followed by the target; an encoder reads the text, a vision model a picture. Knows
nothing about the views.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.decoding.fill import read_with_gaps
from clearhead.decoding.labels import reads_two
from clearhead.decoding.options import WITH_SOURCE, Options, positions_of
from clearhead.decoding.pictures import picture_tensor
from clearhead.decoding.run import translate
from clearhead.decoding.text_requests import opening, symbols_of, translates
from clearhead.models.config import ModelConfig

LIMIT = 512  # tokens of a text: a drawing of more would be unreadable
# kinds of parts that can be drawn
KNOWN = (
    *("multihead", "latent", "linear", "performer", "linformer", "nystrom", "reformer", "sparse"),
    *("compressed", "dense", "experts", "none"),
)
MOST_LETTERS = 50_000  # a longer text is refused before it is tokenised


@dataclass(frozen=True)
class Reading:
    """The ids of one text."""

    source: tuple[int, ...] = ()  # what the encoder reads; none in a decoder
    target: tuple[int, ...] = ()  # what the decoder reads; none in an encoder
    following: tuple[int, ...] = ()  # the token after each position of the target, as far as it is known


def ready(bundle: Bundle) -> Bundle:
    """The same bundle with its model in evaluation mode, in float32.

    A model that is being trained, or has other numbers, is copied: all views show one moment, and the
    caller's model stays unchanged.
    """
    if bundle.config.family == "convolutional":
        raise UserError(
            "The explorer cannot show convolutional models: it supports Transformers and recurrent models."
        )
    if bundle.config.family == "recurrent" and bundle.config.recurrent.attention == "none":
        raise UserError("The explorer shows where a model looks, and this one has no attention.")
    _refuse_unknown_parts(bundle.config)
    if bundle.config.family != "vision":
        tokenizers_of(bundle)  # refuses a bundle without one
    plain = all(one.dtype == torch.float32 for one in bundle.model.parameters())
    if plain and not bundle.model.training:
        return bundle
    own: nn.Module = copy.deepcopy(bundle.model).float().eval()
    return replace(bundle, model=own)


def _refuse_unknown_parts(config: ModelConfig) -> None:
    """Raise an error that names a part that cannot be drawn."""
    feedforwards = (config.feedforward, *(one.feedforward for one in config.layer_pattern))
    for part in (*config.attentions, *feedforwards):
        if part is not None and part.kind not in KNOWN:
            raise UserError(f"The explorer cannot show a model with parts of the kind '{part.kind}'.")


def limit_of(config: ModelConfig) -> int:
    """The most tokens of a text: what can be drawn, and what the model has positions for."""
    if config.family == "vision":
        return config.image.tokens
    positions = positions_of(config)
    return LIMIT if positions is None else min(LIMIT, positions)


def read(bundle: Bundle, text: str, target: str | None = None) -> Reading:
    """The ids of a text and of its target; no target, or an empty one, means the model's own (greedy)."""
    config = bundle.config
    if translates(bundle):
        return _pair(bundle, text, target)
    if not _is_blank(target):
        raise UserError(
            f"A model of the family '{config.family}' has no target apart from its text: leave it out."
        )
    if config.family == "vision":  # whose tokens are patches, by number
        picture_tensor(bundle, text)
        return Reading(source=tuple(range(config.image.tokens)))
    ids = read_text(bundle, text)
    if config.family in WITH_SOURCE:  # it labels texts, and reads them on both sides
        return Reading(source=ids, target=ids)
    if config.family == "decoder":
        return Reading(target=ids, following=ids[1:] if config.head.kind == "none" else ())
    return Reading(source=ids)


def read_text(bundle: Bundle, text: str) -> tuple[int, ...]:
    """The ids of a text where it is read: in the encoder, or in a decoder-only model."""
    config = bundle.config
    _refuse_unreadable(text, "text")
    if config.head.of_text and reads_two(bundle):
        raise UserError(
            "This model labels pairs of texts, and the explorer shows one text at a time: use `clearhead "
            "label`."
        )
    if config.family == "decoder" and config.head.kind == "none" and not translates(bundle):
        ids = opening(bundle, text)
    else:
        ids = read_with_gaps(bundle, text)
    if not ids:
        raise UserError("The text has no tokens: give at least one word.")
    _refuse_long(len(ids), limit_of(config), "text")
    return tuple(ids)


def _pair(bundle: Bundle, text: str, target: str | None) -> Reading:
    """The source with its stop symbol; the start symbol and the target; the target and its stop symbol.

    A decoder reads the source, its separator and the target in one row.
    """
    symbols, limit = symbols_of(bundle), limit_of(bundle.config)
    apart, start = bundle.config.family in WITH_SOURCE, symbols.start
    if apart and start is None:
        raise UserError("This vocabulary has no start token, which every target needs.")
    source = read_text(bundle, text)
    if target is None or _is_blank(target):
        most = max(min(2 * len(source) + 20, limit - (1 if apart else len(source))), 1)
        [own] = translate(bundle, [text], Options(max_length=most), way="torch")
        written = own.ids
    else:
        _refuse_unreadable(target, "target")
        written = (*framings_of(bundle).target.before, *tokenizers_of(bundle)[1].encode(target))
        _refuse_long(len(written) + (1 if apart else len(source)), limit, "target")
    if start is None or not apart:
        whole = (*source, *written)
        return Reading(target=whole, following=(*whole[1:], symbols.stop))
    return Reading(source, (start, *written), (*written, symbols.stop))


def _is_blank(target: str | None) -> bool:
    return target is None or (isinstance(target, str) and not target.strip())


def _refuse_unreadable(text: str, what: str) -> None:
    if not isinstance(text, str):
        raise UserError(f"The {what} must be a string, not {text!r}.")
    if not text.strip():
        raise UserError(f"The {what} is empty: give at least one word.")
    if len(text) > MOST_LETTERS:
        raise UserError(
            f"The {what} has {len(text):,} characters, and the explorer reads at most {MOST_LETTERS:,}: "
            f"shorten it."
        )


def _refuse_long(size: int, limit: int, what: str) -> None:
    if size > limit:
        raise UserError(f"The {what} has {size} tokens, and the explorer shows at most {limit}: shorten it.")
