"""A bundle: a model, its tokenizer and their metadata, as one folder on disk.

The folder is written atomically, and read strictly: a file that is missing,
changed or foreign is refused with a message. Knows nothing about other
toolkits' formats (`interop`) or about the state of training.

`tokenizers_of` and `framings_of` say how its texts become ids: all code that turns text into ids uses them,
so that a model is always fed the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.base.atomic import atomic_folder, is_vacant
from clearhead.base.device import pick_device, pick_dtype
from clearhead.base.errors import UserError
from clearhead.base.lock import held
from clearhead.base.reading import read_bytes
from clearhead.bundle import checking
from clearhead.bundle import metadata as manifest
from clearhead.bundle.adapter import NOTE, Adapter, base_folder, weights_on
from clearhead.bundle.mapped import map_file
from clearhead.bundle.weights import (
    disagreement,
    fill,
    fill_with,
    read_shapes,
    shapes_of,
    tensors_of,
    write_weights,
)
from clearhead.data.encoding import Tokenizers
from clearhead.data.encodings import Labels, Pairs, Stream, Tags
from clearhead.models.build import build, count_parameters
from clearhead.models.config import ModelConfig
from clearhead.text.framing import Framing, Framings, template_of
from clearhead.text.tokenizer import Tokenizer

ATTEMPTS = 20  # at reading a bundle that is repeatedly replaced


@dataclass(repr=False)
class Bundle:
    """A model with its tokenizer and metadata."""

    model: nn.Module
    tokenizer: Tokenizer | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    source_tokenizer: Tokenizer | None = None  # None: one vocabulary for source and target

    @property
    def config(self) -> ModelConfig:
        """The settings the model was built from."""
        return config_of(self.model)

    def summary(self) -> str:
        """A few lines to read: kind, size, vocabulary, and the metadata.

        >>> import clearhead
        >>> print(Bundle(clearhead.build("tiny"), metadata={"trained_on": "nothing yet"}).summary())
        family      encoder-decoder
        parameters  45,952
        layers      2 + 2
        width       32
        vocabulary  100
        tokenizer   none
        trained_on  nothing yet
        """
        config = self.config
        tokens = "none" if self.tokenizer is None else f"{self.tokenizer.vocabulary_size:,} tokens"
        rows = {
            "family": config.family,
            "parameters": f"{count_parameters(self.model):,}",
            "layers": layers_in_words(config),
            "width": f"{config.width:,}",
            "vocabulary": vocabulary_in_words(config),
            "tokenizer": tokens,
            **{key: _short(value) for key, value in self.metadata.items()},
        }
        column = max(len(name) for name in rows)
        return "\n".join(f"{name.ljust(column)}  {value}" for name, value in rows.items())

    def __repr__(self) -> str:
        size = f"{count_parameters(self.model):,} parameters"
        tokens = "no tokenizer" if self.tokenizer is None else f"{self.tokenizer.vocabulary_size:,} tokens"
        layers = layers_in_words(self.config)
        noun = "layer" if layers == "1" else "layers"
        return f"Bundle({self.config.family}, {size}, {layers} {noun}, {tokens})"


def config_of(model: nn.Module) -> ModelConfig:
    """The config a model carries; raises a UserError for a module that is not ours."""
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig):
        raise UserError(f"A bundle holds a model made by clearhead.build, not a {type(model).__name__}.")
    return config


def layers_in_words(config: ModelConfig) -> str:
    """`6`, or `6 + 6` for an encoder and a decoder."""
    if config.family in ("encoder-decoder", "recurrent", "convolutional"):
        return f"{config.layers} + {config.depth_of_decoder}"
    return str(config.layers)


def vocabulary_in_words(config: ModelConfig) -> str:
    """`37,000`, or both sizes if source and target differ."""
    if config.family == "vision":
        return "none"
    if config.source_vocabulary is not None:
        return f"{config.source_vocabulary:,} source, {config.vocabulary:,} target"
    return f"{config.vocabulary:,}"


def save(
    model: nn.Module | Bundle,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = True,
) -> Path:
    """Write a model, or a bundle, as a folder that `clearhead.load` reads.

    `tokenizer` and `metadata` replace the bundle's own; metadata is any plain data that JSON can
    represent. An existing bundle is replaced in one step, so a crash leaves the old or the new one;
    your own files in it are kept. Any other folder that is not empty is refused.

    >>> import clearhead, tempfile
    >>> model = clearhead.build("tiny")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = clearhead.save(model, f"{folder}/first", metadata={"trained_on": "nothing yet"})
    ...     print(sorted(file.name for file in path.iterdir()))
    ['config.json', 'metadata.json', 'model.safetensors']
    """
    bundle = model if isinstance(model, Bundle) else Bundle(model)
    tokenizer = bundle.tokenizer if tokenizer is None else tokenizer
    notes = dict(bundle.metadata if metadata is None else metadata)
    target = Path(folder)
    with undisturbed(target):
        write_bundle(Bundle(bundle.model, tokenizer, notes, bundle.source_tokenizer), target, overwrite)
    return target


@contextmanager
def undisturbed(target: Path) -> Iterator[None]:
    """Hold the lock of the run in this folder, if any, so that its weights are not mixed with others."""
    companion = target / manifest.COMPANION
    if not companion.is_dir():
        yield
        return
    with held(
        companion / manifest.LOCK, f"Another process is training in '{target}': save to another folder."
    ):
        yield


def write_bundle(
    bundle: Bundle, target: Path, overwrite: bool = True, adapter: Adapter | None = None
) -> None:
    """`save` for callers that hold the folder's lock; with an `adapter`, the rest is left to its base."""
    tokenizer = bundle.tokenizer
    notes = {name: value for name, value in bundle.metadata.items() if name != NOTE}
    notes |= {} if adapter is None else {NOTE: adapter.note()}
    whole: nn.Module = getattr(bundle.model, "_orig_mod", bundle.model)  # unwrap torch.compile
    config = config_of(whole)
    _refuse_unsavable(whole, config)
    checking.check(config, notes, tokenizer, bundle.source_tokenizer)
    manifest.to_json(notes, "metadata")  # now, not after gigabytes have been written
    manifest.recover(target)
    _refuse_occupied(target, overwrite)
    with atomic_folder(os.path.abspath(target), new=is_vacant(target)) as fresh:
        if adapter is None:
            write_weights(tensors_of(whole), fresh / manifest.WEIGHTS)
        else:
            write_weights(adapter.learnt, fresh / manifest.WEIGHTS)
        (fresh / manifest.CONFIG).write_text(manifest.to_json(config.to_dict(), "config"), encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(fresh / manifest.TOKENIZER)
        if bundle.source_tokenizer is not None:
            bundle.source_tokenizer.save(fresh / manifest.SOURCE_TOKENIZER)
        manifest.write_metadata(fresh, count_parameters(whole), notes)
        _keep_strangers(target, fresh)


def load_bundle(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    verify: bool = True,
    mapped: bool = False,
) -> Bundle:
    """Read a bundle; the model is in evaluation mode, with exactly the stored weights.

    `dtype` converts all weights; None keeps each as it was stored. `verify=False` skips the checksums, which
    saves reading a large file twice. `mapped=True` leaves the weights in their file if possible
    (`bundle/mapped.py`): a model that the C++ engine decodes then needs no memory for them.
    """
    path = Path(folder)
    place, kind = placement(device, dtype)
    for _ in range(ATTEMPTS):
        before = _stamp(path)
        try:
            with manifest.being_read(path):
                bundle = _load_once(path, place, kind, verify, mapped)
        except UserError:
            if _stamp(path) == before:
                raise
        else:
            if _stamp(path) == before:
                return bundle
        # The bundle was replaced meanwhile: what was read may mix both.
    raise UserError(
        f"The bundle '{path}' is being replaced again and again: try again when the process that writes "
        "it has finished."
    )


def placement(
    device: str | torch.device, dtype: str | torch.dtype | None
) -> tuple[torch.device, torch.dtype | None]:
    """The device and number format for weights, from names or torch objects."""
    place = pick_device(device) if isinstance(device, str) else device
    kind = pick_dtype(dtype, place) if isinstance(dtype, str) else dtype
    if kind is not None and not kind.is_floating_point:
        raise UserError(
            f"Weights cannot be {kind}: use torch.float32, torch.bfloat16 or another floating-point type."
        )
    return place, kind


def _load_once(
    path: Path, device: torch.device, dtype: torch.dtype | None, verify: bool, mapped: bool
) -> Bundle:
    facts = manifest.read_metadata(path, verify=verify)
    if verify:
        for name in facts.sha256:
            manifest.check_file(path, facts, name)
    model = read_plan(path)
    adapted = NOTE in facts.metadata
    if not adapted:
        fault = disagreement(read_shapes(path / manifest.WEIGHTS), shapes_of(model))
        if fault is not None:
            raise UserError(f"The config and the weights of the bundle '{path}' disagree: {fault}.")
    tokenizer, source_tokenizer = read_tokenizers(path, facts)
    try:
        checking.check(config_of(model), facts.metadata, tokenizer, source_tokenizer)
    except UserError as error:
        raise UserError(f"The bundle '{path}' cannot be used. {error}") from error
    if adapted:
        base = _load_once(base_folder(path, facts.metadata[NOTE]), device, None, verify, False).model
        weights = weights_on(path, base, model, facts.metadata[NOTE]["scale"])
        fill_with(model, lambda name: weights[name].to(device=device, dtype=dtype, copy=True))
        return Bundle(model.eval(), tokenizer, facts.metadata, source_tokenizer)
    file = None
    if mapped and device.type == "cpu":
        file = map_file(path / manifest.WEIGHTS, facts.sha256[manifest.WEIGHTS] if verify else None)
    fill(model, path / manifest.WEIGHTS, device, dtype, file)
    return Bundle(model.eval(), tokenizer, facts.metadata, source_tokenizer)


def read_plan(path: Path) -> nn.Module:
    """The model that a bundle's config describes, still on "meta"."""
    plain = manifest.read_json(path / manifest.CONFIG)
    try:
        return build(ModelConfig.from_dict(plain), device="meta")
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:  # ours, and what torch refuses
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"The {manifest.CONFIG} of the bundle '{path}' cannot be used: {reason}.") from error


