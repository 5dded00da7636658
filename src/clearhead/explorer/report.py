"""`clearhead explain`: what a model did with one text, as one self-contained HTML file.

No scripts, no requests: styles and pictures are inside, and the page's policy forbids fetching anything. It
follows the reader's choice of light or dark, and every drawing has a table with the exact numbers. The views
compute; this module only renders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain

from torch import Tensor

from clearhead.data.pictures import in_words
from clearhead.explorer.attention import summary
from clearhead.explorer.attention_weights import about_weights
from clearhead.explorer.depth import depth
from clearhead.explorer.picture_report import note_sections, picture_sections
from clearhead.explorer.positions import positions
from clearhead.explorer.running import Asked, run
from clearhead.explorer.session import Session
from clearhead.explorer.svg import bar, heading, heat_map, lines, listed, number, small_map, spread, table
from clearhead.explorer.verdict import verdict
from clearhead.explorer.words import Plain, Word, texts, unpacked

MOST_NUMBERS = 60_000  # weights of single heads that are written out; more would overload a browser
SHOWN = 5  # most probable tokens of each step
LENGTH = 32  # positions that are drawn
FEATURES = 64  # of a position that are drawn

KINDS = {
    "encoder.self": ("Encoder self-attention", "each word of the source looks at all of it"),
    "decoder.self": ("Decoder self-attention", "each word looks at itself and at those before it"),
    "decoder.cross": ("Cross-attention", "each written word looks at the source"),
}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fdfdfc; --soft: #6a7079; --line: #d4d7db;
  --accent: #1f4e79; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --paper: #15181c; --soft: #a2a9b3;
  --line: #3a4048; --accent: #8ab8e6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 3rem; font-size: 1.25rem; } h3 { font-size: 1rem; }
p.about, figcaption, .key, caption { color: var(--soft); }
p, dd { max-width: 46rem; overflow-wrap: anywhere; }
code { font: 0.9em ui-monospace, monospace; }
figure { margin: 1rem 0 0; } figcaption { margin-bottom: 0.35rem; }
.wide { overflow-x: auto; } .key { margin: 0.25rem 0 0.75rem; font-size: 0.85rem; }
svg { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .cells { stroke: var(--paper); }
svg .frame { fill: none; stroke: var(--line); }
svg .line { fill: none; stroke: var(--accent); stroke-width: 2; }
svg.bar { width: 2.5rem; height: 0.6rem; background: var(--line); fill: var(--accent);
  vertical-align: middle; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.25rem; } dd { margin: 0; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: 0.4rem 0; } th { text-align: left; font-weight: 600; }
th, td { padding: 0.2rem 0.6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
details details { margin-left: 1.25rem; }
summary { cursor: pointer; padding: 0.5rem 0; color: var(--accent); }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.grid { display: grid; gap: 0.5rem; overflow-x: auto; padding: 0.25rem 0; align-items: start; }
.grid div { font-size: 0.75rem; color: var(--soft); }
img.picture { display: block; width: 14rem; image-rendering: pixelated; }
img.map { display: block; width: 100%; min-width: 4.5rem; max-width: 8rem; image-rendering: pixelated; }
"""


def explain(session: Session, text: str, target: str | None = None) -> str:
    """The whole page. `target` is the output to assume for the decoder; by default, the model's own."""
    session.trace(text, target)  # refuses what cannot be shown before anything is drawn
    if session.family == "vision":
        return whole_page(f"{session.name}: {in_words(text)}", picture_sections(session, text))
    sections = chain(
        _overview(session, text, target),
        _written(session, text),
        note_sections(session, text),
        _labelled(session, text),
        _aligned(session, text, target),
        _heads(session, text, target),
        _deep(session, text, target),
        _placed(session),
    )
    return whole_page(f"{session.name}: {text if len(text) <= 60 else text[:59] + '…'}", sections)


