"""The tokenizer of a Hugging Face folder, with its framing of texts; both ways.

`tokenizer.json` holds the vocabulary and, usually, the template around texts;
`tokenizer_config.json` and `special_tokens_map.json` say which token has which
role. A file without a template uses that of its tokenizer class, named in
`tokenizer_config.json`, or else that of its model's family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.base.reading import read_any_json
from clearhead.bundle import Bundle
from clearhead.bundle.folder import framings_of
from clearhead.bundle.metadata import SOURCE_TOKENIZER
from clearhead.interop.checkpoint import read_json
from clearhead.interop.place import write_json
from clearhead.models.config import ModelConfig
from clearhead.text.framing import (
    Framing,
    Framings,
    bert_framing,
    plain_framing,
    roberta_framing,
    template_of,
    with_template,
)
from clearhead.text.marks import Marks
from clearhead.text.tokenizer import FILE_NAME, LARGEST, Tokenizer

SETTINGS = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"

# The role of a token and its names there, in order of precedence.
_NAMES = {
    "pad": ("pad_token",),
    "start": ("bos_token", "cls_token"),
    "stop": ("eos_token", "sep_token"),
    "unknown": ("unk_token",),
}
_TIDY = {
    **{f" {mark}": mark for mark in (".", "?", "!", ",")},
    " ' ": "'",
    **{f" {end}": end for end in ("n't", "'m", "'s", "'ve", "'re")},
}
_CLASS_OF_FAMILY = {"bart": "Bart", "bert": "Bert", "t5": "T5", "marian": "Marian"}


# -- in ---------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What a folder says about texts; each is None if it says nothing."""

    tokenizer: Tokenizer | None
    source_tokenizer: Tokenizer | None
    framings: Framings | None


def read_tokenizers(folder: Path, model_type: str, segments: bool) -> Found:
    """The tokenizers of a folder, and the framing of texts; `segments`: the model has some.

    There is no framing for a folder that clearhead 0.1 wrote either: its models have an implicit one.
    """
    target, source = (_read(folder, name) for name in (FILE_NAME, SOURCE_TOKENIZER))
    if target is None:
        return Found(None, source, None)
    settings = _settings(folder)
    if template_of(target) is None and _is_ours(folder / FILE_NAME):
        return Found(target, source, None)
    inputs = settings.get("model_input_names")
    told = segments and (not isinstance(inputs, list) or "token_type_ids" in inputs)
    before, after = (
        found if told else found.in_one_segment()
        for found in (_framing(one, settings, model_type) for one in (source or target, target))
    )
    source = None if source is None else with_template(source, before)
    return Found(with_template(target, after), source, Framings(source=before, target=after))


def _read(folder: Path, name: str) -> Tokenizer | None:
    """A tokenizer with the roles that the folder gives its tokens; ours state them in their own file."""
    if not (folder / name).exists():
        return None
    found = Tokenizer.load(folder / name)
    if _is_ours(folder / name):
        return found
    settings = _settings(folder)
    roles = found.specials
    for role, names in _NAMES.items():
        tokens = [token for name in names if (token := _content(settings.get(name))) is not None]
        ids = [id for token in tokens if (id := found.backend.token_to_id(token)) is not None]
        roles |= {role: ids[0]} if ids else {}
    literal = settings.get("split_special_tokens") is True
    made = Tokenizer(found.backend, roles, literal=literal)
    return _tidying(made) if settings.get("clean_up_tokenization_spaces") is True else made


def _tidying(tokenizer: Tokenizer) -> Tokenizer:
    """Add a decoder that removes spaces before punctuation, as transformers does if configured.

    Not for byte-pair encoding, whose texts it would damage: there transformers ignores the setting too.
    """
    plain = json.loads(tokenizer.to_json())
    if plain["model"].get("type") == "BPE" or plain["decoder"] is None:
        return tokenizer
    changes = [
        {"type": "Replace", "pattern": {"String": text}, "content": tidy} for text, tidy in _TIDY.items()
    ]
    plain["decoder"] = {"type": "Sequence", "decoders": [plain["decoder"], {"type": "Fuse"}, *changes]}
    return Tokenizer.from_json(json.dumps(plain, ensure_ascii=False))


