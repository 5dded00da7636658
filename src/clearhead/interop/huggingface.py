"""Folders in the layout of Hugging Face transformers, both ways, without needing that library.

Reads `config.json`, finds the family's table, and converts tensors, settings,
special ids and the tokenizer; writes the same files back. The families' tables, not
this file, say which tensor is which.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from clearhead.base.atomic import atomic_folder, is_vacant
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.bundle.folder import is_imported
from clearhead.bundle.metadata import SOURCE_TOKENIZER
from clearhead.interop.bert_vit import BERT, VIT
from clearhead.interop.checkpoint import CONFIG, GENERATION, WEIGHTS, Checkpoint, read_json
from clearhead.interop.deepseek import DEEPSEEK
from clearhead.interop.family import Family
from clearhead.interop.gpt2 import GPT2
from clearhead.interop.llama import LLAMA
from clearhead.interop.longformer import LONGFORMER
from clearhead.interop.mapping import Names, check_copies, check_names, expand, fill, to_theirs
from clearhead.interop.marian_bart import BART, MARIAN
from clearhead.interop.mixtral import MIXTRAL
from clearhead.interop.place import whole_model, write_json
from clearhead.interop.preprocessor import PREPROCESSOR, preprocessor_of, read_preprocessor
from clearhead.interop.settings import Settings, labels
from clearhead.interop.t5 import T5
from clearhead.interop.tokenizer_files import SETTINGS, read_tokenizers, write_settings, write_tokenizers
from clearhead.models.build import build
from clearhead.models.config import NO_TRANSFORMERS, ModelConfig
from clearhead.text.framing import Framings
from clearhead.text.tokenizer import FILE_NAME as TOKENIZER

# If several can represent one of our models, the first that fits is written.
FAMILIES: dict[str, Family] = {
    one.model_type: one for one in (MARIAN, BART, T5, BERT, LONGFORMER, GPT2, LLAMA, MIXTRAL, DEEPSEEK, VIT)
}
_WRITTEN = {CONFIG, WEIGHTS, GENERATION, TOKENIZER, SOURCE_TOKENIZER, SETTINGS, PREPROCESSOR}

_STARTS = ("decoder_start_token_id", "bos_token_id", "pad_token_id")  # where their decoding looks for a start
_FORCED = ("bos_token_id", "forced_bos_token_id", "forced_eos_token_id")
_LONGEST = 256  # tokens that one of our models writes there, where transformers would stop after 20
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# Decoding settings that old folders have in config.json; if there is a generation_config.json, transformers
# reads only ids from there.
_GENERATION_SETTINGS = (
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "num_beams", "num_beam_groups", "diversity_penalty", "length_penalty"),
    *("early_stopping", "max_length", "min_length", "no_repeat_ngram_size", "repetition_penalty"),
    *("do_sample", "temperature", "top_k", "top_p", "typical_p"),
)


# -- in ---------------------------------------------------------------------


def import_huggingface(folder: Path) -> Bundle:
    """The model in a folder, with its tokenizer if there is a `tokenizer.json`."""
    settings = Settings(read_json(folder / CONFIG), f"'{folder / CONFIG}'")
    family = _family_of(settings)
    with Checkpoint(folder) as checkpoint:
        names = Names(checkpoint, family.prefix, family.older_endings)
        config = family.read(settings, names)
        rows, copies = family.rows(config), family.copies(config)
        names.allow(copies)
        check_names(rows, config, names, copies, family.ignored)
        check_copies(copies, names, checkpoint)
        model = build(config, device="meta")
        fill(model, rows, config, names, checkpoint)
    model.eval()
    # a source tokenizer is our own file: the other side has one tokenizer per folder
    texts = read_tokenizers(folder, family.model_type, config.embedding.token_types > 0)
    metadata = _metadata(folder, settings, family, config)
    if config.family == "vision":
        metadata |= {"task": "image", "data": read_preprocessor(folder, model)}
    if texts.framings is not None:
        two_sides = config.family != "decoder"  # a decoder's text is a prompt, never a source
        framings = texts.framings if two_sides else Framings(target=texts.framings.target)
        metadata["framing"] = framings.to_dict()
    return Bundle(model, texts.tokenizer, metadata, texts.source_tokenizer)


def _family_of(settings: Settings) -> Family:
    kind = settings.plain.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        settings.refuse("model_type", kind, "the supported families are " + ", ".join(sorted(FAMILIES)))
    if settings.has("quantization_config"):
        settings.refuse("quantization_config", "…", "quantised weights must be unpacked first")
    classes = settings.plain.get("architectures") or [next(iter(family.architectures))]
    if not isinstance(classes, list) or classes[0] not in list(family.architectures):
        known = ", ".join(family.architectures)
        settings.refuse("architectures", classes, f"the supported classes of this family are {known}")
    return family


def _metadata(folder: Path, settings: Settings, family: Family, config: ModelConfig) -> dict[str, Any]:
    classes = settings.plain.get("architectures") or [next(iter(family.architectures))]
    source: dict[str, Any] = {
        "format": "huggingface",
        "model_type": family.model_type,
        "architecture": classes[0],
    }
    dropped = {name: settings.plain[name] for name in family.training_only if settings.plain.get(name)}
    if dropped:
        source["not_carried"] = dropped
    newer_file = (folder / GENERATION).exists()
    asked = _IDS if newer_file else (*_IDS, *_GENERATION_SETTINGS)
    generation = {name: settings.plain[name] for name in asked if settings.has(name)}
    if newer_file:
        newer = read_json(folder / GENERATION)
        generation |= {name: value for name, value in newer.items() if _says_something(name, value)}
    if config.family != "vision":
        generation = _known_ids(generation, max(config.vocabulary, config.source_vocabulary or 0))
    metadata: dict[str, Any] = {"source": source, "special": _special(generation, config)}
    if config.family in ("encoder-decoder", "decoder"):
        metadata["generation"] = generation
    if config.head.kind in ("classify", "tag"):
        metadata["labels"] = labels(settings)
    return metadata


def _says_something(name: str, value: Any) -> bool:
    """Whether a setting concerns decoding rather than their library."""
    library = name in ("use_cache", "transformers_version") or name.startswith(("_", "output_", "return_"))
    return value is not None and not library


def _known_ids(generation: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Drop token ids outside the model's vocabulary (−1 for "none", the defaults of a larger vocabulary).

    Such a token is never written there either.
    """
    found = dict(generation)
    for name in [name for name in generation if name.endswith("_token_id")]:
        several = found[name] if isinstance(found[name], list) else [found[name]]
        if any(isinstance(id, bool) or not isinstance(id, int) for id in several):
            Settings(found).refuse(name, found[name], "token ids are whole numbers")
        known = [id for id in several if 0 <= id < vocabulary]
        if not known:
            del found[name]
        elif isinstance(found[name], list):
            found[name] = known
    return found


