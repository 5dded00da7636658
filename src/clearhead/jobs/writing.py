"""Loads a bundle for writing, and runs lines of text through it.

Impossible requests are refused before the first word is written. The caller passes in the lines, the
settings, the format and the destination.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_args

from clearhead.api import load
from clearhead.base.device import pick_device, use_threads
from clearhead.base.errors import UserError, nearest
from clearhead.base.progress import Bar, progress
from clearhead.bundle import Bundle, is_bundle
from clearhead.bundle.mapped import own_memory
from clearhead.bundle.metadata import read_metadata
from clearhead.decoding.backend import Batch, Request
from clearhead.decoding.options import Options, positions_of
from clearhead.decoding.text_requests import opening, translates
from clearhead.decoding.writer import Dtype, Way, Writer
from clearhead.jobs.drafting import DraftedWriter
from clearhead.jobs.formats import Format
from clearhead.jobs.lines import Answer, Lines, answers
from clearhead.jobs.resumable_output import Sink, Stream

AGAIN = "the same command resumes from there"


def ready(
    folder: Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    way: str = "auto",
    threads: int | None = None,
    draft: Path | None = None,
    continues: bool | None = None,
) -> Writer:
    """The bundle in `folder`, ready to write; `continues`: it continues prompts, otherwise it translates.

    `draft`: the folder of a smaller bundle that drafts for it.
    """
    kind: Dtype = _one_of(dtype, get_args(Dtype), "number format")
    how: Way = _one_of(way, get_args(Way), "way")
    place = pick_device(device)
    use_threads(threads)
    compiled = place.type == "cpu" and how != "torch" and draft is None
    bundle = load(folder, device=place, mapped=compiled)
    if continues is not None:
        _refuse_other_kind(bundle, continues)
    if draft is not None:
        if how == "native":
            raise UserError("--draft only works with PyTorch: leave out --way native.")
        return DraftedWriter(bundle, load(draft, device=place), dtype=kind)
    writer = Writer(bundle, dtype=kind, way=how)
    if writer.why_not_native is not None:
        own_memory(bundle.model)
    if writer.why_not_fast is not None:
        _say(writer.why_not_fast)
    return writer


def _refuse_other_kind(bundle: Bundle, continues: bool) -> None:
    """Raise an error that names the right command, if a bundle does not do what is asked."""
    family, head = bundle.config.family, bundle.config.head.kind
    command = "translate" if translates(bundle) else "generate" if family == "decoder" else ""
    command = "label" if family == "encoder" or head != "none" else command
    command = "fill" if bundle.metadata.get("task") == "mask" else command
    if command != ("generate" if continues else "translate"):
        what = "continue text" if continues else "translate"
        instead = f" Use `clearhead {command}`." if command else ""
        raise UserError(f"The model in this bundle, of the family '{family}', does not {what}.{instead}")


def refuse_impossible(writer: Writer, options: Options) -> None:
    """Raise an error for settings that contradict each other or this vocabulary, whatever the text."""
    if isinstance(writer, DraftedWriter) and (options.beam > 1 or options.nbest > 1 or options.contrastive):
        raise UserError(
            "--draft works for a single text, greedy or sampled, and not for beam or contrastive search: "
            "leave it out."
        )
    vocabulary = writer.config.vocabulary
    limit = 2**31 if options.max_length is None else options.max_length
    request = Request((writer.symbols.stop,), limit, options)
    writer.search(Batch([request], options, writer.symbols, vocabulary, writer.device))


def digest_of(folder: Path, bundle: Bundle) -> str:
    """What tells one model from another: the checksums of its files, or their sizes and times.

    `bundle` is what was loaded from there; for an unfinished run, its notes are enough.
    """
    known: Any
    if "unfinished" in bundle.metadata:
        known = bundle.metadata
    elif is_bundle(folder):
        known = sorted(read_metadata(folder).sha256.items())
    else:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        known = [(path.name, f"{path.stat().st_size} {path.stat().st_mtime_ns}") for path in files]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def _one_of(name: str, known: tuple[Any, ...], what: str) -> Any:
    if name not in known:
        raise UserError(f"There is no {what} '{name}': {nearest(name, known)}")
    return name


def write_lines(
    writer: Writer, lines: Lines, options: Options, format: Format, sink: Sink, total: int | None = None
) -> None:
    """Write an answer for each line into the sink, in order, with a progress line on a terminal.

    `total`: the number of lines, if known. After Ctrl-C, SIGTERM or an error, a later run can resume from
    what was done.
    """
    told: set[str] = set()
    begun = False
    left = None if total is None else max(total - sink.done.lines, 0)
    try:
        with _polite_kill(), _bar(sink, left) as bar:
            for answer in answers(writer, lines, options, sink.done):
                for what, sentence in _notices(answer, writer):
                    if what not in told:
                        told.add(what)
                        _say(sentence)
                sink.add(format.render(answer), answer.digest)
                if isinstance(sink, Stream) and not lines.ready():
                    sink.flush()  # the sender of the next line may be waiting for this answer
                begun = True
                bar.advance()
        if lines.problem is not None:
            raise lines.problem
        sink.finish()
    except UserError as error:
        kept = sink.stop()
        raise (UserError(f"{error} {kept}; {AGAIN}.") if begun and kept is not None else error) from error
    except BaseException as stop:
        kept = sink.stop()
        if kept is not None and isinstance(stop, KeyboardInterrupt):
            _say(f"stopped. {kept}; {AGAIN}.")
        raise


def refuse_long_prompt(writer: Writer, number: int, prompt: str) -> None:
    """Raise an error for a prompt that leaves no position to continue at."""
    positions = positions_of(writer.config)
    if (
        positions is None
        or len(prompt.encode("utf-8", "surrogatepass")) + writer.framings.target.extra < positions
        or not prompt.strip()
    ):
        return
    size = len(opening(writer.bundle, prompt))
    if size >= positions:
        raise UserError(
            f"Line {number} has {size} tokens, and this model has learned positions for {positions}, "
            "including the continuation: shorten it."
        )


def _notices(answer: Answer, writer: Writer) -> Iterator[tuple[str, str]]:
    """Notices, once per run, about a line that is not read as it is, each with a name."""
    best = answer.written[0]
    if best.parts > 1:
        yield (
            "parts",
            f"line {answer.number + 1} has more than the {writer.longest:,} tokens that this model reads "
            f"at a time: it is split into {best.parts} parts, after sentences or else between words, and "
            "the outputs are joined. Other such lines are treated the same way.",
        )
    if best.source_read is not None:
        yield (
            "head",
            f"line {answer.number + 1} has {best.source_tokens:,} tokens, and this model only reads the "
            f"first {best.source_read:,}, as in training: the rest is ignored. Other such lines are "
            "treated the same way; --json marks each of them.",
        )


def _bar(sink: Sink, total: int | None) -> AbstractContextManager[Bar]:
    """A progress bar, unless it would mix with the lines themselves."""
    if isinstance(sink, Stream) and sink.at_once:
        return nullcontext(Bar(None, None))
    label = "Writing" if sink.done.lines == 0 else f"Resuming at line {sink.done.lines + 1:,}"
    return progress(label, total, "lines")


@contextmanager
def _polite_kill() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, so what was done is kept."""
    if threading.current_thread() is not threading.main_thread():  # other threads cannot handle signals
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(sentence: str) -> None:
    print(f"clearhead: {sentence}", file=sys.stderr)
