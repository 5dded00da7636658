"""A bundle prepared for inspection: texts in, traces out, the last few of them cached; `clearhead.trace`.

Safe to use from several threads. Knows nothing about views or about the network.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from clearhead.bundle import is_bundle
from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.data.music import kinds_learned
from clearhead.data.pictures import is_picture
from clearhead.decoding.backend import Symbols
from clearhead.decoding.options import WITH_SOURCE
from clearhead.decoding.pictures import fits, picture_text
from clearhead.decoding.text_requests import symbols_of, translates
from clearhead.explorer.curves import samples_in
from clearhead.explorer.patches import Patches
from clearhead.explorer.reading import limit_of, ready
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Vocabulary
from clearhead.interop import import_folder, is_foreign
from clearhead.models.config import ModelConfig
from clearhead.phrasebook import examples
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.bundle_or_run import load_bundle_or_run

KEPT = 8  # traces
MOST_EXAMPLES = 8
# If nothing better is known.
PIECES = {
    "chorales": "pitch67 pitch62 pitch59 pitch43 " * 2 + "pitch69 pitch62 pitch57 pitch42",
    "performances": "velocity16 on60 shift50 off60 on64 shift50 off64 on67",
}
SENTENCES = ("The old man is reading a red book.", "Who sees the green house?")


class Session:
    """One bundle, and its recent traces.

    `bundle` is the given one with its model in evaluation mode and in float32 (see `ready`); `limit` the most
    tokens of a text; `vocabulary` and `source_vocabulary` are tokens as words; `kinds` the attentions the
    model has; `folder` is where the bundle is, with the records of its training.
    """

    def __init__(self, bundle: Bundle, name: str = "model", folder: Path | None = None) -> None:
        self.name, self.folder = name, folder
        self.bundle = ready(bundle)
        self.config: ModelConfig = self.bundle.config
        self.family: str = self.config.family
        self.has_source = translates(self.bundle)  # a given text is a source, not a prompt
        self.limit = limit_of(self.config)
        vision = self.family == "vision"
        unneeded = Tokenizer.words(())
        # of the source, and of the target
        self.reader, self.tokenizer = (unneeded, unneeded) if vision else tokenizers_of(self.bundle)
        self._lock = threading.RLock()
        self._traces: OrderedDict[tuple[str, str], Trace] = OrderedDict()
        # An encoder writes nothing, so its vocabulary needs no stop symbol.
        self.symbols: Symbols | None = None if self.family == "encoder" or vision else symbols_of(self.bundle)
        self.vocabulary = Patches(self.config) if vision else Vocabulary(self.tokenizer, self.symbols)
        shared = self.reader is self.tokenizer
        self.source_vocabulary = self.vocabulary if shared else Vocabulary(self.reader)

    @property
    def model(self) -> torch.nn.Module:
        """The model itself, in evaluation mode."""
        return self.bundle.model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def layers(self) -> dict[str, int]:
        """Layers of each stack of the model."""
        if self.family in WITH_SOURCE:
            return {"encoder": self.config.layers, "decoder": self.config.depth_of_decoder}
        return {"encoder" if self.family == "vision" else self.family: self.config.layers}

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention in the model, of `encoder.self`, `decoder.self`, `decoder.cross`."""
        across = ["decoder.cross"] if self.config.cross_attention else []
        return {
            "encoder-decoder": ["encoder.self", "decoder.self", *across],
            "recurrent": across,
            "vision": ["encoder.self"],
        }.get(self.family, [f"{self.family}.self"])

    @property
    def heads(self) -> list[int]:
        """The numbers of heads in the layers, the largest first: mostly a single one."""
        if self.family == "recurrent":
            return [1]
        layers = [(stack, layer) for stack, depth in self.layers.items() for layer in range(depth)]
        parts = [self.config.parts_of(*one) for one in layers]
        across = [cross for _, cross, _ in parts] if "decoder.cross" in self.kinds else []
        return sorted({part.heads for part in (*(own for own, _, _ in parts), *across)}, reverse=True)

    @property
    def reads_music(self) -> bool:
        """Whether its tokens are musical events."""
        return self.bundle.metadata.get("task") == "music" and self.family == "decoder"

    @cached_property
    def examples(self) -> list[str]:
        """Sentences or pictures to start with: from the bundle, from its training data, or made up."""
        if self.family == "vision":
            return _pictures_in(self.folder, self.config)
        metadata = self.bundle.metadata
        noted = metadata.get("examples")
        found = [one for one in noted if isinstance(one, str)] if isinstance(noted, list) else []
        if _is_phrasebook(metadata.get("recipe")):
            found += [source for source, _ in examples("en-fr")]
        if self.folder is not None:
            found += [sample["source"] for sample in samples_in(self.folder / "training")]
        fitting = [one for one in dict.fromkeys(found) if one.strip() and self._is_short(one)]
        if not fitting and metadata.get("task") == "music":
            return [PIECES[kind] for kind in kinds_learned(metadata.get("recipe"))]
        return fitting[:MOST_EXAMPLES] or list(SENTENCES)

    def _is_short(self, text: str) -> bool:
        return len(text) < 400 and len(self.reader.encode(text)) < min(self.limit, 60)

    def trace(self, text: str, target: str | None = None, asked: Iterable[str] | None = None) -> Trace:
        """What happens to a text; the last few are cached, so a page's next question costs less.

        `asked` are names (or patterns with *) that will be needed: a single pass then records them all.
        """
        key = (text, target or "")
        with self._lock:
            found = self._traces.get(key)
            if found is None:
                found = Trace(self.bundle, text, target, (self.source_vocabulary, self.vocabulary))
                self._traces[key] = found
            self._traces.move_to_end(key)
            while len(self._traces) > KEPT:
                self._traces.popitem(last=False)
        if asked is not None:
            found.ask(asked)
        return found


