"""A bundle ready to write: texts in, texts out, with any options, on the fastest engine available.

`Writer` turns texts into requests, hands them to the engine, and turns ids back into text; `Writing` is one
submitted text. The result for a text does not depend on the others. This module alone decides which engine
runs (C++ on a CPU, CUDA graphs on a GPU, PyTorch elsewhere) and which search a request needs.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Literal

import torch
from torch import nn

from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work, too_late
from clearhead.bundle.folder import Bundle
from clearhead.bundle.mapped import own_memory
from clearhead.decoding import graphs, native
from clearhead.decoding.backend import Backend, Batch, Extra, Finished, Rows, Search, Wrote, extras_of
from clearhead.decoding.beam import Beam
from clearhead.decoding.constraints import Pieces, constraint_processors, pieces_of, until_stop
from clearhead.decoding.contrastive import Contrastive
from clearhead.decoding.defaults import KEY, own_options
from clearhead.decoding.engine import Caller, Engine
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.number_formats import fast, trained_in
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Pipeline, pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import RowsBackend
from clearhead.decoding.text_requests import Source, Texts, Written

Dtype = Literal["auto", "fast", "float32", "bf16", "int8"]
Way = Literal["auto", "native", "torch"]
CPU_ROWS, GPU_ROWS = 160, 512  # that may be active
HELD = "\ufffd"  # how an unfinished character decodes


class Writer(Texts):
    """One bundle on one device, ready for any number of texts.

    `dtype` is that of weights and products: on a CPU float32, bf16 or int8, on a GPU float32 or bf16; `auto`
    is float32 on a CPU and the training format on a GPU; `fast` is the fastest that loses almost no quality
    (`number_formats`; `why_not_fast` says why there is none). `way`: `native` requires C++, `torch` requires
    PyTorch step by step. `room` limits the active rows. `int8_embeddings`: with int8, also read embeddings
    from int8 weights, which takes less memory. `sharing`: whether processes share the C++ engine's packed
    weights of a bundle loaded with `mapped=True`: `auto` (if the system maps files with huge pages),
    `always`, or `never`.
    """

    window: int | None = None  # texts to read ahead; None: as many as are useful

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str | torch.device | None = None,
        dtype: Dtype = "float32",
        way: Way = "auto",
        room: int | None = None,
        int8_embeddings: bool = False,
        sharing: native.Sharing = "auto",
    ) -> None:
        super().__init__(bundle)
        self.int8_embeddings, self.sharing = int8_embeddings, sharing
        said = KEY in bundle.metadata
        self.own = own_options(bundle.metadata, bundle.config.family) if said else None  # None: no settings
        self.defaults = self.own or Options()  # options if the caller gives none
        if device is not None:
            bundle.model.to(pick_device(device) if isinstance(device, str) else device)
        bundle.model.eval()
        self.device = next(bundle.model.parameters()).device
        self.why_not_native = "it was not requested" if way == "torch" else self._why_not_native()
        if way == "native" and self.why_not_native is not None:
            reason = self.why_not_native.removesuffix(".")
            raise UserError(f"The C++ engine cannot be used here: {reason}.")
        if way == "auto" and dtype not in ("fast", "int8"):  # these give their own reasons
            self._say_what_is_lost()
        self.why_not_fast: str | None = None
        self.dtype = self._checked_dtype(dtype)
        if int8_embeddings and self.dtype != "int8":
            raise UserError(f"int8 embeddings need int8 weights, not {self.dtype}.")
        self.room = room or (GPU_ROWS if self.device.type == "cuda" else CPU_ROWS)
        self._pieces: Pieces | None = None
        self._converted: nn.Module | None = None
        self.why_not_graphs: str | None = "the model is not on a GPU, or CUDA graphs were not requested"
        if self.device.type == "cuda" and way != "torch":
            self.why_not_graphs = graphs.why_not(bundle.model, self.device)
        self._making = threading.Lock()
        self._engine: Engine | None = None

    def _why_not_native(self) -> str | None:
        if self.device.type != "cpu":
            return "it only runs on CPUs."
        return native.supports(self.bundle.model) or native.why_not()  # compile nothing that is not needed

    def _say_what_is_lost(self) -> None:
        """Warn if the C++ engine supports the model but is missing: the user can do something about that."""
        reason = self.why_not_native
        if self.device.type == "cpu" and reason and native.supports(self.bundle.model) is None:
            _say_once(f"Decoding uses PyTorch, which is several times slower than the C++ engine. {reason}")

    def _checked_dtype(self, dtype: Dtype) -> native.Dtype:
        if dtype == "auto":
            return trained_in(self.bundle) if self.device.type == "cuda" else "float32"
        if dtype == "fast":
            found, self.why_not_fast = fast(self.bundle, self.device, self.why_not_native)
            return found
        if dtype == "int8" and self.why_not_native is not None:
            raise UserError(
                f"int8 weights need the C++ engine, which cannot be used here: "
                f"{self.why_not_native.removesuffix('.')}. Use float32."
            )
        return dtype

    # -- texts to texts ---------------------------------------------------------------------------

    def write(
        self,
        texts: Iterable[str | None],
        options: Options | None = None,
        seeds: Iterable[int] | None = None,
    ) -> Iterator[tuple[int, list[Written]]]:
        """The number of each text and what was written for it, best first, as they are ready.

        Without options: the bundle's own settings, or greedy search if it has none. An empty text gives an
        empty one. `seeds` gives every text its own seed. Several threads may write at once.

        Texts are read well ahead, since long and short ones are written together. A None among them means
        that no more are available for now: those that came are written, and more are requested meanwhile.
        """
        asked = self.defaults if options is None else options
        owners: dict[int, tuple[Source, int]] = {}  # by request: its text, and which part of it
        empty: list[int] = []
        for number, found in self.engine.run(self._requests(texts, asked, seeds, owners, empty)):
            source, part = owners.pop(number)
            source.answers[part] = found
            while empty:
                yield empty.pop(0), [Written("")]
            if source.answered:
                with compiled_work():
                    joined = self.joined(source, asked.stop_texts)
                yield source.number, joined
        yield from ((one, [Written("")]) for one in empty)

    def in_order(self, texts: Iterable[str], options: Options | None = None) -> Iterator[list[Written]]:
        """As `write`, in the order of the texts; what is ready early waits for those before it."""
        waiting: dict[int, list[Written]] = {}
        turn = 0
        for number, found in self.write(texts, options):
            waiting[number] = found
            while turn in waiting:
                yield waiting.pop(turn)
                turn += 1

    def submit(self, text: str, options: Options | None = None, *, stream: bool = True) -> Writing:
        """Start writing for one text, and return at once; `stream`: it can be watched while it grows.

        All submitted texts are written together, whichever of them is waited for.
        """
        return Writing(self, self.engine, text, self.defaults if options is None else options, stream)

    @property
    def engine(self) -> Engine:
        """The engine that writes for all users of this writer."""
        with self._making:
            if self._engine is None:
                with compiled_work():
                    self._engine = Engine(self.backends(), self.window)
            return self._engine

    def backends(self) -> list[Backend]:
        """The backends, fastest first; rows that return more than scores serve the requests that need it."""
        found: list[Backend] = []
        if self.why_not_graphs is None:
            found.append(graphs.GraphBackend(self._torch_model(), self.symbols, self.room))
        for options in (Options(), Options(beam=2, coverage=1.0), Options(contrastive=0.5, top_k=2)):
            make_rows = partial(self.rows, options)
            found.append(RowsBackend(make_rows, self.search, self.symbols, self.room, extras_of(options)))
        return found

    def rows(self, options: Options) -> Rows:
        """Rows for requests with such options."""
        keep = extras_of(options)
        if self._compiled(keep):
            return native.NativeRows(
                self.bundle.model,
                self.symbols,
                dtype=self.dtype,
                keep=keep,
                int8_embeddings=self.int8_embeddings,
                sharing=self.sharing,
            )
        return TorchRows(self._torch_model(), self.symbols, keep)

    def _compiled(self, keep: frozenset[Extra]) -> bool:
        """Whether the C++ engine's rows are used; only PyTorch returns the hidden states of a prompt."""
        return self.why_not_native is None and "hidden" not in keep

    def _torch_model(self) -> nn.Module:
        """The model in the requested dtype; a copy, if that is not its own."""
        own_memory(self.bundle.model)
        own = next(self.bundle.model.parameters()).dtype
        wanted = torch.bfloat16 if self.dtype == "bf16" else torch.float32
        if own in (wanted, torch.float64):  # float64 is requested by loading it so
            return self.bundle.model
        if self._converted is None:
            self._converted = copy.deepcopy(self.bundle.model).to(wanted)
        return self._converted

    def search(self, batch: Batch) -> Search:
        """The search that decides for these requests."""
        compiled = self._compiled(extras_of(batch.options))
        return make_search(batch, self.has_source, self.pieces_for(batch.options), compiled=compiled)

    def pieces_for(self, options: Options) -> Pieces | None:
        """The bytes that tokens add to a text, if the options constrain texts."""
        if not options.about_text:
            return None
        if self._pieces is None:
            self._pieces = pieces_of(self.tokenizer)
        return self._pieces


