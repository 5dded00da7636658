"""What can be asked of decoding on the command line, the same for every command that writes text.

Three groups of options (what to write, from where to where, how to compute), and how they become `Options`.
An option that would have no effect beside the others is refused, not ignored.
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
_beam, _chance = partial(option, panel="Beam search"), partial(option, panel="Chance")
_text, _files = partial(option, panel="What is written"), partial(option, panel=FILES)
_computing = partial(option, panel="Computing")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to write; None stands for an option that was not given."""

    beam: Annotated[
        int | None,
        _beam("N", "Places of the beam; 1 is greedy.  [default: what the bundle says, else 1]", min=1),
    ] = None
    nbest: Annotated[int | None, _beam("N", "Texts for each line, best first.  [default: 1]", min=1)] = None
    length_penalty: Annotated[
        float | None, _beam("A", "Power of the length that scores are divided by.  [default: 1]")
    ] = None
    length_kind: Annotated[
        str | None, _beam("KIND", "power: length^A; wu: ((5 + length) / 6)^A.  [default: power]")
    ] = None
    early_stopping: Annotated[
        str | None,
        _beam(
            "WHEN",
            "never: when no better text can come; false: when none is likely; true: when N have ended.",
        ),
    ] = None
    coverage: Annotated[float | None, _beam("B", "Cost of source words that are passed over.")] = None
    groups: Annotated[int | None, _beam("N", "Divide the beam into groups that differ.")] = None
    diversity: Annotated[float | None, _beam("D", "Cost of a token that an earlier group just wrote.")] = None
    sample: Annotated[bool, _chance(None, "Draw tokens instead of taking the likeliest.", "--sample")] = False
    temperature: Annotated[
        float | None, _chance("T", "0: the likeliest token each time; 1: as probable as the model says.")
    ] = None
    top_k: Annotated[int | None, _chance("K", "Only the K likeliest tokens.")] = None
    top_p: Annotated[float | None, _chance("P", "Only the fewest that reach this probability together.")] = (
        None
    )
    min_p: Annotated[float | None, _chance("P", "Only those with this share of the likeliest's chance.")] = (
        None
    )
    typical: Annotated[float | None, _chance("P", "Only those nearest to the expected surprise.")] = None
    seed: Annotated[int, _chance("N", "The same seed writes the same text.")] = 0
    contrastive: Annotated[
        float | None, _chance("A", "Weigh by A how unlike the text so far each of --top-k candidates is.")
    ] = None
    repetition: Annotated[float | None, _text("R", "Above 1: tokens that occurred become unlikelier.")] = None
    frequency: Annotated[float | None, _text("F", "Taken off for each time a token was written.")] = None
    presence: Annotated[float | None, _text("F", "Taken off once a token was written at all.")] = None
    no_repeat: Annotated[int | None, _text("N", "Write no N tokens in a row a second time.")] = None
    ban: Annotated[list[str] | None, _text("TEXT", "Never write this; may be repeated.")] = None
    bias: Annotated[
        list[str] | None, _text("TOKEN=VALUE", "Add to a token's score (-inf rules it out); may be repeated.")
    ] = None
    prefix: Annotated[str | None, _text("TEXT", "How every text begins.")] = None
    include: Annotated[list[str] | None, _text("TEXT", "Every text contains this; may be repeated.")] = None
    choice: Annotated[list[str] | None, _text("TEXT", "Every text is one of these; repeat it.")] = None
    regex: Annotated[str | None, _text("EXPRESSION", "Every text matches this, as a whole.")] = None
    stop: Annotated[list[str] | None, _text("TEXT", "End before this is written; may be repeated.")] = None
    min_length: Annotated[int | None, _text("N", "Fewest tokens to write.")] = None
    max_length: Annotated[int | None, _text("N", "Most tokens to write.", "--max-length", "--tokens")] = None

    # -- what of it is in force -------------------------------------------------------------------

    def for_generating(self) -> Asked:
        """A language model draws, with a temperature of 0.8, unless something else is asked for."""
        searching = (self.beam or 1) > 1 or self.contrastive is not None
        most = 200 if self.max_length is None else self.max_length
        if searching or self.temperature == 0:
            return dataclasses.replace(self, max_length=most)
        warm = 0.8 if self.temperature is None else self.temperature
        return dataclasses.replace(self, sample=True, temperature=warm, max_length=most)

    def check(self) -> None:
        """A sentence for what no bundle could make sense of."""
        if self.temperature is not None and not self.temperature >= 0:
            raise UserError(
                f"A temperature is 0 (the likeliest token each time) or more, not {self.temperature}."
            )
        if self.early_stopping is not None and self.early_stopping.lower() not in EARLY:
            raise UserError(f"--early-stopping is true, false or never, not '{self.early_stopping}'.")
        for text in self.bias or ():
            _bias(text)

    def _check_search(self, search: Options) -> None:
        """A sentence for an option that would change nothing beside the search that is asked for."""
        for name in OF_A_BEAM:
            if getattr(self, name) is not None and search.beam == 1:
                raise UserError(f"{flag(name)} compares the texts of a beam: add --beam 4, say.")
        if self.diversity and (self.groups or search.groups) == 1:
            raise UserError("--diversity keeps the groups of a beam apart: add --groups.")
        for name in OF_CHANCE:
            candidates = name == "top_k" and search.contrastive
            cold = self.temperature == 0  # draws from one token, whatever else is asked
            if getattr(self, name) is not None and not (search.sample or cold or candidates):
                raise UserError(f"{flag(name)} shapes what is drawn by chance: add --sample.")

    def options(self, tokenizer: Tokenizer, continues: bool, own: Options | None = None) -> Options:
        """These settings, with ids in place of words, over the bundle's `own`.

        `continues`: the texts go on from prompts.
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
        """The options that are not as they would be by themselves, by their names on the command line."""
        return {
            flag(field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


@dataclass(frozen=True, kw_only=True)
class Files:
    """From where to where."""

    input: Annotated[Path | None, _files("FILE", "One text a line; gzip too. Else: a pipe.")] = None
    output: Annotated[Path | None, _files("FILE", "Where the lines go. Else: standard output.")] = None
    force: Annotated[bool, _files(None, "Replace --output if it is there already.", "--force")] = False
    restart: Annotated[
        bool, _files(None, "Begin anew where an interrupted run would go on.", "--restart")
    ] = False
    as_json: Annotated[bool, _files(None, "One JSON object for each line.", "--json")] = False


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How to compute."""

    dtype: Annotated[
        str | None,
        _computing("KIND", "auto, float32, bf16 or int8; auto is float32 on a CPU, as in training on a GPU."),
    ] = None
    fast: Annotated[
        bool, _computing(None, "The fastest numbers that cost this bundle next to nothing.", "--fast")
    ] = False
    device: Annotated[str, _computing("NAME", "auto, cpu, cuda, cuda:1, …")] = "auto"
    threads: Annotated[int | None, _computing("N", "Processor cores to use.", min=1, max=4096)] = None
    draft: Annotated[Path | None, _computing("BUNDLE", "A smaller model that writes ahead (same texts).")] = (
        None
    )
    way: Annotated[str, _computing("WAY", "…", "--way", hidden=True)] = "auto"

    def writer(self, bundle: Path, *, continues: bool | None = None) -> Writer:
        """The bundle, ready to write; `continues`: it is to go on from prompts, not to translate."""
        if self.fast and self.dtype is not None:
            raise UserError("--fast chooses the number format itself: leave it or --dtype away.")

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
    """TOKEN=VALUE; the token may hold an equals sign itself.

    >>> _bias("==-2.5")
    ('=', -2.5)
    """
    token, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not token or not number < float("inf"):
        raise UserError(f"A bias is written TOKEN=VALUE, as in --bias cat=-2.5, not '{text}'.")
    return token, number
