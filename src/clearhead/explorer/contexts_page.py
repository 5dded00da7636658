"""`clearhead contexts`: what the view "contexts" computes, as a table, as plain numbers and as a page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import combinations

from clearhead.explorer.report import whole_page
from clearhead.explorer.svg import heat_map, scatter, table
from clearhead.explorer.words import Plain, unpacked


def columns_and_rows(found: Plain) -> tuple[list[str], list[list[str]]]:
    """A row for each layer: the cosine with the static embedding in each sentence, then between sentences."""
    static, between = unpacked(found["static"]), unpacked(found["between"])
    count = len(found["occurrences"])
    pairs = list(combinations(range(count), 2))
    titles = [
        "layer",
        *(f"static {one + 1}" for one in range(count)),
        *(f"{a + 1}–{b + 1}" for a, b in pairs),
    ]
    rows = [
        [
            name,
            *(f"{x:.3f}" for x in static[layer].tolist()),
            *(f"{float(between[layer, a, b]):.3f}" for a, b in pairs),
        ]
        for layer, name in enumerate(found["layers"])
    ]
    return titles, rows


def plain(found: Plain) -> Plain:
    """The same with its tensors as nested lists of numbers."""
    return {
        **found,
        "occurrences": [
            {**one, "words": [word["text"] for word in one["words"]]} for one in found["occurrences"]
        ],
        "spellings": [[word["text"] for word in words] for words in found["spellings"]],
        **{name: unpacked(found[name]).tolist() for name in ("static", "between", "projection")},
    }


def page(found: Plain, model: str) -> str:
    """The word's vectors of each layer in the plane in which they differ most, and the cosines."""
    return whole_page(f"{model}: {found['word']}", _sections(found, model))


def _sections(found: Plain, model: str) -> Iterator[str]:
    sentences = [one["sentence"] for one in found["occurrences"]]
    numbers = [str(number) for number in range(1, len(sentences) + 1)]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    yield f"<h1>“{escape(found['word'])}” in {len(sentences)} sentences, read by {escape(model)}</h1>"
    yield f"<ol>{items}</ol>"
    if len(found["spellings"]) > 1:
        yield (
            "<p>The word is not split into the same tokens everywhere, so its vectors differ from the "
            "start: to see what context does, compare sentences with the same tokens.</p>"
        )
    yield (
        '<h2>Where its vectors lie</h2><p class="about">The two directions in which they differ most, '
        "layer by layer; each picture has its own scale.</p>"
    )
    layers, planes = found["layers"], unpacked(found["projection"])
    yield '<div class="grid" style="grid-template-columns: repeat(auto-fill, minmax(230px, 1fr))">'
    for name, points, share in zip(layers, planes.tolist(), found["explained"], strict=True):
        title = f"{name} ({100 * share:.0f} % of the variance)"
        yield scatter([(x, y) for x, y in points], numbers, title)
    yield "</div>"
    static, between = unpacked(found["static"]), unpacked(found["between"])
    title = "Cosine with the word's static embedding: one row per layer, one column per sentence"
    yield f"<h2>How far from the embedding table</h2>{heat_map(static, layers, numbers, title, (-1.0, 1.0))}"
    yield table(static, layers, numbers, title)
    yield "<h2>How similar in each pair of sentences</h2>"
    for name, cosines in zip(layers, between, strict=True):
        title = f"{name}: cosine between sentences"
        yield heat_map(cosines, numbers, numbers, title, (-1.0, 1.0)) + table(
            cosines, numbers, numbers, title
        )