def trace(bundle: Bundle | str | Path, text: str, target: str | None = None) -> Trace:
    """What happens to a text, or a picture file, inside a model: a bundle, or the folder of one.

    `target` is the output of an encoder-decoder; by default, the model's own translation.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size).eval(), tokenizer)
    >>> seen = trace(bundle, "the cat", target="cat sleeps")
    >>> seen.attention("decoder.cross", layer=1, head=3).shape  # target tokens, source tokens
    torch.Size([3, 3])
    >>> seen["encoder.0.self.q"].shape  # heads, tokens, size of a query
    torch.Size([4, 3, 8])
    """
    if not isinstance(bundle, Bundle):
        folder = Path(bundle)
        foreign = not is_bundle(folder) and is_foreign(folder)
        bundle = import_folder(folder) if foreign else load_bundle_or_run(folder)
    if bundle.config.family == "vision" and not is_picture(text):
        text = picture_text(bundle, text)
    return Session(bundle).trace(text, target)


def _pictures_in(folder: Path | None, config: ModelConfig) -> list[str]:
    """The first pictures that were held out of training, if the run's data still exist."""
    if folder is None:
        return []
    try:
        with open(folder / "training" / "data" / "validation.jsonl", encoding="utf-8") as file:
            rows = [json.loads(line) for line in islice(file, MOST_EXAMPLES)]
    except (OSError, ValueError):
        return []
    found = [row[0] for row in rows if isinstance(row, list) and row and is_picture(row[0])]
    return [one for one in found if fits(config.image, one)]


def _is_phrasebook(recipe: Any) -> bool:
    """Whether a model was trained on the demonstration's sentences, which are English on the left."""
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    files = data.get("train") if isinstance(data, Mapping) else None
    paths = [one.get("file") for one in files if isinstance(one, Mapping)] if isinstance(files, list) else []
    return any(isinstance(path, str) and Path(path).parent.name.endswith("-phrasebook") for path in paths)
