/** Numbers for axes and tables of facts: few digits, no tail of zeros, powers of ten raised. */
import { count } from "../lib/format";

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** 3.3e18 → "3.3 × 10¹⁸". */
export function powerOfTen(value: number, digits = 2): string {
  if (value === 0) return "0";
  const [mantissa = "", exponent = "0"] = value.toExponential(digits - 1).split("e");
  const raised = String(Math.abs(Number(exponent))).replace(/\d/g, (digit) => RAISED[Number(digit)] ?? "");
  return `${mantissa.replace("-", "−")} × 10${Number(exponent) < 0 ? "⁻" : ""}${raised}`;
}

/** So many significant digits, without a tail of zeros; very large and very small as a power of ten. */
export function short(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  if (size === Infinity) return `${sign}∞`;
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return powerOfTen(value, digits);
  if (Number.isInteger(value) || size >= 10 ** digits) return sign + count(size);
  return sign + String(Number(size.toPrecision(digits)));
}
