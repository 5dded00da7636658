"""A bundle as the folder that CTranslate2 reads: `model.bin`, vocabularies, `config.json`, tokenizers.

Written from our weights through CTranslate2's own description of its format
(`ctranslate2.specs`). Settings that it cannot represent are refused by name before
anything is written. `ctranslate2_spec.py` says which tensor goes where.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from clearhead.base.atomic import atomic_folder
from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle
from clearhead.bundle.folder import framings_of
from clearhead.interop.ctranslate2_spec import decoder_spec, encoder_spec
from clearhead.interop.place import Special, ready_to_export, special_ids
from clearhead.interop.tokenizer_files import write_tokenizers
from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer

_HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_POSITIONS = ("none", "sinusoidal", "learned", "rotary", "t5", "alibi", "shaw")


def export_ctranslate2(bundle: Bundle, folder: Path, quantize: str | None = None) -> None:
    """Write a bundle as a folder for `ctranslate2.Translator` or `ctranslate2.Generator`.

    `quantize` is the number format of the stored weights; None keeps the model's own.
    """
    model = ready_to_export(bundle, folder, "CTranslate2", "ctranslate2")
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES as FORMATS  # an optional extra

    misfits = _misfits(bundle.config)
    if misfits:
        raise UserError(f"This model cannot be exported: CTranslate2 has no {', '.join(misfits)}.")
    if quantize is not None and quantize not in FORMATS:
        raise UserError(f"CTranslate2 has no number format '{quantize}': {nearest(quantize, FORMATS)}")
    spec = _spec(bundle, model)
    stored = next(model.parameters()).dtype
    spec.validate()
    spec.optimize(quantization=quantize or _HALF.get(stored))
    with atomic_folder(os.path.abspath(folder), new=True) as fresh:
        spec.save(str(fresh))
        write_tokenizers(bundle, fresh)


def _spec(bundle: Bundle, model: Any) -> Any:
    """The whole model as CTranslate2 describes it: weights, vocabularies, special tokens."""
    from ctranslate2 import specs  # an optional extra

    config, special = bundle.config, special_ids(bundle)
    target = vocabulary(bundle.tokenizer, config.vocabulary)
    named = _special_names(config, special, target)
    decoder = decoder_spec(model, config)
    if config.family == "decoder":
        alone = specs.TransformerDecoderModelSpec(decoder)
        alone.register_vocabulary(target)
        _configure(alone.config, config, named)
        return alone
    both = specs.TransformerSpec(encoder_spec(model, config), decoder)
    source = target
    if config.source_vocabulary is not None:
        reader = bundle.source_tokenizer
        source = vocabulary(reader, config.source_vocabulary)
        stop = special["stop"] if reader is None else reader.stop
        if stop is None or source[stop] != named["eos_token"]:
            raise UserError(
                "CTranslate2 ends sources and targets with the same token, but these vocabularies call "
                f"it '{source[stop] if stop is not None else 'nothing'}' and '{named['eos_token']}'."
            )
    both.register_source_vocabulary(source)
    both.register_target_vocabulary(target)
    _configure(both.config, config, named)
    both.config.decoder_start_token = named["bos_token"]
    _frame_sources(both.config, bundle, source, named["eos_token"])
    return both


def _frame_sources(settings: Any, bundle: Bundle, source: list[str], stop: str) -> None:
    """Make CTranslate2 frame sources as we do: at most one token before and the stop token after."""
    before, after = [], [stop]  # the default for a bundle without a tokenizer
    if bundle.tokenizer is not None:
        framing = framings_of(bundle).source
        before, after = ([source[id] for id in ids] for ids in (framing.before, framing.after))
    if len(before) > 1 or after not in ([], [stop]):
        raise UserError(
            f"CTranslate2 can only put one token before a source and '{stop}' after it, but this model "
            f"reads {' '.join([*before, '…', *after])}."
        )
    settings.add_source_bos, settings.add_source_eos = bool(before), bool(after)
    if before:
        settings.bos_token = before[0]


def _configure(settings: Any, config: ModelConfig, named: dict[str, str]) -> None:
    settings.layer_norm_epsilon = config.norm.eps
    for name, token in named.items():
        setattr(settings, name, token)


def vocabulary(tokenizer: Tokenizer | None, size: int) -> list[str]:
    """All tokens in the order of their ids, with distinct names.

    Without a tokenizer a token's name is its id, so ids can be passed and are returned as texts. Ids
    without a token get a name that says so.

    >>> vocabulary(Tokenizer.words("to be"), 8)
    ['<pad>', '<start>', '<stop>', '<unknown>', 'to', 'be', '<unused 6>', '<unused 7>']
    >>> vocabulary(None, 3)
    ['0', '1', '2']
    """
    if tokenizer is None:
        return [str(id) for id in range(size)]
    if tokenizer.vocabulary_size > size:
        raise UserError(
            f"This tokenizer has {tokenizer.vocabulary_size} tokens and the model only {size}: they do not "
            f"belong together."
        )
    found = (tokenizer.backend.id_to_token(id) for id in range(size))
    return [f"<unused {id}>" if token is None else str(token) for id, token in enumerate(found)]


def _special_names(config: ModelConfig, special: Special, tokens: list[str]) -> dict[str, str]:
    """CTranslate2's names of the special tokens; a vocabulary without an unknown token never needs one."""
    for role in ("stop",) if config.family == "decoder" else ("start", "stop"):
        if special[role] is None:
            raise UserError(
                f"CTranslate2 needs the {role} token, and this bundle does not name it: give it a "
                f"tokenizer, or metadata with special={{'{role}': id}}."
            )
    names = {"bos_token": "start", "eos_token": "stop", "unk_token": "unknown"}
    ids = {name: special["stop"] if special[role] is None else special[role] for name, role in names.items()}
    return {name: tokens[id] for name, id in ids.items() if id is not None}


def _misfits(config: ModelConfig) -> list[str]:
    """The settings that CTranslate2 cannot represent, as `name=value`."""
    attention, position = config.attention.replace(width=config.width), config.position.name
    encodes = config.family == "encoder-decoder"
    key, value, types = attention.key_size, attention.value_size, config.embedding.token_types
    found = {
        f"attention.score='{attention.score}'": attention.score not in ("dot", "scaled_dot"),
        f"attention.softcap={attention.softcap}": attention.softcap is not None,
        f"attention.value_dim={value} beside key_dim={key}": value != key,
        f"attention.memory_width={attention.memory_width}": attention.memory_width
        not in (None, config.width),
        f"position.name='{position}'": position not in _POSITIONS,
        "position.name='alibi' in an encoder": position == "alibi" and encodes,
        # It positions the tokens of a prompt as if all were at its end.
        "position.name='t5' in a decoder that is given prompts": position == "t5" and not encodes,
        f"embedding.token_types={types}": types > 0,
    }
    return [setting for setting, is_so in found.items() if is_so]
