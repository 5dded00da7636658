/**
 * A label and what it rests on, made drawable: classes as bars, words by what the label owes to them.
 * Knows nothing about Svelte.
 */
import { table } from "../charts/csv";
import type { ClassVerdict, LabelChance, TagVerdict } from "../lib/api";
import { escapeXml } from "../lib/exports";
import { brief, percent, settled } from "../lib/format";

export type Part = ClassVerdict["parts"][number];
export type Order = "text" | "support";

/** The likeliest classes one by one, and what is left of the others as one. */
export function shownClasses(classes: LabelChance[], most = 12): LabelChance[] {
  if (classes.length <= most) return classes;
  const rest = classes.slice(most - 1);
  const p = rest.reduce((sum, one) => sum + one.p, 0);
  return [...classes.slice(0, most - 1), { label: `${rest.length} others together`, p }];
}

/** How far a part's bar goes to the right (for the label) or, below 0, to the left (against it): −1 … 1. */
export function reach(parts: Part[]): number[] {
  const supports = parts.map((part) => settled(part.support ?? 0));
  const most = Math.max(0, ...supports.map(Math.abs));
  return supports.map((support) => (most > 0 ? support / most : 0));
}

/** In the text's order, or what speaks most for the label first. */
export function ordered(parts: Part[], order: Order): number[] {
  const indices = parts.map((_, i) => i);
  if (order === "text") return indices;
  return indices.sort((a, b) => (parts[b]?.support ?? -Infinity) - (parts[a]?.support ?? -Infinity) || a - b);
}

/** What carried the label, in a sentence. */
export function carried(answer: ClassVerdict): string {
  const p = answer.classes[0]?.p ?? 0;
  const best = ordered(answer.parts, "support")[0];
  const part = best === undefined ? undefined : answer.parts[best];
  const noun = answer.together > 1 ? "part" : "word";
  if (!part || part.p === null || settled(part.support ?? 0) <= 0)
    return answer.parts.some(({ support }) => support !== null)
      ? `“${answer.label}” depends on no single ${noun}: leaving any one of them out makes it no less likely.`
      : "There is only one word, so nothing would be left to read without it.";
  const flips = part.label === answer.label ? "" : `, and “${part.label ?? ""}” wins`;
  return (
    `“${part.text}” matters most: without it, the probability of “${answer.label}” falls ` +
    `from ${percent(p)} to ${percent(part.p)}${flips}.`
  );
}

/** What one part did, in words, for those who do not see the bar. */
export function effectOf(part: Part): string {
  if (part.support === null) return "not left out: nothing would be left";
  const support = settled(part.support);
  if (support === 0) return "no effect";
  return support > 0 ? `for it, ${brief(support)}` : `against it, ${brief(support)}`;
}

export function classesCsv(classes: LabelChance[]): string {
  return table(
    ["class", "probability"],
    classes.map(({ label, p }) => [label, p]),
  );
}

export function partsCsv({ label, parts }: ClassVerdict): string {
  return table(
    ["position", "left_out", "support", `p_of_${label}_without`, "class_without"],
    parts.map((part, i) => [i, part.text, part.support, part.p, part.label]),
  );
}

export function tagsCsv({ words }: TagVerdict): string {
  return table(
    ["position", "word", "tag", "probability"],
    words.map((word, i) => [i, word.text, word.tag, word.top[0]?.p]),
  );
}

const PITCH = 22;
const LETTER = 7.2;

function document(width: number, height: number, title: string, parts: string[]): string {
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="12" fill="#161c25"><rect width="100%" height="100%" fill="#ffffff"/>` +
    `<text x="10" y="20" font-weight="700">${escapeXml(title)}</text>${parts.join("")}</svg>\n`
  );
}

function widest(names: string[]): number {
  return 24 + LETTER * Math.max(4, ...names.map((name) => [...name].length));
}

/** The classes' bars as an SVG document; all of them, from 0 to 100 %. */
export function classesSvg(classes: LabelChance[], title: string): string {
  const left = widest(classes.map(({ label }) => label));
  const parts = classes.map(({ label, p }, i) => {
    const y = 36 + i * PITCH;
    return (
      `<text x="${left - 8}" y="${y + 12}" text-anchor="end">${escapeXml(label)}</text>` +
      `<rect x="${left}" y="${y}" width="${300 * p}" height="${PITCH - 6}" fill="#0b5fa5"/>` +
      `<text x="${left + 300 * p + 6}" y="${y + 12}" fill="#465263">${percent(p)}</text>`
    );
  });
  return document(left + 380, 44 + classes.length * PITCH, title, parts);
}

/** What each part did, as an SVG document: to the right for the label, to the left against it. */
export function partsSvg(answer: ClassVerdict, title: string): string {
  const left = widest(answer.parts.map(({ text }) => text));
  const middle = left + 150;
  const parts = reach(answer.parts).map((share, i) => {
    const y = 36 + i * PITCH;
    const part = answer.parts[i];
    const said = part?.support === null || part === undefined ? "–" : brief(part.support);
    return (
      `<text x="${left - 8}" y="${y + 12}" text-anchor="end">${escapeXml(part?.text ?? "")}</text>` +
      `<rect x="${middle + Math.min(0, 140 * share)}" y="${y}" width="${Math.abs(140 * share)}" ` +
      `height="${PITCH - 6}" fill="${share < 0 ? "#a34d00" : "#0b5fa5"}"/>` +
      `<text x="${middle + 150}" y="${y + 12}" fill="#465263">${said}</text>`
    );
  });
  const high = 44 + answer.parts.length * PITCH;
  parts.push(`<line x1="${middle}" x2="${middle}" y1="30" y2="${high - 8}" stroke="#8a94a3"/>`);
  return document(middle + 220, high, title, parts);
}