def _special(generation: Mapping[str, Any], config: ModelConfig) -> dict[str, int | None]:
    """The special ids; those beyond the vocabulary are left over from another one and ignored."""
    settings = Settings(generation)
    starts = _STARTS if config.family == "encoder-decoder" else ("bos_token_id",)
    found: dict[str, int | None] = {}
    for role, names in {"pad": ("pad_token_id",), "start": starts, "stop": ("eos_token_id",)}.items():
        ids = (settings.id(name) for name in names)
        found[role] = next((id for id in ids if id is not None and id < config.vocabulary), None)
    return found


# -- out --------------------------------------------------------------------


def export_huggingface(bundle: Bundle, folder: Path) -> None:
    """Write a bundle as a folder that transformers reads."""
    config = bundle.config
    family = family_for(config, bundle.metadata)
    ours = dict(whole_model(bundle).state_dict(keep_vars=True))  # including the stored buffers
    _refuse_left_over(family, config, ours)
    tensors = exported_tensors(family, config, _in_real_units(bundle, ours))
    plain = _config_json(family, bundle, tensors)
    _refuse_to_overwrite(folder)
    with atomic_folder(os.path.abspath(folder), new=is_vacant(folder)) as fresh:
        save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
        write_json(fresh / CONFIG, plain)
        if config.family in ("encoder-decoder", "decoder"):
            write_json(fresh / GENERATION, _generation(bundle) | _token_ids(bundle))
        if config.family == "vision":
            write_json(fresh / PREPROCESSOR, preprocessor_of(config.image, bundle.metadata))
        write_tokenizers(bundle, fresh)
        write_settings(bundle, fresh)


