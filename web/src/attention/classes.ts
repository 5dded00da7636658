/**
 * Attention mass by class of token: one stacked bar for each head, one panel for each layer.
 * Also says in words what a bar shows, and which heads care most about a class.
 */

import { table } from "../charts/csv";
import { series } from "../lib/colour";
import { escapeXml } from "../lib/exports";
import { percent } from "../lib/format";

export interface Segment {
  name: string;
  share: number;
  from: number; // 0 … 1, from the bottom
}

const MEANING: Record<string, string> = {
  special: "start, stop and padding tokens",
  punctuation: "commas, full stops, quotes …",
  neighbours: "the token itself and the ones beside it",
  others: "all other words",
};

export function meaning(name: string): string {
  return MEANING[name] ?? name;
}

/** The stack of one head, from the bottom up, in the order of the classes. */
export function stack(
  mass: Float32Array,
  classes: string[],
  heads: number,
  layer: number,
  head: number,
): Segment[] {
  const start = (layer * heads + head) * classes.length;
  let from = 0;
  return classes.map((name, i) => {
    const share = mass[start + i] ?? 0;
    const segment = { name, share, from };
    from += share;
    return segment;
  });
}

/** A bar in words, for those who do not see it. */
export function spoken(layer: number, head: number, segments: Segment[]): string {
  const parts = segments.map(({ name, share }) => `${name} ${percent(share)}`);
  return `Layer ${layer + 1}, head ${head + 1}: ${parts.join(", ")}`;
}

/** The head that gives a class most. */
export function keenest(
  mass: Float32Array,
  classes: number,
  heads: number,
  wanted: number,
): { layer: number; head: number; share: number } | null {
  let best: { layer: number; head: number; share: number } | null = null;
  for (let i = 0; i * classes < mass.length; i++) {
    const share = mass[i * classes + wanted] ?? 0;
    if (best === null || share > best.share) {
      best = { layer: Math.floor(i / heads), head: i % heads, share };
    }
  }
  return best;
}

export function classesCsv(
  classes: string[],
  kinds: { kind: string; mass: Float32Array; layers: number; heads: number }[],
): string {
  return table(
    ["kind", "layer", "head", ...classes],
    kinds.flatMap(({ kind, mass, layers, heads }) =>
      Array.from({ length: layers * heads }, (_, i) => [
        kind,
        Math.floor(i / heads) + 1,
        (i % heads) + 1,
        ...mass.subarray(i * classes.length, (i + 1) * classes.length),
      ]),
    ),
  );
}

export interface BarsLayout {
  width: number;
  height: number;
  left: number;
  bottom: number;
  tall: number;
  wide: number;
  /** Every so many-th head has its number: all where there is room. */
  every: number;
  /** Too little room to write "Layer 3" under a group. */
  narrow: boolean;
  bar: (layer: number, head: number) => number;
  layer: (layer: number) => number;
}

/** Bars of 8 to 40 px, as wide as the room allows; more than fit are scrolled. */
export function barsLayout(layers: number, heads: number, room: number): BarsLayout {
  const [left, gap, between, tall, top] = [46, 3, 14, 170, 8];
  const free = room - left - layers * between - layers * heads * gap;
  const wide = Math.max(8, Math.min(40, free / Math.max(1, layers * heads)));
  const group = heads * (wide + gap) + between;
  const bar = (layer: number, head: number): number => left + 6 + layer * group + head * (wide + gap);
  return {
    left,
    tall,
    wide,
    every: Math.ceil(14 / (wide + gap)),
    bar,
    bottom: top + tall,
    height: top + tall + 40,
    width: Math.max(room - 6, left + layers * group),
    narrow: group < 64,
    layer: (layer) => bar(layer, 0) + (heads * (wide + gap) - gap) / 2,
  };
}

/** The bars of one kind as an SVG document, with the names of the classes. */
export function classesSvg(
  mass: Float32Array,
  classes: string[],
  layers: number,
  heads: number,
  title: string,
): string {
  const place = barsLayout(layers, heads, 720);
  const above = 56;
  const parts = classes.map((name, k) => {
    const x = 14 + k * 130;
    return `<rect x="${x}" y="32" width="12" height="12" fill="${series(k, "light")}"/><text x="${x + 18}" y="42">${escapeXml(name)}</text>`;
  });
  for (const share of [0, 0.5, 1]) {
    const y = above + place.bottom - share * place.tall;
    parts.push(`<text x="${place.left - 6}" y="${y + 4}" text-anchor="end">${100 * share} %</text>`);
  }
  for (let layer = 0; layer < layers; layer++) {
    parts.push(
      `<text x="${place.layer(layer)}" y="${above + place.height - 6}" text-anchor="middle">Layer ${layer + 1}</text>`,
    );
    for (let head = 0; head < heads; head++) {
      const x = place.bar(layer, head);
      stack(mass, classes, heads, layer, head).forEach(({ share, from }, k) => {
        const y = above + place.bottom - (from + share) * place.tall;
        parts.push(
          `<rect x="${x}" y="${y}" width="${place.wide}" height="${share * place.tall}" fill="${series(k, "light")}"/>`,
        );
      });
      const under = above + place.bottom + 14;
      if (head % place.every > 0) continue;
      parts.push(`<text x="${x + place.wide / 2}" y="${under}" text-anchor="middle">${head + 1}</text>`);
    }
  }
  const [width, height] = [place.width + 10, above + place.height];
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="12" fill="#161c25"><rect width="100%" height="100%" fill="#ffffff"/>` +
    `<text x="14" y="20" font-weight="700">${escapeXml(title)}</text>${parts.join("")}</svg>\n`
  );
}
