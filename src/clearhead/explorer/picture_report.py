"""What `clearhead explain` draws for pictures and for music: attention over the picture, and over the notes.

Shapes: L layers, H heads, T tokens, G patches per side.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from html import escape

import torch
from torch import Tensor

from clearhead.data.notes import Placed, placed_notes
from clearhead.data.pictures import in_words
from clearhead.explorer.attention import rollout
from clearhead.explorer.attention_weights import about_weights
from clearhead.explorer.inside import labels
from clearhead.explorer.patches import overlay_png, plain_png, seen_by_the_head
from clearhead.explorer.session import Session
from clearhead.explorer.svg import bar, colour_key, figure, heading, listed, number, table
from clearhead.explorer.words import texts
from clearhead.nn.attention.picture import heat_colours, svg_colour

ROLL = 680  # pixels that a short piece is stretched to; a long one is wider, and is scrolled
SECONDS = (24, 320)  # the fewest and the most pixels per second of music
PITCH = 8  # pixels per semitone
ABOVE, BELOW = 6, 18  # pixels, for the name of the highest pitch and for the seconds
WRITTEN_OUT = 20_000  # weights of single heads that are in tables


def picture_sections(session: Session, text: str) -> Iterator[str]:
    """A picture's class, and where the model looked in it."""
    config, maps = session.config, _patch_maps(session, text)
    facts = {
        "picture": in_words(text),
        "patches": f"{config.image.size // config.image.patch} × {config.image.size // config.image.patch}",
        "layers": str(config.layers),
        "heads": " and ".join(str(one) for one in session.heads),
        "width": f"{config.width:,}",
        "parameters": f"{sum(one.numel() for one in session.model.parameters()):,}",
        "positions": config.position.name,
    }
    terms = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    picture = _image(plain_png(text, config.image.size), "The picture", "picture")
    yield f"<h1>What {escape(session.name)} did with this picture</h1>{picture}<dl>{terms}</dl>"
    if config.head.kind == "classify":
        yield from _verdict(session, text)
    reads = {"first": "the class token", "last": "the last patch"}.get(config.head.pooling, "the mean patch")
    yield heading(
        "Where it looked",
        f"Attention of {reads}, from which the class is predicted, drawn over the picture. The lightest "
        "patch has the largest weight of its drawing; that weight is given beside it.",
    )
    said = about_weights(session.model, "encoder.self", config.layers)
    if said:
        yield f'<p class="about">{escape(said)} Weights below 0 have the darkest colour.</p>'
    names = {"rollout": "Rollout through all layers", "mean": "Mean over the heads of the last layer"}
    for name, title in names.items():
        weights = maps[name]
        places = [str(one + 1) for one in range(len(weights))]
        yield _over(session, text, weights, title, "picture") + table(weights, places, places, title)
    heads = [one for one in maps if one not in names]
    yield heading("Every head", "The same for each layer and head.")
    drawn = "".join(f"<div>{_over(session, text, maps[one], _said(one))}</div>" for one in heads)
    columns = f"repeat({session.heads[0]},minmax(5.5rem,8rem))"
    yield f'<div class="grid" style="grid-template-columns:{columns}">{drawn}</div>'
    if sum(maps[one].numel() for one in heads) <= WRITTEN_OUT:
        tables = (table(maps[one], places, places, f"Attention, {one}", _said(one)) for one in heads)
        yield f"<details><summary>The numbers, head by head</summary>{''.join(tables)}</details>"


def _verdict(session: Session, text: str) -> Iterator[str]:
    shares = session.trace(text).logits.softmax(-1)
    names = labels(session, len(shares))
    order = shares.argsort(descending=True, stable=True).tolist()
    yield heading("Verdict", "The probability of every class.")
    yield f"<p>It says <strong>{escape(names[order[0]])}</strong>.</p>"
    rows = [(names[one], bar(float(shares[one])), number(float(shares[one]))) for one in order]
    yield listed("The probability of every class", ("class", "", "p"), rows)


def _patch_maps(session: Session, text: str) -> dict[str, Tensor]:
    """By name, each (G, G): the rollout, the last layer's mean, every head."""
    trace = session.trace(text, asked=["*.weights"])
    weights = trace.attention("encoder.self").cpu()  # (L,H,T,T)
    layers, heads = weights.shape[:2]
    found = {
        "rollout": rollout(trace, "encoder.self", layers - 1),
        "mean": trace.attention("encoder.self", layers - 1).cpu().double().mean(0),
    }
    for layer in range(layers):
        for head in range(heads):
            found[f"layer-{layer + 1}-head-{head + 1}"] = weights[layer, head]
    return {name: seen_by_the_head(one, session.config) for name, one in found.items()}


