/**
 * The numbers of the contexts view made drawable: similarity by layer as series,
 * and the projection of one layer as points whose labels do not run into each other.
 */

import { table } from "../charts/csv";
import type { Series } from "../charts/plot";
import type { Word } from "../lib/api";

/** A line for each occurrence: its cosine with the word's static embedding, layer by layer. */
export function staticSeries(values: Float32Array, layers: number, names: string[]): Series[] {
  return names.map((name, i) => ({
    name,
    dots: true,
    points: Array.from(
      { length: layers },
      (_, layer) => [layer, values[layer * names.length + i] ?? NaN] as const,
    ),
  }));
}

/**
 * The mean cosine between two different occurrences, layer by layer, and its extremes: of all pairs that have the same
 * spelling (the same token ids), for others are different words to the model. Nothing where no pair has.
 */
export function betweenSeries(values: Float32Array, layers: number, spelling: number[]): Series[] {
  const rows = Array.from({ length: layers }, (_, layer) => pairs(values, layer, spelling));
  if ((rows[0]?.length ?? 0) === 0) return [];
  const line = (name: string, pick: (row: number[]) => number, dashed: boolean): Series => ({
    name,
    dashed,
    dots: !dashed,
    points: rows.map((row, layer) => [layer, pick(row)] as const),
  });
  return [
    line("most similar pair", (row) => Math.max(...row), true),
    line("mean of all pairs", (row) => row.reduce((sum, x) => sum + x, 0) / row.length, false),
    line("least similar pair", (row) => Math.min(...row), true),
  ];
}

function pairs(values: Float32Array, layer: number, spelling: number[]): number[] {
  const out: number[] = [];
  const count = spelling.length;
  for (let a = 0; a < count; a++) {
    for (let b = a + 1; b < count; b++)
      if (spelling[a] === spelling[b]) out.push(values[(layer * count + a) * count + b] ?? NaN);
  }
  return out;
}

/** "a", "b", … for the first, second … spelling. */
export function letterOf(spelling: number): string {
  return String.fromCharCode(97 + spelling);
}

/** What the reader must know where the word is not the same tokens everywhere, as a sentence; "" where it is. */
export function spellingsText(word: string, spellings: Word[][], of: number[]): string {
  if (spellings.length < 2) return "";
  const told = spellings.map((tokens, s) => {
    const where = of.flatMap((one, i) => (one === s ? [i + 1] : []));
    const ids = tokens.map(({ id, text }) => `“${text}” ${id}`).join(" + ");
    return `${letterOf(s)} (${ids}) in ${where.length === 1 ? "sentence" : "sentences"} ${where.join(", ")}`;
  });
  return (
    `“${word}” is not split into the same tokens in all sentences: ${told.join("; ")}. Different tokens have different vectors before any ` +
    `context is read, so the curves only compare sentences with the same letter.`
  );
}

export interface Dot {
  x: number;
  y: number;
  /** Where the number stands, moved away from its neighbours. */
  labelX: number;
  labelY: number;
}

const LINE = 16;

/**
 * Points of one layer inside a box, with equal units on both axes (distances are what is shown),
 * and labels pushed apart so that no two lie on the same spot.
 */
export function scatter(
  projection: Float32Array,
  layer: number,
  count: number,
  width: number,
  height: number,
  margin = 36,
): Dot[] {
  const start = layer * count * 2;
  const raw = Array.from({ length: count }, (_, i) => ({
    x: projection[start + 2 * i] ?? 0,
    y: projection[start + 2 * i + 1] ?? 0,
  }));
  const span = Math.max(range(raw.map((p) => p.x)), range(raw.map((p) => p.y)) * (width / height), 1e-9);
  const unit = (width - 2 * margin) / span;
  const [midX, midY] = [middle(raw.map((p) => p.x)), middle(raw.map((p) => p.y))];
  const dots = raw.map((p) => {
    const x = width / 2 + (p.x - midX) * unit;
    const y = height / 2 - (p.y - midY) * unit;
    return { x, y, labelX: x + 11, labelY: y };
  });
  return apart(dots, height);
}

function range(values: number[]): number {
  return Math.max(...values) - Math.min(...values);
}

function middle(values: number[]): number {
  return (Math.max(...values) + Math.min(...values)) / 2;
}

/** Push labels that overlap down, from the top one on; a few rounds are enough for a dozen. */
function apart(dots: Dot[], height: number): Dot[] {
  const order = [...dots].sort((a, b) => a.labelY - b.labelY);
  for (let round = 0; round < 4; round++) {
    for (const [i, dot] of order.entries()) {
      for (const above of order.slice(0, i)) {
        const close = Math.abs(above.labelX - dot.labelX) < 24;
        if (close && dot.labelY - above.labelY < LINE) dot.labelY = above.labelY + LINE;
      }
    }
    order.sort((a, b) => a.labelY - b.labelY);
  }
  const over = Math.max(0, ...dots.map((dot) => dot.labelY + LINE / 2 - height));
  if (over > 0)
    for (const dot of dots) if (dot.labelY > dot.y) dot.labelY = Math.max(dot.y - over, dot.labelY - over);
  return dots;
}

export function contextsCsv(
  layers: string[],
  sentences: string[],
  spelling: number[],
  fixed: Float32Array,
  between: Float32Array,
  projection: Float32Array,
): string {
  const n = sentences.length;
  return table(
    [
      "layer",
      "sentence",
      "spelling",
      "static_cosine",
      "x",
      "y",
      ...sentences.map((_, i) => `cosine_with_${i + 1}`),
    ],
    layers.flatMap((layer, l) =>
      sentences.map((sentence, i) => [
        layer,
        sentence,
        letterOf(spelling[i] ?? 0),
        fixed[l * n + i],
        projection[(l * n + i) * 2],
        projection[(l * n + i) * 2 + 1],
        ...between.subarray((l * n + i) * n, (l * n + i + 1) * n),
      ]),
    ),
  );
}
