"""A bundle made ready to be looked at: texts in, traces out, the last few of them kept.

Safe to use from several threads. Knows nothing about views or about the network.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

import torch

from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.decoding.backend import Symbols
from clearhead.decoding.options import WITH_SOURCE
from clearhead.decoding.text_requests import symbols_of, translates
from clearhead.explorer.reading import limit_of, ready
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Vocabulary
from clearhead.models.config import ModelConfig

KEPT = 8  # traces


class Session:
    """One bundle, and what was lately asked of it.

    `bundle` is the given one with its model at rest and in float32 (see `ready`); `limit` the most tokens of
    a text; `vocabulary` and `source_vocabulary` are tokens as words; `kinds` the attentions the model has.
    """

    def __init__(self, bundle: Bundle, name: str = "model") -> None:
        self.name = name
        self.bundle = ready(bundle)
        self.config: ModelConfig = self.bundle.config
        self.family: str = self.config.family
        self.has_source = translates(self.bundle)  # a given text is a source, and no prompt
        self.limit = limit_of(self.config)
        self.reader, self.tokenizer = tokenizers_of(self.bundle)  # of the source, and of the target
        self._lock = threading.RLock()
        self._traces: OrderedDict[tuple[str, str], Trace] = OrderedDict()
        # An encoder writes nothing, so that its vocabulary needs no stop symbol.
        self.symbols: Symbols | None = None if self.family == "encoder" else symbols_of(self.bundle)
        self.vocabulary = Vocabulary(self.tokenizer, self.symbols)
        shared = self.reader is self.tokenizer
        self.source_vocabulary = self.vocabulary if shared else Vocabulary(self.reader)

    @property
    def model(self) -> torch.nn.Module:
        """The model itself, at rest."""
        return self.bundle.model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def layers(self) -> dict[str, int]:
        """Layers of each stack that the model has."""
        if self.family in WITH_SOURCE:
            return {"encoder": self.config.layers, "decoder": self.config.depth_of_decoder}
        return {self.family: self.config.layers}

    @property
    def kinds(self) -> list[str]:
        """The kinds of attention that there are, of `encoder.self`, `decoder.self`, `decoder.cross`."""
        return {
            "encoder-decoder": ["encoder.self", "decoder.self", "decoder.cross"],
            "recurrent": ["decoder.cross"],
        }.get(self.family, [f"{self.family}.self"])

    def trace(self, text: str, target: str | None = None, asked: Iterable[str] | None = None) -> Trace:
        """What happens to a text; the last few are kept, so that a page's next question costs less.

        `asked` are names (or patterns with *) that will be wanted: they are then seen in a single pass.
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
