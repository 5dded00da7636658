/**
 * Numbers as text: exactly (what the model has) or briefly (what fits). No rounding of the numbers themselves.
 *
 * Figures that were computed from the model's numbers carry their rounding error: `settled` is the one place that
 * says how large that is, and everything brief goes through it.
 */

const MINUS = "−";

/** float32 has about seven digits: beside numbers of size 1, what is below a part in a million is rounding error. */
export const ROUNDING = 2 ** -20;

/** The number, or 0 where it is no more than rounding error beside numbers of size `beside`. */
export function settled(value: number, beside = 1): number {
  return Math.abs(value) < ROUNDING * beside ? 0 : value;
}

function withMinus(text: string): string {
  return text.replaceAll("-", MINUS);
}

/** The shortest decimal that is this float32 again when read back: "0.1", not "0.10000000149011612". */
export function shortest(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const single = Math.fround(value);
  for (let digits = 1; digits <= 9; digits++) {
    const written = Number(single.toPrecision(digits));
    if (Math.fround(written) === single) return withMinus(String(written));
  }
  return withMinus(String(single));
}

/** A computed figure (log-probability, score): all its digits, but 0 where it is only rounding error. */
export function figure(value: number): string {
  return shortest(settled(value));
}

/**
 * About three significant digits, for places with little room. `beside`: the size of the numbers it is computed from
 * or shown with, whose rounding error is written 0; with 0, nothing is (chances, which may be tiny and exact).
 */
export function brief(value: number, beside = 1): string {
  if (!Number.isFinite(value)) return shortest(value);
  if (settled(value, beside) === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return withMinus(value.toExponential(1));
  const places = Math.max(0, 2 - Math.floor(Math.log10(size)));
  return withMinus(value.toFixed(Math.min(places, 6)));
}

/** A number for a cell of a table: always the same number of decimals, so that columns align. */
export function decimal(value: number, places = 2): string {
  if (!Number.isFinite(value)) return shortest(value);
  const written = value.toFixed(places);
  return withMinus(Number(written) === 0 ? written.replace("-", "") : written);
}

/**
 * A number for a cell of a heat map: six signs at most. `whole`: all of the map's numbers are whole, and are
 * written without a point; among others only an exact 0 is.
 */
export function cell(value: number, whole = true): string {
  if (!Number.isFinite(value)) return shortest(value);
  const size = Math.abs(value);
  if (size >= 99999.5) return withMinus(value.toExponential(0).replace("+", ""));
  if (value === 0 || (whole && Number.isInteger(value))) return withMinus(String(value));
  return decimal(value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3);
}

/** 0.1234 as "12.3 %"; below a thousandth as "< 0.1 %". */
export function percent(p: number): string {
  if (p > 0 && p < 0.0005) return "< 0.1 %";
  return `${decimal(100 * p, 1)} %`;
}

/** 1234567 as "1 234 567" with thin spaces. */
export function count(n: number): string {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** 61234567 as "61.2 M". */
export function large(n: number): string {
  for (const [unit, size] of [
    ["T", 1e12],
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ] as const)
    if (Math.abs(n) >= size) return `${(n / size).toPrecision(3)} ${unit}`;
  return count(n);
}

/** [2, 7, 64] as "2 × 7 × 64". */
export function shapeText(shape: readonly number[]): string {
  return shape.join(" × ");
}
