"""`clearhead label`: classes or numbers of texts and pairs, tags of words, and classes of pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device, option
from clearhead.cli.starting import hurry, settle
from clearhead.cli.texts import chunks

if TYPE_CHECKING:
    from clearhead.bundle.folder import Bundle

Given = list[str | tuple[str, str]]


def label(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A trained classifier or tagger.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="Texts, pairs of texts one after the other, or picture files. Without any, reads lines from "
            "a pipe, with a tab between the texts of a pair.",
        ),
    ] = None,
    as_json: Annotated[
        bool, option(None, "One JSON object per text, with the probability of every class or tag.", "--json")
    ] = False,
    device: Device = "auto",
) -> None:
    """Name the class of each text or picture with its probability, its number, or the tags of its words.

    \b
    Examples:
      clearhead label runs/reviews "a lovely film"
      clearhead label runs/reviews "a lovely film" --json
      clearhead label runs/reviews < reviews.txt
      clearhead label runs/alike "a cat sleeps" "an animal rests"
      clearhead label runs/alike < pairs.tsv
      clearhead label runs/digits picture.png
    """
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.labels import reads_two, unread_sentence

    model = load(bundle, device=pick_device(device))
    settle()
    kind = model.config.head.kind
    before, unread = 0, None
    if model.config.family == "vision":
        _label_pictures(model, texts, as_json)
        return
    two = kind in ("classify", "number") and reads_two(model)
    for given in _given(texts, two):
        if kind != "tag" and unread is None and (unread := unread_sentence(model, given, before)) is not None:
            typer.echo(f"clearhead: {unread}", err=True)
        before += len(given)
        for line in _objects(model, given, kind) if as_json else _lines(model, given, kind):
            typer.echo(line)


def _label_pictures(model: Bundle, paths: list[str] | None, as_json: bool) -> None:
    """The class of each picture; arguments name picture files instead of texts."""
    from clearhead.decoding.labels import class_probabilities  # here, as above

    for some in chunks(paths):
        for path, shares in zip(some, class_probabilities(model, some), strict=True):
            best = _best(shares)
            found = {"picture": path, "label": best, "probabilities": shares}
            line = f"{best}\t{shares[best]:.4f}\t{path}"
            typer.echo(json.dumps(found, ensure_ascii=False) if as_json else line)


def _lines(model: Bundle, given: Given, kind: str) -> Iterator[str]:
    """The labels of each text, one line per text."""
    from clearhead.decoding.labels import classify, regress, tag  # here, as above

    if kind == "tag":
        yield from (" ".join(tags) for tags in tag(model, [str(one) for one in given]))
    elif kind == "number":
        yield from (f"{value:.6g}" for value in regress(model, given))
    else:
        yield from (f"{name}\t{share:.4f}" for name, share in classify(model, given))


def _objects(model: Bundle, given: Given, kind: str) -> Iterator[str]:
    """The same as JSON, with every class or tag and its probability."""
    # here, as above
    from clearhead.decoding.labels import class_probabilities, regress, tag_names, tag_probabilities

    found: list[dict[str, Any]]
    if kind == "tag":
        texts = [str(one) for one in given]
        every = tag_probabilities(model, texts)
        found = [
            {"words": text.split(), "tags": _tags(names, model), "probabilities": words}
            for text, names, words in zip(texts, tag_names(model, texts), every, strict=True)
        ]
    elif kind == "number":
        found = [{"number": value} for value in regress(model, given)]
    else:
        each = class_probabilities(model, given)
        found = [{"label": _best(shares), "probabilities": shares} for shares in each]
    for text, one in zip(given, found, strict=True):
        yield json.dumps({"text": text, **one}, ensure_ascii=False)


def _tags(words: list[list[str]], model: Bundle) -> list[str] | dict[str, list[str]]:
    """The tag of each word, or by column if words have several."""
    from clearhead.data.tag_columns import by_column  # here, as above

    if not model.config.head.columns:
        return [name for names in words for name in names]
    columns = list(by_column(model.metadata["labels"]))
    return {
        column: [names[place].partition("=")[2] for names in words] for place, column in enumerate(columns)
    }


def _best(shares: dict[str, float]) -> str:
    return max(shares, key=lambda name: shares[name])


def _given(texts: list[str] | None, two: bool | None) -> Iterator[Given]:
    """Texts, or pairs of them, some at a time; `two` None: a text with a tab becomes a pair."""
    if two and texts:
        if len(texts) % 2:
            raise UserError(
                f"This model labels pairs of texts, but {len(texts)} texts were given: give an even number."
            )
        yield list(zip(texts[::2], texts[1::2], strict=True))
        return
    before = 0
    for lines in chunks(texts):
        given: Given = []
        for number, line in enumerate(lines, start=before + 1):
            parts = [line] if two is False else line.split("\t")
            if two and len(parts) != 2:
                raise UserError(
                    f"Line {number} has {len(parts) - 1} tabs, but this model labels pairs of texts "
                    f"separated by one tab."
                )
            given.append((parts[0], parts[1]) if len(parts) == 2 else line)
        before += len(lines)
        yield given