def _in_real_units(bundle: Bundle, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fold the scale of a regression model into its last layer: their format has no other place."""
    scale = bundle.metadata.get("numbers")
    if bundle.config.head.kind != "number" or scale is None:
        return dict(ours)
    weight, bias = (ours[f"head.classifier.{name}"].detach() for name in ("weight", "bias"))
    deviation, mean = scale["deviation"], scale["mean"]
    scaled = {"weight": weight * deviation, "bias": bias * deviation + mean}
    return {**ours, **{f"head.classifier.{name}": tensor for name, tensor in scaled.items()}}


def family_for(config: ModelConfig, metadata: Mapping[str, Any]) -> Family:
    """The family a bundle came from, or else the first that can represent its model."""
    origin = (metadata.get("source") or {}).get("model_type")
    if config.family in NO_TRANSFORMERS:
        raise UserError(f"A {config.family} model cannot be exported: Hugging Face has no family like it.")
    kind = config.attention.kind
    candidates = [one for one in FAMILIES.values() if one.ours.get("attention.kind", "multihead") == kind]
    if not candidates:
        raise UserError(f"This model cannot be exported: no known family has attention of the kind '{kind}'.")
    candidates = [one for one in candidates if one.model_type == origin] or candidates
    misfits = {family.model_type: _misfits(family, config) for family in candidates}
    for name, found in misfits.items():
        if not found:
            return FAMILIES[name]
    nearest = min(misfits, key=lambda name: len(misfits[name]))
    raise UserError(
        f"This model cannot be exported: the nearest family, {nearest}, has no {', '.join(misfits[nearest])}."
    )


def _misfits(family: Family, config: ModelConfig) -> list[str]:
    try:
        return family.misfits(config)
    except UserError as error:  # their config cannot be written in a form that can be read back
        return [str(error)]


def exported_tensors(family: Family, config: ModelConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors by our names (all names of shared ones) as theirs, on the CPU, none sharing memory."""
    plain = {name: tensor.detach() for name, tensor in ours.items()}
    theirs = to_theirs(family.rows(config), config, family.prepare(config, plain))
    theirs |= {copy.name: theirs[copy.of] for copy in family.copies(config) if copy.written}
    if family.architecture(config) == family.body:
        theirs = {name.removeprefix(family.prefix): tensor for name, tensor in theirs.items()}
    dense = torch.contiguous_format
    return {name: tensor.cpu().clone(memory_format=dense) for name, tensor in theirs.items()}


def _refuse_left_over(family: Family, config: ModelConfig, ours: Mapping[str, Tensor]) -> None:
    """Refuse to leave anything learned behind."""
    named = {name for row in expand(family.rows(config), config) for name in row.names}
    used = {id(ours[name]) for name in named & ours.keys()}
    left = [name for name, tensor in ours.items() if id(tensor) not in used]
    if left:
        raise UserError(f"This model cannot be exported: the family {family.model_type} has no '{left[0]}'.")


def _generation(bundle: Bundle) -> dict[str, Any]:
    """An imported model's decoding settings; for our own, the tokens never written and the limit."""
    earlier = bundle.metadata.get("generation")
    if earlier is not None or is_imported(bundle) or bundle.tokenizer is None:
        return dict(earlier or {})
    known = bundle.tokenizer
    never = sorted({id for id in (known.pad, known.start) if id is not None and id != known.stop})
    positions = bundle.config.position
    if bundle.config.family == "decoder" and positions.name == "learned":
        limit = {"max_length": positions.max_length}  # the prompt counts
    else:
        limit = {"max_new_tokens": min(_LONGEST, positions.max_length - 1)}
    return {"suppress_tokens": never, **limit}


def _config_json(family: Family, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    plain = family.write(bundle.config) | _token_ids(bundle)
    if bundle.config.family == "encoder-decoder":
        # Written even if there is none: a missing one would get a default meant for their vocabulary.
        earlier = bundle.metadata.get("generation", {})
        plain |= {name: earlier.get(name) for name in _FORCED}
    dtype = next(iter(tensors.values())).dtype
    plain["torch_dtype"] = str(dtype).removeprefix("torch.")
    if "id2label" in plain:
        named = bundle.metadata.get("labels")
        if isinstance(named, list) and len(named) == bundle.config.head.classes:
            plain["id2label"] = {str(i): str(name) for i, name in enumerate(named)}
        plain["label2id"] = {name: int(i) for i, name in plain["id2label"].items()}
    return plain


def _token_ids(bundle: Bundle) -> dict[str, Any]:
    """Special ids under their names: the metadata's, or else the tokenizer's."""
    special = bundle.metadata.get("special")
    if special is None and bundle.tokenizer is not None:
        known = bundle.tokenizer
        special = {"pad": known.pad, "start": known.start, "stop": known.stop}
    special = special or {}
    start = "decoder_start_token_id" if bundle.config.family == "encoder-decoder" else "bos_token_id"
    ids = {"pad_token_id": "pad", start: "start", "eos_token_id": "stop"}
    earlier = bundle.metadata.get("generation", {})
    found: dict[str, Any] = {}
    for name, role in ids.items():
        value, before = special.get(role), earlier.get(name)
        several = isinstance(before, list) and before and before[0] == value
        found[name] = before if several else value
    if found.get("decoder_start_token_id", 0) is None:
        del found["decoder_start_token_id"]  # the only one that may not be null there
    return found


def _refuse_to_overwrite(folder: Path) -> None:
    """The folder is written as a whole, so any other files in it would be lost."""
    if folder.is_dir():
        others = sorted({path.name for path in folder.iterdir()} - _WRITTEN)
        if others:
            raise UserError(
                f"'{folder}' contains other files ('{others[0]}'), which an export would overwrite: "
                "choose a new folder."
            )