def read_tokenizers(path: Path, facts: manifest.Facts) -> list[Tokenizer | None]:
    """The tokenizer of a bundle and that of its sources; None for one that it does not have."""
    names = (manifest.TOKENIZER, manifest.SOURCE_TOKENIZER)
    return [Tokenizer.load(path / name) if name in facts.sha256 else None for name in names]


def _stamp(path: Path) -> bytes:
    """What differs between two bundles written to one path: the time and checksums in the metadata."""
    with suppress(UserError):
        return read_bytes(path / manifest.METADATA)
    return b""


def _refuse_unsavable(model: nn.Module, config: ModelConfig) -> None:
    """Refuse to write what could not be read: the weights must be those that the config builds."""
    fault = disagreement(shapes_of(model), shapes_of(build(config, device="meta")))
    if fault is not None:
        raise UserError(f"This model cannot be saved, because it is not what its config builds: {fault}.")
    if any(tensor.is_meta for tensor in model.parameters()):
        raise UserError("This model cannot be saved: it was built on 'meta' and has no weights.")


def _refuse_occupied(target: Path, overwrite: bool) -> None:
    if not target.is_dir() or all(path.name == manifest.COMPANION for path in target.iterdir()):
        return
    if not manifest.is_bundle(target):
        raise UserError(
            f"The folder '{target}' contains something other than a bundle: save to another folder."
        )
    if not overwrite:
        raise UserError(
            f"The bundle '{target}' already exists: save to another folder, or allow overwriting."
        )


