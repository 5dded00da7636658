"""A bundle's own decoding settings, as `Options` and `Symbols`.

A bundle may carry settings under `generation` in its metadata, with Hugging Face's names and meanings;
imported ones do. Here, and nowhere else, they are translated into ours. `not_carried` lists settings without
a counterpart instead of guessing one. Knows nothing about commands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, is_imported
from clearhead.decoding.backend import Symbols
from clearhead.decoding.options import WITH_SOURCE, Options

Plain = dict[str, Any]

KEY = "generation"  # in a bundle's metadata
TOP_K = 50  # the default of transformers for a folder that samples without giving a value
OF_A_BEAM = ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")
OF_CHANCE = ("temperature", "top_k", "top_p", "min_p", "typical_p")
READ = {
    *("num_beams", "do_sample", "penalty_alpha", *OF_A_BEAM, *OF_CHANCE),
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens"),
    *("no_repeat_ngram_size", "repetition_penalty", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
}
IDS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
# Settings that change no text: how much is computed at a time, and what else is returned.
WITHOUT_EFFECT = (
    *("_", "output_", "return_", "cache_", "assistant_", "compile_", "disable_compile", "use_cache"),
    *("transformers_version", "low_memory", "is_assistant", "num_assistant", "prefill_chunk", "trust_remote"),
)
# Values with which an unsupported setting has no effect.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "guidance_scale": (1.0,),
    "num_return_sequences": (1,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "token_healing": (False,),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
}


def options_of(bundle: Bundle) -> Options:
    """A bundle's own settings; greedy search if it has none.

    >>> import clearhead
    >>> bundle = Bundle(clearhead.build("tiny"), metadata={"generation": {"num_beams": 4, "max_length": 61}})
    >>> own = options_of(bundle)
    >>> own.beam, own.max_length, own.early_stopping
    (4, 60, False)
    """
    return own_options(bundle.metadata, bundle.config.family) or Options()


def own_options(metadata: Mapping[str, Any], family: str) -> Options | None:
    """The settings in a bundle's metadata; None if they say nothing about decoding."""
    settings = _settings(metadata)
    if not READ & settings.plain.keys():
        return None
    has_source = family in WITH_SOURCE
    found = {**_search(settings), **_lengths(settings, has_source), **_words(settings, has_source)}
    try:
        return Options.from_dict(found)
    except UserError as error:
        raise UserError(f"The bundle's own settings for decoding cannot be used: {error}") from error


def not_carried(metadata: Mapping[str, Any], family: str) -> list[str]:
    """The names of settings that a bundle has but that have no effect here."""
    settings = _settings(metadata)
    plain, has_source = settings.plain, family in WITH_SOURCE
    found = [
        name
        for name, value in plain.items()
        if name not in READ | IDS
        and value not in NEUTRAL.get(name, ())
        and not name.startswith(WITHOUT_EFFECT)
    ]
    if settings.flag("do_sample") and settings.whole("num_beams", 1) > 1:
        found.append("do_sample")
    if "forced_bos_token_id" in plain and not has_source:
        found.append("forced_bos_token_id")
    forced = settings.ids("forced_eos_token_id")
    if forced and not set(forced) & set(settings.ids("eos_token_id")):
        found.append("forced_eos_token_id")
    return sorted(found)


def with_own(symbols: Symbols, bundle: Bundle) -> Symbols:
    """A tokenizer's symbols with those of a bundle's own settings: all stops, and what is never written.

    An imported model may write its start and padding symbols: only its own settings rule tokens out.
    """
    settings = _settings(bundle.metadata)
    stops = list(dict.fromkeys([symbols.stop, *settings.ids("eos_token_id")]))
    forced = settings.ids("forced_eos_token_id")
    stops.sort(key=lambda id: id not in forced)  # stable: the token forced at the limit comes first
    never = [*([] if is_imported(bundle) else symbols.forbidden), *settings.ids("suppress_tokens")]
    never += [one[0] for one in settings.sequences("bad_words_ids") if len(one) == 1]
    vocabulary = bundle.config.vocabulary
    for id in (*stops, *never):
        if not 0 <= id < vocabulary:
            raise UserError(
                f"The bundle's own settings name token {id}, but its vocabulary has tokens 0 to "
                f"{vocabulary - 1}."
            )
    forbidden = tuple(sorted(set(never) - set(stops)))
    return replace(symbols, stop=stops[0], other_stops=tuple(stops[1:]), forbidden=forbidden)


def changed(own: Options, said: Mapping[str, Any]) -> Options:
    """A bundle's own settings, overridden by what the caller set.

    Choosing another search than the bundle's drops the settings that belong to the bundle's: beam search does
    not sample, sampling has no beam, and a beam of 1 is greedy. Prefixes and bans add to the bundle's.

    >>> changed(Options(sample=True, top_p=0.9), {"beam": 4}) == Options(beam=4)
    True
    >>> changed(Options(beam=4, no_repeat=3), {"beam": 1}) == Options(no_repeat=3)
    True
    """
    Options.check_names(said)
    base, plain = Options().to_dict(), own.to_dict()
    if "beam" in said or said.get("contrastive") or said.get("sample"):
        dropped = set(_OF_SEARCH)
        if said.get("beam", 1) > 1:
            dropped -= {"length_penalty", "length_kind", "early_stopping", "forced"}
        if said.get("sample") and own.sample:
            dropped -= set(_OF_DRAWING)
        plain |= {name: base[name] for name in dropped}
    for name, other in (("max_length", "max_total"), ("min_length", "min_total")):
        if name in said:
            plain[other] = base[other]
    plain |= said
    for name in ("prefix", "banned"):
        plain[name] = [*getattr(own, name), *said.get(name, ())]
    _fit_lengths(plain, said)
    return Options.from_dict(plain)