def _is_ours(path: Path) -> bool:
    """Whether we wrote the file, which then names the roles of its tokens."""
    entries = read_any_json(path, LARGEST).get("added_tokens")  # it was read before
    return any("roles" in entry for entry in entries or ())


def _settings(folder: Path) -> dict[str, Any]:
    found = [read_json(folder / name) for name in (SPECIAL, SETTINGS) if (folder / name).exists()]
    return {key: value for plain in found for key, value in plain.items() if value is not None}


def _content(token: Any) -> str | None:
    """A token, or a table that describes one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _framing(tokenizer: Tokenizer, settings: Mapping[str, Any], model_type: str) -> Framing:
    """The file's template, or that of the tokenizer's class."""
    found = template_of(tokenizer)
    if found is not None:
        found.check(tokenizer.vocabulary_size)
        return found
    kind = settings.get("tokenizer_class")
    name = kind if isinstance(kind, str) else _CLASS_OF_FAMILY.get(model_type, "")
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    start, stop = tokenizer.start, tokenizer.stop
    if name in ("Bert", "Bart", "Roberta") and start is not None and stop is not None:
        return bert_framing(start, stop) if name == "Bert" else roberta_framing(start, stop)
    if name in ("T5", "Marian"):
        return plain_framing(None, stop)
    adds = {role: settings.get(f"add_{role}_token") is True for role in ("bos", "eos")}
    return plain_framing(start if adds["bos"] else None, stop if adds["eos"] else None)


# -- out --------------------------------------------------------------------------------------------------


def write_tokenizers(bundle: Bundle, folder: Path) -> None:
    """A bundle's tokenizers as files of the `tokenizers` library that frame texts as we do."""
    if bundle.tokenizer is None:
        return
    framings = framings_of(bundle)
    own = framings.source if _reads_sources(bundle) else framings.target
    plain = with_template(bundle.tokenizer, own).backend.to_str(pretty=True)
    # without the roles that `Tokenizer.save` adds, about which transformers complains: its settings name them
    (folder / FILE_NAME).write_text(plain, encoding="utf-8")
    if bundle.source_tokenizer is not None:
        with_template(bundle.source_tokenizer, framings.source).save(folder / SOURCE_TOKENIZER)


def write_settings(bundle: Bundle, folder: Path) -> None:
    """The `tokenizer_config.json` for transformers: roles, length, and the model's inputs."""
    if bundle.tokenizer is not None:
        limit = bundle.metadata.get("source_limit")
        write_json(folder / SETTINGS, _tokenizer_settings(bundle.tokenizer, bundle.config, limit))


def _reads_sources(bundle: Bundle) -> bool:
    """Whether the folder's only tokenizer there reads sources, even if it also writes.

    A decoder's tokenizer reads prompts, which are sources if a separator follows them.
    """
    separated = bool(framings_of(bundle).source.after)
    return (bundle.config.family != "decoder" or separated) and bundle.source_tokenizer is None


def _tokenizer_settings(tokenizer: Tokenizer, config: ModelConfig, limit: Any) -> dict[str, Any]:
    names = {"pad": "pad_token", "start": "bos_token", "stop": "eos_token", "unknown": "unk_token"}
    if config.family == "encoder":
        names |= {"start": "cls_token", "stop": "sep_token"}
    found = {names[role]: tokenizer.token(id) for role, id in tokenizer.specials.items()}
    marks = Marks.of(tokenizer)
    if marks is not None and marks.mask is not None:
        found["mask_token"] = tokenizer.token(marks.mask)
    segments = ["token_type_ids"] if config.embedding.token_types else []
    plain: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **found,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if config.family == "decoder":
        plain["padding_side"] = "left"  # generated text directly follows the prompt
    if isinstance(limit, int):
        plain["model_max_length"] = limit  # the longest source in training
    elif config.position.name == "learned":
        plain["model_max_length"] = config.position.max_length
    if tokenizer.literal:
        plain["split_special_tokens"] = True  # "<stop>" in a text means those letters
    return plain