def _keep_strangers(old: Path, fresh: Path) -> None:
    """Keep the user's own files in the folder: replacing a bundle must not delete them."""
    if not old.is_dir():
        return
    for path in old.iterdir():
        if path.name in manifest.FILES:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, fresh / path.name, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(str(path), str(fresh / path.name))


def _link_or_copy(source: str, target: str) -> None:
    if os.link in os.supports_follow_symlinks:  # else a symlink itself cannot be hard-linked
        with suppress(OSError):  # another disk
            os.link(source, target, follow_symlinks=False)  # takes no space, however large the file
            return
    shutil.copy2(source, target, follow_symlinks=False)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def tokenizers_of(bundle: Bundle) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, which are often the same."""
    target = bundle.tokenizer
    if target is None:
        raise UserError("This bundle has no tokenizer, so it can neither read nor write text.")
    return bundle.source_tokenizer or target, target


def is_imported(bundle: Bundle) -> bool:
    """Does the model come from another toolkit, whose conventions it then follows?"""
    return isinstance(bundle.metadata.get("source"), dict)


def framings_of(bundle: Bundle) -> Framings:
    """The framing of a bundle's texts, according to its metadata.

    Bundles of clearhead 0.1 do not state it: theirs follows from the model and its origin.
    """
    noted, config = bundle.metadata.get("framing"), bundle.config
    if noted is None:
        return _assumed(bundle)
    return Framings.stored(noted, config.source_vocabulary or config.vocabulary, config.vocabulary)


def _assumed(bundle: Bundle) -> Framings:
    config, tokenizers = bundle.config, Tokenizers(*tokenizers_of(bundle))
    source, target = (template_of(one) for one in tokenizers)
    if is_imported(bundle) and source is not None and target is not None:
        source.check(config.source_vocabulary or config.vocabulary)
        target.check(config.vocabulary)
        return (
            Framings(target=target) if config.family == "decoder" else Framings(source=source, target=target)
        )
    if config.family == "decoder":
        return Stream().framings(tokenizers, bool(bundle.metadata.get("documents", False)))
    if config.family != "encoder":
        return Pairs().framings(tokenizers)
    if config.head.kind == "classify":
        return Labels().framings(tokenizers)
    if config.head.kind == "tag":
        return Tags().framings(tokenizers)
    return Framings(source=source or Framing())
