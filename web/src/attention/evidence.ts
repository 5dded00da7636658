/**
 * Attention beside what the prediction really depends on: the three measures as bars over the
 * same tokens, and Kendall's τ between attention and each of the others.
 */

import { table } from "../charts/csv";
import type { EvidenceAnswer } from "../lib/api";
import { escapeXml } from "../lib/exports";
import { brief, settled } from "../lib/format";

export type Evidence = Pick<EvidenceAnswer, "weights" | "gradient" | "ablated">;

export const MEASURES = [
  { key: "weights", label: "Attention", unit: "weight" },
  { key: "gradient", label: "Gradient × input", unit: "|∂ log p ∕ ∂x · x|" },
  { key: "ablated", label: "Weight removed", unit: "change of log p" },
] as const;

export type Measure = (typeof MEASURES)[number]["key"];

export interface Bar {
  value: number | null;
  /** Length of the bar, 0 … 1, against the longest of its measure. */
  share: number;
  /** 1 for the largest in size. */
  rank: number;
}

/**
 * Bars of one measure: each measure has its own unit, so each is scaled by its own largest. What is only rounding
 * error is written 0 and has no bar.
 */
export function bars(values: (number | null)[]): Bar[] {
  const sizes = values.map((value) => Math.abs(settled(value ?? 0)));
  const top = Math.max(0, ...sizes);
  const order = values.map((_, i) => i).sort((a, b) => (sizes[b] ?? 0) - (sizes[a] ?? 0));
  const ranks = new Map(order.map((index, place) => [index, place + 1]));
  return values.map((value, i) => ({
    value,
    share: top > 0 ? (sizes[i] ?? 0) / top : 0,
    rank: ranks.get(i) ?? 0,
  }));
}

/** In the text's order, or the largest of one measure first. */
export function order(evidence: Evidence, by: Measure | "text"): number[] {
  const indices = evidence.weights.map((_, i) => i);
  if (by === "text") return indices;
  const values = evidence[by];
  return indices.sort((a, b) => Math.abs(values[b] ?? 0) - Math.abs(values[a] ?? 0) || a - b);
}

export function evidenceCsv(words: string[], evidence: Evidence): string {
  return table(
    ["position", "token", "attention", "gradient_x_input", "ablation"],
    words.map((word, i) => [i, word, evidence.weights[i], evidence.gradient[i], evidence.ablated[i]]),
  );
}

/** The three columns of bars as an SVG document of its own, in the text's order. */
export function evidenceSvg(words: string[], evidence: Evidence, predicted: string): string {
  const [left, column, pitch, top] = [150, 210, 20, 50];
  const colours = ["#0b5fa5", "#a34d00", "#0a6b4d"];
  const height = top + words.length * pitch + 10;
  const width = left + MEASURES.length * column;
  const parts = MEASURES.flatMap(({ key, label }, m) => {
    const x = left + m * column;
    const drawn = bars(evidence[key]).map(({ value, share }, i) => {
      const y = top + i * pitch;
      return (
        `<rect x="${x}" y="${y}" width="${share * (column - 80)}" height="${pitch - 5}" fill="${colours[m]}"/>` +
        `<text x="${x + share * (column - 80) + 6}" y="${y + 12}" fill="#465263">${value === null ? "–" : brief(value)}</text>`
      );
    });
    return [
      `<text x="${x}" y="${top - 10}" font-weight="600" fill="#161c25">${escapeXml(label)}</text>`,
      ...drawn,
    ];
  });
  const labels = words.map(
    (word, i) =>
      `<text x="${left - 10}" y="${top + i * pitch + 12}" text-anchor="end" fill="#161c25">${escapeXml(word)}</text>`,
  );
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>` +
    `<text x="10" y="18" fill="#161c25">Evidence for “${escapeXml(predicted)}”</text>` +
    `${parts.join("")}${labels.join("")}</svg>\n`
  );
}