class Writing:
    """One text being written: it can be watched, awaited, dropped, or parked.

    For one thread at a time. A text that is no longer referenced is dropped.
    """

    def __init__(self, texts: Texts, engine: Engine, text: str, options: Options, stream: bool) -> None:
        self.texts, self.options = texts, options
        self.searched = options.beam > 1 or options.nbest > 1  # certain only at its end
        requests, self.source = texts.asked(text, options)
        self.prompts = [() if texts.has_source else one.given for one in requests]
        self.certain: list[list[int]] = [[] for _ in requests]  # by part: ids that will not change any more
        self.parked, self.caller = False, Caller(engine)
        self.tickets = self.caller.submit(
            replace(one, stream=stream and not self.searched) for one in requests
        )

    def pieces(self) -> Iterator[str]:
        """The text, piece by piece, as soon as it is certain; a beam is certain only at its end."""
        return until_stop(self._pieces(), self.options.stop_texts)

    def _pieces(self) -> Iterator[str]:
        shown = ""
        for part, prompt in enumerate(self.prompts):  # leading spaces may depend on the prompt
            if part:
                yield self.source.parts.joiner(part - 1, shown)
            with compiled_work():
                given = self.texts.tokenizer.decode(prompt)
            shown, ended = "", False
            while not ended:
                ended = part in self.source.answers
                ids = self.source.answers[part][0].ids if ended else self.certain[part]
                with compiled_work():
                    whole = self.texts.tokenizer.decode([*prompt, *ids]).removeprefix(given)
                certain = not whole.endswith(HELD) or (ended and self.searched)
                if whole != shown and whole.startswith(shown) and certain:
                    yield whole[len(shown) :]
                    shown = whole
                if not ended:
                    self._wait()

    def written(self) -> list[Written]:
        """The whole text, best first if several were requested, as `Writer.write` returns it."""
        while not self.source.answered:
            self._wait()
        with compiled_work():
            return self.texts.joined(self.source, self.options.stop_texts)

    def _wait(self) -> None:
        if not self.caller.open:
            raise UserError("This request was dropped: submit it again.")
        if self.parked:
            raise UserError("This request is parked: resume it before you wait for it.")
        for ticket, event in self.caller.wait():
            if isinstance(event, Wrote):
                self.certain[ticket.number] += event.ids
            elif isinstance(event, Finished):
                self.source.answers[ticket.number] = event.texts
            else:
                self.abort()
                raise event.error

    def abort(self) -> None:
        """Drop it; safe at any moment, in any thread."""
        self.caller.close()

    def park(self) -> None:
        """Give up its slot, with its memory, until `resume`; the text will be the same."""
        self.parked = True
        for one in self.tickets:
            one.park()

    def resume(self) -> None:
        """Continue."""
        self.parked = False
        for one in self.tickets:
            one.resume()

    def __del__(self) -> None:
        if not too_late() and hasattr(self, "tickets"):
            self.abort()


def make_search(
    batch: Batch, has_source: bool, pieces: Pieces | None = None, *, compiled: bool = False
) -> Search:
    """The search for a batch's options.

    `pieces` are the bytes that each token adds to a text; constraints on texts need them. `compiled`:
    the rows are the compiled engine's, which can keep a plain beam's state as well.
    """
    ready = pipeline_of(batch, has_source, pieces)
    if batch.options.contrastive:
        return Contrastive(batch, ready)
    if batch.options.beam > 1:
        native_too = compiled and ready.plain(0) and NativeBeam.fits(batch)
        return NativeBeam(batch) if native_too else Beam(batch, ready)
    return GreedyOrSampling(batch, ready)


def pipeline_of(batch: Batch, has_source: bool, pieces: Pieces | None) -> Pipeline:
    """The processors for a batch's options, constraints on texts included."""
    options, more = batch.options, []
    if options.about_text or options.choices:
        prompts = None if has_source else batch.prompts
        more = constraint_processors(options, batch.symbols, pieces, batch.limits, prompts)
    return pipeline(options, batch.symbols, batch.vocabulary, has_source, more=more)


@cache
def _say_once(sentence: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # the reader is gone
            print(f"clearhead: {sentence}", file=sys.stderr)