_OF_DRAWING = ("sample", "temperature", "top_k", "top_p", "min_p", "typical")
_OF_SEARCH = (
    *("beam", "groups", "diversity", "length_penalty", "length_kind", "coverage", "nbest"),
    *("early_stopping", "forced", "contrastive", *_OF_DRAWING),
)


def _fit_lengths(plain: Plain, said: Mapping[str, Any]) -> None:
    """A length that the caller set takes precedence over the bundle's setting of the other length."""
    least, most = plain["min_length"], plain["max_length"]
    if most is not None and least > most:
        if "min_length" not in said:
            plain["min_length"] = most
        elif "max_length" not in said:
            plain["max_length"] = least


# -- from Hugging Face's names to ours --------------------------------------------------------------


def _search(settings: _Settings) -> Plain:
    beam = settings.whole("num_beams", 1, least=1)
    scoring: Plain = {  # set even for greedy search, in case a caller asks for a beam instead
        "length_penalty": settings.number("length_penalty", 1.0),
        "early_stopping": settings.early_stopping(),
        "forced": "free" if settings.ids("forced_eos_token_id") else "cut",
    }
    if beam > 1:
        groups = settings.whole("num_beam_groups", 1, least=1)
        cost = settings.number("diversity_penalty", 0.0) if groups > 1 else 0.0
        return scoring | {"beam": beam, "groups": groups, "diversity": cost}
    top_k = settings.whole("top_k", TOP_K) or None
    if settings.flag("do_sample"):
        return scoring | {
            "sample": True,
            "temperature": settings.number("temperature", 1.0),
            "top_k": top_k,
            "top_p": settings.number("top_p", 1.0),
            "min_p": settings.number("min_p", 0.0),
            "typical": settings.number("typical_p", 1.0),
        }
    if settings.number("penalty_alpha", 0.0) > 0 and settings.whole("top_k", 0) > 1:
        return scoring | {"contrastive": settings.number("penalty_alpha", 0.0), "top_k": top_k}
    return scoring


def _lengths(settings: _Settings, has_source: bool) -> Plain:
    """Theirs count the start symbol or the prompt, unless they are about new tokens, and the final stop
    symbol if that is forced: ours count what is written before it.
    """
    found: Plain = {}
    end = 1 if settings.ids("forced_eos_token_id") else 0
    most, new = settings.whole("max_length", 0), settings.whole("max_new_tokens", 0)
    if new or (most and has_source):
        found["max_length"] = max((new or most - 1) - end, 1)
    elif most:
        found["max_total"] = max(most - end, 1)
    least, new = settings.whole("min_length", 0), settings.whole("min_new_tokens", 0)
    if new or (least and has_source):
        found["min_length"] = new or least - 1
    elif least:
        found["min_total"] = least
    for kind in ("length", "total"):
        if f"max_{kind}" in found and f"min_{kind}" in found:
            found[f"min_{kind}"] = min(found[f"min_{kind}"], found[f"max_{kind}"])
    return found


def _words(settings: _Settings, has_source: bool) -> Plain:
    first = settings.ids("forced_bos_token_id") if has_source else []
    return {
        "no_repeat": settings.whole("no_repeat_ngram_size", 0) or None,
        "repetition": settings.number("repetition_penalty", 1.0),
        "repetition_of": "logits",
        "banned": [one for one in settings.sequences("bad_words_ids") if len(one) > 1],
        "prefix": first[:1],
        "not_first": settings.ids("begin_suppress_tokens"),
    }


def _settings(metadata: Mapping[str, Any]) -> _Settings:
    plain = metadata.get(KEY) or {}
    if not isinstance(plain, Mapping):
        raise UserError(f"The bundle's own settings for decoding ('{KEY}') must be a table, not {plain!r}.")
    return _Settings({name: value for name, value in plain.items() if value is not None})


class _Settings:
    """A table of their settings, read one by one; a value of the wrong type raises an error."""

    def __init__(self, plain: Plain) -> None:
        self.plain = plain

    def whole(self, name: str, default: int, least: int = 0) -> int:
        value = self.plain.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._wrong(name, f"a whole number of at least {least}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.plain.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.plain.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def early_stopping(self) -> bool | str:
        value = self.plain.get("early_stopping", False)
        if isinstance(value, bool):
            return value
        if value != "never":
            raise self._wrong("early_stopping", "true, false or 'never'")
        return "never"

    def ids(self, name: str) -> list[int]:
        """One id, or several."""
        value = self.plain.get(name, [])
        found = list(value) if isinstance(value, list | tuple) else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
            raise self._wrong(name, "an id or a list of ids")
        return found

    def sequences(self, name: str) -> Sequence[list[int]]:
        value = self.plain.get(name, [])
        if not isinstance(value, list | tuple) or not all(isinstance(one, list | tuple) for one in value):
            raise self._wrong(name, "a list of lists of ids")
        return [_Settings({name: one}).ids(name) for one in value]

    def _wrong(self, name: str, wanted: str) -> UserError:
        shown = repr(self.plain.get(name))
        shown = shown if len(shown) <= 80 else f"{shown[:79]}…"
        return UserError(f"The bundle's own setting '{name}' for decoding must be {wanted}, not {shown}.")