def whole_page(title: str, sections: Iterable[str]) -> str:
    """A page whose policy forbids fetching anything."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body></html>\n"
    )


def _overview(session: Session, text: str, target: str | None) -> Iterator[str]:
    config, layers = session.config, session.layers
    trace = session.trace(text, target)
    bare = session.family == "recurrent" or config.norm.kind == "none"
    facts = {
        "text": text,
        "tokens read": " ".join(texts(trace.source)),
        "tokens of the target": " ".join(texts(trace.target)),
        "family": session.family,
        "layers": " + ".join(str(count) for count in layers.values()),
        "heads": "" if session.family == "recurrent" else " and ".join(map(str, session.heads)),
        "width": f"{config.width:,}",
        "vocabulary": f"{config.vocabulary:,}",
        "parameters": f"{sum(one.numel() for one in session.model.parameters()):,}",
        "positions": "" if session.family == "recurrent" else config.position.name,
        "norm": "" if bare else f"{config.norm.kind}, {config.norm.place}",
        "taken out": ", ".join(config.taken_out),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    yield f"<h1>What {escape(session.name)} did with this text</h1><dl>{listed}</dl>"


# -- run --------------------------------------------------------------------------------------------


def _written(session: Session, text: str) -> Iterator[str]:
    if session.family == "encoder" or session.config.head.kind != "none":
        return
    found = run(session, text, Asked(shown=SHOWN))
    output = found["output"]
    yield heading(
        "Run",
        "The model writes one token at a time, here always the most likely one. Beside each token are "
        "the alternatives it considered, with their probabilities: p = softmax(logits).",
    )
    ended = "It ended on its own." if output["stopped"] == "stop" else "It was cut off at the length limit."
    yield (
        f"<p>It wrote <strong>{escape(output['text'])}</strong>, with a log-probability of "
        f"{number(output['logp'])}. {ended}</p>"
    )
    heads = ["step", "written", "ln p", "most likely tokens, and their probabilities"]
    rows = [
        (
            str(step["position"] + 1),
            f"<strong>{escape(step['chosen']['text'])}</strong>",
            number(step["logp"]),
            *(f"{escape(one['text'])} {bar(one['p'])} {number(one['p'])}" for one in step["before"][:SHOWN]),
        )
        for step in found["steps"]
    ]
    yield listed("Every step, and what the model found most likely", heads, rows, last=SHOWN)


def _labelled(session: Session, text: str) -> Iterator[str]:
    if session.config.head.kind not in ("classify", "number", "tag"):
        return
    found = verdict(session, text)
    if found["kind"] == "tag":
        yield heading("Tags", "Each word's most likely tag, and its probability.")
        rows = [
            (one["text"], escape(one["tag"]), number(one["top"][0]["p"]) if one["top"] else "–")
            for one in found["words"]
        ]
        yield listed("The tag of each word", ("word", "tag", "p"), rows)
        return
    if found["kind"] == "number":
        yield heading(
            "Verdict",
            "The number the model predicts for the text, and by how much each word raises it: the word "
            "is left out, and the model reads the rest again.",
        )
        yield f"<p>It says <strong>{number(found['number'])}</strong>.</p>"
        yield _parts(found, "number", ("left out", "raises it by", "number without"))
        return
    yield heading(
        "Verdict",
        "The probability of every class, and how much each word contributes to the most likely one: the "
        "word is left out, and the model reads the rest again: log p(class | text) − log p(class | text "
        "without it).",
    )
    classes = [(one["label"], bar(one["p"]), number(one["p"])) for one in found["classes"]]
    yield f"<p>It says <strong>{escape(found['label'])}</strong>.</p>"
    yield listed("The probability of every class", ("class", "", "p"), classes)
    yield _parts(found, "p", ("left out", "owed", "p without"))


def _parts(found: Plain, name: str, heads: Sequence[str]) -> str:
    """The effect of each word on a verdict, and the verdict without it."""
    parts = [
        (one["text"], *("–" if one[key] is None else number(one[key]) for key in ("support", name)))
        for one in found["parts"]
    ]
    return listed("How much each word contributes", heads, parts)


# -- attention --------------------------------------------------------------------------------------


def _aligned(session: Session, text: str, target: str | None) -> Iterator[str]:
    if "decoder.cross" not in session.kinds or session.config.head.kind != "none":
        return
    found = summary(session, text, target, kind="decoder.cross", how="alignment")
    weights = unpacked(found["weights"])
    yield heading(
        "Alignment",
        "Cross-attention of the second-to-last layer, which aligns words best, averaged over its heads: "
        "where the decoder looked when it chose each token.",
    )
    yield _map(weights, found["rows"], found["columns"], "Where the decoder looked for each token it wrote")


def _heads(session: Session, text: str, target: str | None) -> Iterator[str]:
    trace = session.trace(text, target)
    maps = {kind: trace.attention(kind).cpu() for kind in session.kinds}  # each (L, H, rows, columns)
    yield heading(
        "Attention",
        "Every head of every layer: softmax(QKᵀ/√d_k), unless a note says otherwise. Each row is a token "
        "that looks, each column a token that is looked at; dark is 0 and light is 1. Each map is "
        "labelled with its layer and its head.",
    )
    written_out = sum(weights.numel() for weights in maps.values()) <= MOST_NUMBERS
    if not written_out:
        yield (
            "<p>There are too many numbers to print here: <code>clearhead.trace(bundle, text)</code> "
            "gives them all.</p>"
        )
    for kind, weights in maps.items():
        name, about = KINDS[kind]
        if kind == "decoder.self" and not session.config.causal_mask:
            about = "each word looks at all of them, without a causal mask"
        rows, columns = (texts(side) for side in trace.sides(kind))
        span = (min(spread(weights)[0], 0.0), max(spread(weights)[1], 1.0))
        said = about_weights(session.model, kind, len(weights))
        if span != (0.0, 1.0):
            said += f" In these maps dark is {span[0]:.3g} and light is {span[1]:.3g}."
        yield f"<h3>{name}: {about}</h3>" + (f'<p class="about">{escape(said)}</p>' if said else "")
        yield _grid(weights, name, span)
        if written_out:
            tables = (
                table(weights[layer, head], rows, columns, *_names(name, layer, head))
                for layer in range(weights.shape[0])
                for head in range(weights.shape[1])
            )
            yield f"<details><summary>The numbers, head by head</summary>{''.join(tables)}</details>"


def _grid(weights: Tensor, name: str, span: tuple[float, float]) -> str:
    layers, heads = weights.shape[:2]
    cells = "".join(
        f"<div>{layer + 1}.{head + 1}"
        f"{small_map(weights[layer, head], _names(name, layer, head)[0], span)}</div>"
        for layer in range(layers)
        for head in range(heads)
    )
    return (
        f'<div class="grid" style="grid-template-columns:repeat({heads},minmax(4.5rem,8rem))">{cells}</div>'
    )


def _names(kind: str, layer: int, head: int) -> tuple[str, str]:
    """A map's title, and its table's name; people count from 1."""
    return f"{kind}, layer {layer + 1}, head {head + 1}", f"Layer {layer + 1}, head {head + 1}"


# -- depth and positions ------------------------------------------------------------------------------


def _deep(session: Session, text: str, target: str | None) -> Iterator[str]:
    if session.family == "recurrent":
        return
    found = depth(session, text, target)
    words, names = texts(found["words"]), [str(one["label"]) for one in found["sublayers"]]
    yield heading("Depth", found["note"])
    added, stream = unpacked(found["norms"]), unpacked(found["stream"])
    gave, passed = "How much each sub-layer added", "residual stream"
    if not session.config.residual:
        gave, passed = "What each sub-layer gave", "stream"
    yield heat_map(added, names, words, f"{gave} (norm)", (0.0, spread(added)[1]))
    yield table(added, names, words, "Norm of each sub-layer's contribution")
    stations = ["embedding", *names]
    title = f"The {passed} after each sub-layer (norm)"
    yield heat_map(stream, stations, words, title, (0.0, spread(stream)[1]))
    yield table(stream, stations, words, f"Norm of the {passed}")
    if found["predictions"]:
        rows = [
            (
                one["after"],
                *(f"{escape(top[0]['text'])} {number(top[0]['p'])}" if top else "" for top in one["top"]),
            )
            for one in found["predictions"]
        ]
        yield listed(
            "If the model stopped there: its most likely token and the probability", ["", *words], rows
        )


def _placed(session: Session) -> Iterator[str]:
    found = positions(session, [], length=min(LENGTH, session.limit))
    for scheme in found["schemes"]:
        about = " ".join(part for part in (scheme["formula"], scheme["note"]) if part)
        yield heading(f"Positions: {scheme['name']}", about)
        drawn = scheme["table"] or scheme["bias"]
        if drawn is not None:
            yield from _scheme(unpacked(drawn), "bias" if scheme["table"] is None else "feature")
        alike = scheme["similarity"]
        if alike:
            points = list(zip(alike["distances"], alike["values"], strict=True))
            fine = [(float(x), float(y)) for x, y in points if y is not None]
            yield lines(fine, str(alike["what"]), "distance", "similarity")
        items = "".join(
            f"<li>{'✓' if one['holds'] else '✗'} <strong>{escape(one['name'])}</strong>: "
            f"{escape(one['sentence'])}</li>"
            for one in scheme["guidelines"]
        )
        yield f"<ul>{items}</ul>" if items else ""


def _scheme(values: Tensor, kind: str) -> Iterator[str]:
    """A table (positions, features), or the bias of the first head (positions, positions)."""
    if values.dim() == 3:
        values = values[0]
    shown = values[:, :FEATURES]
    whole = "" if shown.shape == values.shape else f" (the first {FEATURES})"
    title = (
        f"One row per position, one column per {kind}{whole}"
        if kind == "feature"
        else ("What is added to the scores of the first head: rows are queries, columns are keys")
    )
    rows, columns = ([str(one) for one in range(size)] for size in shown.shape)
    yield heat_map(shown, rows, columns, title, None)
    yield table(shown, rows, columns, title)


def _map(weights: Tensor, rows: Sequence[Word], columns: Sequence[Word], title: str) -> str:
    names = texts(rows), texts(columns)
    return heat_map(weights, *names, title) + table(weights, *names, title)
