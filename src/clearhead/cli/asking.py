"""The decoding options of the command line, the same for every command that writes text.

Three groups of options (what to write, input and output, how to compute), and how they become `Options`. An
option that would have no effect next to the others is refused, not ignored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from clearhead.base.errors import UserError
from clearhead.cli.options import option
from clearhead.cli.starting import settle

if TYPE_CHECKING:
    from clearhead.decoding.options import Options
    from clearhead.decoding.writer import Writer
    from clearhead.text.tokenizer import Tokenizer

OF_A_BEAM = ("length_penalty", "length_kind", "early_stopping", "coverage", "groups", "diversity")
EARLY = {"true": True, "false": False, "never": "never"}
OF_CHANCE = ("temperature", "top_k", "top_p", "min_p", "typical")


FILES = "Input and output"
_beam, _chance = partial(option, panel="Beam search"), partial(option, panel="Sampling")
_text, _files = partial(option, panel="Constraints and penalties"), partial(option, panel=FILES)
_computing = partial(option, panel="Computing")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to write; None: the option was not given."""

    beam: Annotated[
        int | None,
        _beam("N", "Beam size; 1 is greedy.  [default: the bundle's own setting, or 1]", min=1),
    ] = None
    nbest: Annotated[
        int | None, _beam("N", "Texts to print for each line, best first.  [default: 1]", min=1)
    ] = None
    length_penalty: Annotated[
        float | None, _beam("A", "Divide scores by the length to the power A.  [default: 1]")
    ] = None
    length_kind: Annotated[
        str | None, _beam("KIND", "power: length^A; wu: ((5 + length) / 6)^A.  [default: power]")
    ] = None
    early_stopping: Annotated[
        str | None,
        _beam(
            "WHEN",
            "When to stop: true, when N texts have ended; false, when a better text is unlikely; never, "
            "when it is impossible.",
        ),
    ] = None
    coverage: Annotated[
        float | None, _beam("B", "Penalty for source words that get no attention (GNMT).")
    ] = None
    groups: Annotated[int | None, _beam("N", "Groups of diverse beam search.")] = None
    diversity: Annotated[
        float | None, _beam("D", "Penalty for a token that an earlier group has just written.")
    ] = None
    sample: Annotated[
        bool, _chance(None, "Sample tokens instead of taking the most likely one.", "--sample")
    ] = False
    temperature: Annotated[
        float | None, _chance("T", "Sharpen (below 1) or flatten (above 1) the distribution; 0 is greedy.")
    ] = None
    top_k: Annotated[int | None, _chance("K", "Sample from the K most likely tokens only.")] = None
    top_p: Annotated[
        float | None, _chance("P", "Sample from the smallest set of tokens with this total probability.")
    ] = None
    min_p: Annotated[
        float | None, _chance("P", "Sample from tokens with at least this share of the highest probability.")
    ] = None
    typical: Annotated[
        float | None, _chance("P", "Locally typical sampling with this total probability.")
    ] = None
    seed: Annotated[int, _chance("N", "Random seed; the same seed gives the same text.")] = 0
    contrastive: Annotated[
        float | None,
        _chance(
            "A",
            "Contrastive search: penalise, with weight A, candidates of --top-k that repeat the text so far.",
        ),
    ] = None
    repetition: Annotated[
        float | None, _text("R", "Repetition penalty; above 1, tokens that have occurred become less likely.")
    ] = None
    frequency: Annotated[
        float | None, _text("F", "Subtract this from a token's score each time it is written.")
    ] = None
    presence: Annotated[
        float | None, _text("F", "Subtract this from a token's score once it has been written.")
    ] = None
    no_repeat: Annotated[int | None, _text("N", "Never repeat an n-gram of N tokens.")] = None
    ban: Annotated[list[str] | None, _text("TEXT", "Never write this; may be repeated.")] = None
    bias: Annotated[
        list[str] | None, _text("TOKEN=VALUE", "Add to a token's score (-inf rules it out); may be repeated.")
    ] = None
    prefix: Annotated[str | None, _text("TEXT", "Start every text with this.")] = None
    include: Annotated[list[str] | None, _text("TEXT", "Every text contains this; may be repeated.")] = None
    choice: Annotated[list[str] | None, _text("TEXT", "Every text is one of these; repeat the option.")] = (
        None
    )
    regex: Annotated[
        str | None, _text("EXPRESSION", "Every text matches this regular expression as a whole.")
    ] = None
    stop: Annotated[list[str] | None, _text("TEXT", "Stop before this is written; may be repeated.")] = None
    min_length: Annotated[int | None, _text("N", "Minimum number of tokens to write.")] = None
    max_length: Annotated[
        int | None, _text("N", "Maximum number of tokens to write.", "--max-length", "--tokens")
    ] = None

    # -- which of them apply ------------------------------------------------------------------------

    def for_generating(self) -> Asked:
        """A language model samples, with a temperature of 0.8, unless another search is requested."""
        searching = (self.beam or 1) > 1 or self.contrastive is not None
        most = 200 if self.max_length is None else self.max_length
        if searching or self.temperature == 0:
            return dataclasses.replace(self, max_length=most)
        warm = 0.8 if self.temperature is None else self.temperature
        return dataclasses.replace(self, sample=True, temperature=warm, max_length=most)

    def check(self) -> None:
        """Raise an error for what no bundle could use."""
        if self.temperature is not None and not self.temperature >= 0:
            raise UserError(f"The temperature must be 0 (greedy) or more, not {self.temperature}.")
        if self.early_stopping is not None and self.early_stopping.lower() not in EARLY:
            raise UserError(f"--early-stopping must be true, false or never, not '{self.early_stopping}'.")
        for text in self.bias or ():
            _bias(text)

    def _check_search(self, search: Options) -> None:
        """Raise an error for an option that has no effect with the requested search."""
        for name in OF_A_BEAM:
            if getattr(self, name) is not None and search.beam == 1:
                raise UserError(f"{flag(name)} compares the texts of a beam: add --beam 4, say.")
        if self.diversity and (self.groups or search.groups) == 1:
            raise UserError("--diversity only applies to groups of beams: add --groups.")
        for name in OF_CHANCE:
            candidates = name == "top_k" and search.contrastive
            cold = self.temperature == 0  # draws from a single token, whatever else is set
            if getattr(self, name) is not None and not (search.sample or cold or candidates):
                raise UserError(f"{flag(name)} changes how tokens are sampled: add --sample.")

    def options(self, tokenizer: Tokenizer, continues: bool, own: Options | None = None) -> Options:
        """These settings, with ids in place of words, on top of the bundle's `own`.

        `continues`: the texts continue prompts.
        """
        from clearhead.decoding.defaults import changed  # here, so that --help does not wait for torch
        from clearhead.decoding.options import Options
        from clearhead.jobs import wording

        self.check()
        plain = dataclasses.asdict(self)
        for name in ("ban", "bias", "prefix", "include", "choice", "stop"):
            del plain[name]
        said = {name: value for name, value in plain.items() if value is not None and value is not False}
        if self.early_stopping is not None:
            said["early_stopping"] = EARLY[self.early_stopping.lower()]
        if self.temperature == 0:  # the limit of ever lower temperatures
            said = {"beam": 1} | {name: value for name, value in said.items() if name not in OF_CHANCE}
            said["sample"] = False
            if self.contrastive is not None and self.top_k is not None:
                said["top_k"] = self.top_k
        base = Options() if own is None else own
        which = ("beam", "sample", "contrastive", "top_k")
        self._check_search(changed(base, {name: said[name] for name in which if name in said}))
        phrases = wording.Phrases(
            ban=self.ban or (),
            bias=[_bias(text) for text in self.bias or ()],
            prefix=self.prefix or "",
            include=self.include or (),
            choice=self.choice or (),
            stop=self.stop or (),
        )
        return changed(base, said | wording.settings_of(phrases, tokenizer, continues))

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by their names on the command line."""
        return {
            flag(field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


@dataclass(frozen=True, kw_only=True)
class Files:
    """Input and output."""

    input: Annotated[
        Path | None, _files("FILE", "Read one text per line from here (plain or gzip) instead of a pipe.")
    ] = None
    output: Annotated[Path | None, _files("FILE", "Write the lines here instead of standard output.")] = None
    force: Annotated[bool, _files(None, "Overwrite --output if it exists.", "--force")] = False
    restart: Annotated[
        bool, _files(None, "Start over instead of resuming an interrupted run.", "--restart")
    ] = False
    as_json: Annotated[bool, _files(None, "One JSON object for each line.", "--json")] = False


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How to compute."""

    dtype: Annotated[
        str | None,
        _computing(
            "KIND", "auto, float32, bf16 or int8; auto is float32 on a CPU and the training format on a GPU."
        ),
    ] = None
    fast: Annotated[
        bool,
        _computing(
            None, "Use the fastest number format whose measured cost for this bundle is negligible.", "--fast"
        ),
    ] = False
    device: Annotated[str, _computing("NAME", "auto, cpu, cuda, cuda:1, …")] = "auto"
    threads: Annotated[int | None, _computing("N", "CPU threads to use.", min=1, max=4096)] = None
    draft: Annotated[
        Path | None,
        _computing("BUNDLE", "Speculative decoding with this smaller model; the texts stay the same."),
    ] = None
    way: Annotated[str, _computing("WAY", "…", "--way", hidden=True)] = "auto"

    def writer(self, bundle: Path, *, continues: bool | None = None) -> Writer:
        """The bundle, ready to write; `continues`: it is to continue prompts, not to translate."""
        if self.fast and self.dtype is not None:
            raise UserError("--fast chooses the number format itself: leave out one of --fast and --dtype.")

        from clearhead.jobs.writing import ready  # here, so that --help does not wait for torch

        made = ready(
            bundle,
            device=self.device,
            dtype="fast" if self.fast else self.dtype or "auto",
            way=self.way,
            threads=self.threads,
            draft=self.draft,
            continues=continues,
        )
        settle()
        return made


def flag(name: str) -> str:
    """A setting as it is typed.

    >>> flag("top_k")
    '--top-k'
    """
    return "--" + name.replace("_", "-")


def _bias(text: str) -> tuple[str, float]:
    """TOKEN=VALUE; the token itself may contain an equals sign.

    >>> _bias("==-2.5")
    ('=', -2.5)
    """
    token, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not token or not number < float("inf"):
        raise UserError(f"Write a bias as TOKEN=VALUE, as in --bias cat=-2.5, not '{text}'.")
    return token, number
