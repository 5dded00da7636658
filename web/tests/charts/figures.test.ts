import { describe, expect, it } from "vitest";
import { powerOfTen, short } from "../../src/charts/figures";

describe("short", () => {
  it.each([
    [0, "0"], [1, "1"], [-2, "−2"], [0.123456, "0.123"], [-0.5, "−0.5"], [12.3456, "12.3"],
    [1234.5, "1\u202f235"], [-1500, "−1\u202f500"], [3.3e18, "3.30 × 10¹⁸"], [0.00001234, "1.23 × 10⁻⁵"],
    [Infinity, "∞"], [-Infinity, "−∞"], [NaN, "–"], [null, "–"], [undefined, "–"],
  ])("%s reads %s", (value, text) => {
    expect(short(value)).toBe(text);
  }); // prettier-ignore
});

describe("powerOfTen", () => {
  it("carries when rounding reaches the next power", () => {
    expect(powerOfTen(9.96e18)).toBe("1.0 × 10¹⁹");
    expect(powerOfTen(-2e-12)).toBe("−2.0 × 10⁻¹²");
    expect(powerOfTen(0)).toBe("0");
  });
});