def _said(name: str) -> str:
    """`layer-1-head-2` in words."""
    _, layer, _, head = name.split("-")
    return f"Layer {layer}, head {head}"


def _over(session: Session, text: str, weights: Tensor, title: str, kind: str = "map") -> str:
    largest = f"{title}: at most {float(weights.max()):.3g}"
    drawn = _image(overlay_png(text, weights, session.config.image.size), largest, kind)
    return f"<figure><figcaption>{escape(largest)}</figcaption>{drawn}</figure>"


def _image(content: bytes, title: str, kind: str) -> str:
    alt, data = escape(title, quote=True), base64.b64encode(content).decode("ascii")
    return f'<img class="{kind}" alt="{alt}" title="{alt}" src="data:image/png;base64,{data}">'


# -- music -----------------------------------------------------------------------------------------


def note_sections(session: Session, text: str) -> Iterator[str]:
    """Which notes the model attended to when it chose what follows the last event."""
    if not session.reads_music:
        return
    rolls = _rolls(session, text)
    if not rolls:
        return
    yield heading(
        "Which notes it looked at",
        "A piano roll: time to the right, pitch upwards. A note's colour is the total attention its "
        "events receive when the model chooses what comes after the last event.",
    )
    yield "".join(rolls.values())


def _rolls(session: Session, text: str) -> dict[str, str]:
    trace = session.trace(text, asked=["*.weights"])
    layers = range(trace.layers_of("decoder.self"))
    weights = [trace.attention("decoder.self", one).cpu().double() for one in layers]  # each (H,T,T)
    notes = placed_notes(texts(trace.target))
    if not notes:
        return {}
    rows = {
        "Rollout through all layers": rollout(trace, "decoder.self", len(weights) - 1)[-1],
        **{f"Layer {one + 1}, mean of its heads": weights[one][:, -1].mean(0) for one in layers},
    }
    return {title: note_roll(notes, row, title) for title, row in rows.items()}


def note_weights(notes: list[Placed], row: Tensor) -> Tensor:
    """The total weight of each note's events in a row of weights (T,)."""
    return torch.stack([row[list(places)].sum() for _, places in notes])


def note_roll(notes: list[Placed], row: Tensor, title: str) -> str:
    """The notes, each in the colour of its weight; hovering over a note shows it."""
    weights = note_weights(notes, row)
    largest = float(weights.max())
    colours = heat_colours(weights.numpy(), (0.0, largest))
    pitches = [note.pitch for note, _ in notes]
    low, high, end = min(pitches), max(pitches), max(note.end for note, _ in notes)
    left, height = 34, ABOVE + (high - low + 1) * PITCH + BELOW
    second = min(max(ROLL / end, SECONDS[0]), SECONDS[1])
    drawn = "".join(
        f'<rect x="{left + note.begin * second:.1f}" y="{ABOVE + (high - note.pitch) * PITCH}" '
        f'width="{(note.end - note.begin) * second:.1f}" height="{PITCH - 1}" fill="{svg_colour(colour)}" '
        f'stroke="currentColor" stroke-width="0.4"><title>pitch {note.pitch}, from {note.begin:g} s to '
        f"{note.end:g} s: {weight:.4g}</title></rect>"
        for (note, _), colour, weight in zip(notes, colours, weights.tolist(), strict=True)
    )
    named = "".join(
        f'<text x="{left - 5}" y="{ABOVE + (high - pitch + 1) * PITCH}" text-anchor="end">{pitch}</text>'
        for pitch in sorted({low, high})
    )
    every = math.ceil(40 / second)
    named += "".join(
        f'<text x="{left + time * second:.1f}" y="{height - 4}">{time} s</text>'
        for time in range(0, math.ceil(end), every)
    )
    rest = float(row.sum() - weights.sum())
    size = left + end * second + 30, height
    about = f"{title}: {rest:.1%} goes to rests, time shifts, velocities and the start"
    return figure(about, size, drawn + named) + colour_key(0.0, largest)


# -- files ------------------------------------------------------------------------------------------


def drawings(session: Session, text: str) -> dict[str, bytes]:
    """The same drawings as separate files, by name; none for texts."""
    if session.family == "vision":
        maps, side = _patch_maps(session, text), session.config.image.size
        found = {f"{name}.png": overlay_png(text, one, side) for name, one in maps.items()}
        return {"picture.png": plain_png(text, side), **found}
    return {}
