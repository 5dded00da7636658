/**
 * A training log made drawable: which curves there are, what the run has come to, what was
 * written when, and the FLOPs spent beside those of the lectures' table.
 */

import { table } from "../charts/csv";
import { powerOfTen, short } from "../charts/figures";
import type { Series } from "../charts/plot";
import type { LogRow, TrainingAnswer } from "../lib/api";
import { count } from "../lib/format";

export type Curves = TrainingAnswer["curves"];

const NAMES: Record<string, string> = {
  loss: "Loss",
  perplexity: "Perplexity",
  bleu: "BLEU",
  chrf: "chrF",
  accuracy: "Accuracy",
  token_accuracy: "Token accuracy",
  rate: "Learning rate",
  gradient_norm: "Gradient norm",
  flops: "FLOPs spent",
};

const FIRST = ["loss", "perplexity", "bleu", "chrf", "accuracy", "rate", "gradient_norm", "flops"];
const NOT_CURVES = new Set(["step", "epoch", "skipped", "labels", "at", "seconds", "best"]);

export function nameOf(key: string): string {
  return NAMES[key] ?? (key.charAt(0).toUpperCase() + key.slice(1)).replaceAll("_", " ");
}

/** Everything in the log that is a number at two steps or more (or one, in validation), the usual first. */
export function measures(curves: Curves): string[] {
  const found = new Set<string>();
  for (const row of [...curves.train, ...curves.validation]) {
    for (const [key, value] of Object.entries(row)) {
      if (typeof value === "number" && !NOT_CURVES.has(key)) found.add(key);
    }
  }
  const place = (key: string): number => (FIRST.includes(key) ? FIRST.indexOf(key) : FIRST.length);
  return [...found].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

/** The training and the validation line of one measure; a line without points is left out. */
export function series(curves: Curves, key: string): Series[] {
  const points = (rows: LogRow[]) =>
    rows.flatMap((row) => (typeof row[key] === "number" ? [[row.step, row[key]] as const] : []));
  const both: Series[] = [
    { name: "training", points: points(curves.train) },
    { name: "validation", points: points(curves.validation), dots: true },
  ];
  return both.filter((one) => one.points.length > 0);
}

/** What the run has come to, as label and value. */
export function headline(curves: Curves): { label: string; value: string }[] {
  const out: { label: string; value: string }[] = [];
  const last = curves.train.at(-1);
  const seen = curves.validation.at(-1);
  if (last) {
    out.push({ label: "Step", value: count(last.step) });
    if (typeof last["loss"] === "number") out.push({ label: "Training loss", value: short(last["loss"]) });
  }
  for (const key of seen ? ["loss", "perplexity", "bleu", "chrf", "accuracy"] : []) {
    const value = seen?.[key];
    const name = nameOf(key);
    const inside = /^[A-Z][a-z]/.test(name) ? name.toLowerCase() : name; // "BLEU" and "chrF" stay as they are
    if (typeof value === "number") out.push({ label: `Validation ${inside}`, value: short(value) });
  }
  return out;
}

export interface FlopsBar {
  name: string;
  flops: number;
  text: string;
  /** Length on a logarithmic scale, 0 … 1. */
  share: number;
  own: boolean;
}

export interface FlopsTick {
  label: string;
  share: number;
}

const OWN = "this model"; // the name under which the server sets the run among the table's rows

/** This run and the table's, smallest first, on one logarithmic scale: they lie many powers of ten apart. */
export function flopsBars(spent: number | null, table: { name: string; flops: number }[]): FlopsBar[] {
  const others = table.filter((row) => row.name !== OWN).map((row) => ({ ...row, own: false }));
  const rows = [...others, { name: "This run", flops: spent ?? 0, own: true }]
    .filter((row) => row.flops > 0)
    .sort((a, b) => a.flops - b.flops);
  const share = logScale(rows.map((row) => row.flops));
  return rows.map((row) => ({ ...row, text: powerOfTen(row.flops), share: share(row.flops) }));
}

/** From a power of ten below the smallest to the largest, as 0 … 1. */
function logScale(flops: number[]): ((value: number) => number) & { low: number; high: number } {
  const logs = flops.map(Math.log10);
  const low = Math.floor(Math.min(...logs)) - 1;
  const high = Math.max(...logs);
  const share = (value: number): number => (high > low ? (Math.log10(value) - low) / (high - low) : 1);
  return Object.assign(share, { low, high });
}

/** The powers of ten along the bars, at most `most` of them: without them a logarithmic scale cannot be read. */
export function flopsTicks(bars: FlopsBar[], most = 6): FlopsTick[] {
  if (bars.length === 0) return [];
  const share = logScale(bars.map((bar) => bar.flops));
  const every = Math.max(1, Math.ceil((share.high - share.low) / most));
  const ticks: FlopsTick[] = [];
  for (let power = share.low; power <= share.high; power += every)
    ticks.push({ label: powerOfTen(10 ** power, 1).replace("1 × ", ""), share: share(10 ** power) });
  return ticks;
}

/** How many runs like this one the named row is worth, in words. */
export function compared(spent: number | null, other: { name: string; flops: number }): string {
  if (spent === null || spent <= 0) return "";
  const times = other.flops / spent;
  const say = (ratio: number): string => (ratio >= 10_000 ? powerOfTen(ratio) : short(ratio, 2));
  if (times >= 1) return `${other.name} took ${say(times)} times as much as this run.`;
  return `This run took ${say(1 / times)} times as much as ${other.name}.`;
}

export interface Sample {
  step: number;
  source: string;
  written: string;
  reference: string;
}

/** The samples of one source through time, sources in order of appearance. */
export function bySource(
  samples: Sample[],
): { source: string; reference: string; written: { step: number; text: string }[] }[] {
  const found = new Map<
    string,
    { source: string; reference: string; written: { step: number; text: string }[] }
  >();
  for (const sample of samples) {
    const group = found.get(sample.source) ?? {
      source: sample.source,
      reference: sample.reference,
      written: [],
    };
    group.written.push({ step: sample.step, text: sample.written });
    found.set(sample.source, group);
  }
  for (const group of found.values()) group.written.sort((a, b) => a.step - b.step);
  return [...found.values()];
}

export function curvesCsv(curves: Curves): string {
  const keys = measures(curves);
  const lines = (split: string, rows: LogRow[]) =>
    rows.map((row) => [
      split,
      row.step,
      ...keys.map((key) => (typeof row[key] === "number" ? row[key] : null)),
    ]);
  return table(
    ["split", "step", ...keys],
    [...lines("train", curves.train), ...lines("validation", curves.validation)],
  );
}

export function samplesCsv(samples: Sample[]): string {
  return table(
    ["step", "source", "written", "reference"],
    samples.map(({ step, source, written, reference }) => [step, source, written, reference]),
  );
}

export function flopsCsv(spent: number | null, rows: { name: string; flops: number }[]): string {
  return table(
    ["name", "flops"],
    flopsBars(spent, rows).map(({ name, flops }) => [name, flops]),
  );
}

/** A fact as the page writes it: numbers short, everything else as it is. */
export function factText(value: unknown): string {
  return typeof value === "number" ? short(value, 4) : String(value);
}
