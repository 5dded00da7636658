"""Text in, text out, for an imported model: compared with the toolkit it comes from.

The ids of a text are compared with those of the bundle's own `tokenizer.json` and, if `transformers` is
installed, with its tokenizer's; the output, texts or labels, with its model's on the same weights.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, framings_of, is_imported, tokenizers_of
from clearhead.decoding.defaults import KEY, not_carried, own_options
from clearhead.decoding.labels import class_probabilities, regress, tag
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Writer
from clearhead.interop import export_folder
from clearhead.models.build import count_parameters
from clearhead.verify.report import Check
from clearhead.verify.subject import LARGE, Subject

TEXTS = "text to text = its own toolkit"


def applies(subject: Subject) -> bool:
    """Is there another toolkit to compare with? With two vocabularies, only we read the folder."""
    return is_imported(subject.bundle) and subject.bundle.source_tokenizer is None


def texts(subject: Subject) -> Check:
    """How many texts get other ids, or another output, than in the toolkit the model comes from."""
    reader, framings = tokenizers_of(subject.bundle)[0], framings_of(subject.bundle)
    framing = framings.target if subject.config.family == "decoder" else framings.source
    ids = [framing.around(reader.encode(text)) for text in subject.texts]
    wrong = {"tokenizer.json": _unlike(ids, [reader.encode(text, specials=True) for text in subject.texts])}
    count = len(subject.texts)
    if importlib.util.find_spec("transformers") is None:
        rest = "transformers, which gives the expected output, is not installed"
    elif count_parameters(subject.bundle.model) > LARGE:
        rest = "the model is too large to load a second time with transformers"
    else:
        try:
            wrong |= _there(subject, ids)
            rest = "transformers was compared as well"
        except UserError as error:  # as for Longformer, which is only imported
            rest = f"transformers cannot be compared: {str(error).rstrip('.')}"
    worst = max(wrong.values())
    named = ", ".join(f"{number} by {name}" for name, number in wrong.items() if number)
    found = f"{named} differ" if named else "equal"
    return Check(
        TEXTS,
        worst == 0,
        worst,
        0.0,
        f"{count} texts compared as token ids and as output: {found}; {rest}.",
        wrong,
    )


def _there(subject: Subject, ids: Sequence[list[int]]) -> dict[str, int]:
    """The same weights and tokenizer, as transformers reads them from a folder; all in float64."""
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        export_folder(subject.bundle, folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        [name] = transformers.AutoConfig.from_pretrained(folder).architectures
        model = getattr(transformers, name).from_pretrained(folder).double().eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # its grouped products do not take float64
    found = {"its tokenizer": _unlike(ids, [tokenizer(text)["input_ids"] for text in subject.texts])}
    rows = [tokenizer(text, return_tensors="pt") for text in subject.texts]
    if subject.writes:
        greedy = _greedy_settings(subject)
        theirs = _generated(subject, model, rows, transformers.GenerationConfig(**greedy))
        found["its texts"] = _unlike(_written(subject), theirs)
        if (own := _own_settings(subject)) is not None:
            theirs = _generated(subject, model, rows, transformers.GenerationConfig(**own))
            found["its texts by its own settings"] = _unlike(_written_by(subject, own), theirs)
        return found
    kind = subject.config.head.kind
    if kind == "classify":
        shares = [list(one.values()) for one in class_probabilities(subject.exact, subject.texts)]
        theirs = [model(**row).logits[0].softmax(-1).tolist() for row in rows]
        far = torch.tensor(shares).sub(torch.tensor(theirs)).abs().amax(-1)
        return found | {"its classes": int((far > subject.bound).sum())}
    if kind == "number":
        ours = regress(subject.exact, subject.texts)
        off = [abs(number - float(model(**row).logits)) for number, row in zip(ours, rows, strict=True)]
        return found | {"its numbers": sum(one > subject.bound for one in off)}
    if kind == "tag":
        return found | {
            "its tags": _unlike(tag(subject.exact, subject.texts), _tags(subject, tokenizer, model))
        }
    return found


def _written(subject: Subject) -> list[tuple[int, ...]]:
    everything = subject.decode(subject.exact_writer, Options(max_length=_most(subject)), subject.numbers)
    return [everything[number][0].ids for number in subject.numbers]


def _written_by(subject: Subject, settings: dict[str, Any]) -> list[tuple[int, ...]]:
    """What is written with these settings in place of the bundle's own."""
    exact = subject.exact
    told = Bundle(exact.model, exact.tokenizer, {**exact.metadata, "generation": settings})
    return [found[0].ids for found in Writer(told, way="torch").in_order(subject.texts)]


def _most(subject: Subject) -> int:
    """Tokens that are written for every text: the positions that the model has after the longest one."""
    return min(subject.limit(number, subject.effort.write) for number in subject.numbers)


def _greedy_settings(subject: Subject) -> dict[str, Any]:
    """Greedy search: of the folder's own settings only the symbols count."""
    symbols = subject.symbols
    return {
        "eos_token_id": list(symbols.stops),
        "pad_token_id": symbols.stop,  # one text at a time needs no padding
        "decoder_start_token_id": symbols.start if subject.reads_apart else None,
        "suppress_tokens": list(symbols.forbidden) or None,
        "max_new_tokens": _most(subject),
    }


def _own_settings(subject: Subject) -> dict[str, Any] | None:
    """The folder's own, for texts of a length that can be compared; None if they sample."""
    metadata, family = subject.bundle.metadata, subject.config.family
    own = own_options(metadata, family)
    if own is None or own.sample or own.contrastive or own.groups > 1:
        return None
    most = _most(subject)
    too_long = {name for name in ("min_length", "min_new_tokens") if (metadata[KEY].get(name) or 0) >= most}
    left = {"max_length", "num_return_sequences", *not_carried(metadata, family), *too_long}
    kept = {name: value for name, value in metadata[KEY].items() if name not in left}
    return {**kept, **_greedy_settings(subject), "suppress_tokens": kept.get("suppress_tokens")}


def _generated(subject: Subject, model: Any, rows: Sequence[Any], settings: Any) -> list[tuple[int, ...]]:
    model.generation_config = settings
    found = []
    for row in rows:
        ids = model.generate(**row)[0].tolist()
        new = ids[1:] if subject.reads_apart else ids[row["input_ids"].shape[1] :]
        found.append(tuple(takewhile(lambda id: id not in subject.symbols.stops, new)))
    return found


def _tags(subject: Subject, tokenizer: Any, model: Any) -> list[list[str]]:
    found = []
    for text in subject.texts:
        words = text.split()
        row = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        best, places = model(**row).logits[0].argmax(-1).tolist(), row.word_ids(0)
        firsts = [places.index(word) for word in range(len(words))]
        found.append([model.config.id2label[best[first]] for first in firsts])
    return found


def _unlike(here: Sequence[Any], there: Sequence[Any]) -> int:
    return sum(one != other for one, other in zip(here, there, strict=True))
