/**
 * The numbers of the depth view: what each sub-layer adds to the residual stream, and what the
 * model would say if it stopped after each layer.
 */

import { table } from "../charts/csv";
import { css, inkOn, scale } from "../lib/colour";
import { escapeXml } from "../lib/exports";
import { percent } from "../lib/format";
import { cut } from "../lib/heatmap";

export interface Guess {
  id: number;
  text: string;
  p: number;
}

export interface Reading {
  after: string;
  top: Guess[][]; // for each position, the likeliest first
}

/** After which reading a position's best guess is the final one and stays so; -1: never before the end. */
export function settled(readings: Reading[], finalIds: number[]): number[] {
  return finalIds.map((id, position) => {
    let first = -1;
    for (let i = readings.length - 1; i >= 0; i--) {
      if (readings[i]?.top[position]?.[0]?.id !== id) break;
      first = i;
    }
    return first;
  });
}

/** A contribution against the stream it is added to: 0.5 means half as long as what was there. */
export function relative(
  norms: Float32Array,
  stream: Float32Array,
  sublayers: number,
  positions: number,
): Float32Array {
  const out = new Float32Array(sublayers * positions);
  for (let n = 0; n < sublayers; n++) {
    for (let t = 0; t < positions; t++) {
      const before = stream[n * positions + t] ?? 0;
      out[n * positions + t] = before > 0 ? (norms[n * positions + t] ?? 0) / before : 0;
    }
  }
  return out;
}

/** The mean over the positions, row by row. */
export function rowMeans(values: Float32Array, rows: number, columns: number): number[] {
  return Array.from({ length: rows }, (_, r) => {
    let sum = 0;
    for (let c = 0; c < columns; c++) sum += values[r * columns + c] ?? 0;
    return columns > 0 ? sum / columns : 0;
  });
}

/** Only so many positions fit in a table: the window of them that holds the picked one. */
export function pageOf(position: number, size: number, total: number): { from: number; to: number } {
  if (total <= size) return { from: 0, to: total };
  const from = Math.floor(Math.max(0, Math.min(position, total - 1)) / size) * size;
  return { from, to: Math.min(total, from + size) };
}

export function normsCsv(
  labels: string[],
  words: string[],
  norms: Float32Array,
  stream: Float32Array,
): string {
  return table(
    ["sublayer", "position", "token", "contribution_norm", "stream_norm_before", "stream_norm_after"],
    labels.flatMap((label, n) =>
      words.map((word, t) => [
        label,
        t,
        word,
        norms[n * words.length + t],
        stream[n * words.length + t],
        stream[(n + 1) * words.length + t],
      ]),
    ),
  );
}

export function readingsCsv(readings: Reading[], words: string[]): string {
  return table(
    ["after", "position", "token", "rank", "guess", "probability"],
    readings.flatMap(({ after, top }) =>
      top.flatMap((guesses, t) =>
        guesses.map((guess, rank) => [after, t, words[t] ?? "", rank + 1, guess.text, guess.p]),
      ),
    ),
  );
}

/** The table of readings as an SVG document: the likeliest word of each layer and position, and its probability. */
export function readingsSvg(readings: Reading[], words: string[], final: string[]): string {
  const [left, wide, high, top] = [110, 92, 40, 40];
  const positions = readings[0]?.top.length ?? 0;
  const colour = scale("sequential", "light", [0, 1.25]);
  const text = (x: number, y: number, said: string, fill: string, extra = ""): string =>
    `<text x="${x}" y="${y}" text-anchor="middle" fill="${fill}"${extra}>${escapeXml(cut(said, 12))}</text>`;
  const parts: string[] = [];
  for (let t = 0; t < positions; t++) {
    const x = left + (t + 0.5) * wide;
    parts.push(text(x, top - 12, positions === words.length ? (words[t] ?? "") : "whole text", "#465263"));
    parts.push(text(x, top + readings.length * high + 20, final[t] ?? "", "#161c25", ' font-weight="700"'));
  }
  readings.forEach(({ after, top: guesses }, r) => {
    const y = top + r * high;
    parts.push(
      `<text x="${left - 10}" y="${y + high / 2 + 4}" text-anchor="end" fill="#465263">${escapeXml(after)}</text>`,
    );
    guesses.forEach(([best], t) => {
      const ground = colour(best?.p ?? 0);
      const [x, ink] = [left + t * wide, css(inkOn(ground))];
      parts.push(
        `<rect x="${x + 1}" y="${y + 1}" width="${wide - 2}" height="${high - 2}" fill="${css(ground)}"/>`,
      );
      parts.push(text(x + wide / 2, y + 17, best?.text ?? "", ink));
      parts.push(text(x + wide / 2, y + 32, percent(best?.p ?? 0), ink, ' font-size="11"'));
    });
  });
  const [width, height] = [left + positions * wide + 10, top + readings.length * high + 36];
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>` +
    `${parts.join("")}</svg>\n`
  );
}
