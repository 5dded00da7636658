/**
 * A worked example as a walk: which numbers are shown at a step, with how many digits,
 * and what is to be said of each printed one.
 */

import { table } from "../charts/csv";
import type { LectureExample, LectureStep, Numbers } from "../lib/api";
import { escapeXml } from "../lib/exports";

/** As many decimals as any number of the table needs, but no more than `most`. */
export function decimals(table: Numbers, most = 4): number {
  let need = 0;
  for (const row of table) {
    for (const value of row) {
      if (value === null) continue;
      const text = String(Number(value.toFixed(most)));
      need = Math.max(need, text.split(".")[1]?.length ?? 0);
    }
  }
  return need;
}

export function written(value: number | null | undefined, places: number): string {
  if (value === null) return "−∞";
  if (value === undefined) return "";
  const text = value.toFixed(places);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
}

/** A printed number exactly as the slide has it: "0.5" stays "0.5". */
export function asPrinted(value: number | string | null | undefined): string {
  if (value === null) return "−∞";
  return value === undefined ? "" : String(value).replace("-", "−");
}

/** "wrong", "truncated" …, or null for a printed number that is right. */
export function markOf(step: LectureStep, row: number, column: number): string | null {
  return step.marks.find((mark) => mark.row === row && mark.column === column)?.mark ?? null;
}

export interface Count {
  printed: number;
  wrong: number;
  rounding: number;
}

/** How many of the printed numbers of some steps are wrong, and how many are only rounded badly. */
export function counted(steps: LectureStep[]): Count {
  const count = { printed: 0, wrong: 0, rounding: 0 };
  for (const step of steps) {
    step.printed?.forEach((row, r) => {
      row.forEach((_, c) => {
        const mark = markOf(step, r, c);
        count.printed += 1;
        if (mark === "wrong") count.wrong += 1;
        else if (mark !== null) count.rounding += 1;
      });
    });
  }
  return count;
}

/** The verdict on a step's printed numbers as a sentence. */
export function verdict(step: LectureStep): string {
  if (step.given) return "Given by the slide.";
  if (step.printed === null) return "The slide gives no numbers here.";
  const { printed, wrong, rounding } = counted([step]);
  const numbers = printed === 1 ? "The printed number is" : `All ${printed} printed numbers are`;
  if (wrong === 0 && rounding === 0) return `${numbers} right.`;
  const parts = [];
  if (wrong > 0) parts.push(`${wrong} of ${printed} printed ${printed === 1 ? "number" : "numbers"} wrong`);
  if (rounding > 0) parts.push(`${rounding} off in the last digit, or truncated instead of rounded`);
  return `${parts.join("; ")}.`;
}

/** Where a key leads from step `at`; null for keys the walk leaves alone. */
export function walked(key: string, at: number, steps: number): number | null {
  const last = Math.max(0, steps - 1);
  switch (key) {
    case "ArrowRight":
    case "PageDown":
      return Math.min(last, at + 1);
    case "ArrowLeft":
    case "PageUp":
      return Math.max(0, at - 1);
    case "Home":
      return 0;
    case "End":
      return last;
    default:
      return null;
  }
}

export function lectureCsv(example: LectureExample): string {
  return table(
    ["example", "step", "row", "column", "recomputed", "printed", "verdict"],
    example.steps.flatMap((step) =>
      step.value.flatMap((row, r) =>
        row.map((value, c) => {
          const printed = step.printed?.[r]?.[c];
          const verdictHere = printed === undefined ? "" : (markOf(step, r, c) ?? "right");
          return [example.id, step.name, r + 1, c + 1, value ?? "-inf", printed ?? "", verdictHere];
        }),
      ),
    ),
  );
}

/** The whole example as an SVG document: each step's name, formula and numbers, printed beside recomputed. */
export function lectureSvg(example: LectureExample): string {
  const [line, letter] = [20, 7.4];
  const parts: string[] = [];
  let y = 30;
  let widest = [...example.title].length * 9;
  const write = (x: number, text: string, extra = ""): void => {
    parts.push(`<text x="${x}" y="${y}" xml:space="preserve"${extra}>${escapeXml(text)}</text>`);
    widest = Math.max(widest, x + [...text].length * letter);
  };
  write(16, example.title, ' font-size="16" font-weight="700"');
  for (const step of example.steps) {
    y += 2 * line;
    write(16, `${step.name}  ${step.given ? "given" : `= ${step.formula}`}`, ' font-weight="700"');
    const places = decimals(step.value);
    const ours = step.value.map((row) => row.map((value) => written(value, places)));
    const wide = Math.max(1, ...ours.flat().map((text) => text.length)) + 2;
    const aside = 24 + Math.max(1, ...ours.map((row) => row.length)) * wide * letter + 40;
    ours.forEach((row, r) => {
      y += line;
      row.forEach((text, c) => write(24 + c * wide * letter, text.padStart(wide - 2)));
      step.printed?.[r]?.forEach((value, c) => {
        const fill = markOf(step, r, c) === null ? "#465263" : "#b3261e";
        write(aside + c * 8 * letter, asPrinted(value).padStart(6), ` fill="${fill}"`);
      });
    });
  }
  if (example.erratum !== null) {
    y += 2 * line;
    write(16, `Erratum: ${example.erratum}`, ' fill="#a34d00"');
  }
  const [width, height] = [Math.ceil(widest + 24), y + 24];
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="ui-monospace, monospace" font-size="12" fill="#161c25">` +
    `<rect width="100%" height="100%" fill="#ffffff"/>${parts.join("")}</svg>\n`
  );
}
