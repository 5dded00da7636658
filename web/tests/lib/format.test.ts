import { expect, test } from "vitest";
import { brief, cell, count, decimal, large, percent, shapeText, shortest } from "../../src/lib/format";

test("the shortest decimal reads back as the same float32", () => {
  let seed = 1;
  const random = (): number => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let i = 0; i < 3000; i++) {
    const value = Math.fround((random() - 0.5) * 10 ** Math.round(60 * random() - 30));
    expect(Math.fround(Number(shortest(value).replaceAll("−", "-")))).toBe(value);
  }
  expect(shortest(Math.fround(0.1))).toBe("0.1");
  expect(shortest(-1.5)).toBe("−1.5");
  expect([shortest(Infinity), shortest(-Infinity), shortest(NaN)]).toEqual(["∞", "−∞", "NaN"]);
});

test("brief numbers keep about three digits", () => {
  expect([0, 0.5, 12.345, 1234.5, -0.01234].map((value) => brief(value))).toEqual([
    "0",
    "0.500",
    "12.3",
    "1235",
    "−0.0123",
  ]);
  expect(brief(1e-7)).toBe("1.0e−7");
  expect(brief(-Infinity)).toBe("−∞");
});

test("numbers in cells are short, whatever they are", () => {
  const values = [
    0, 1, -1, 0.5, -0.9999, 0.99996, 9.999, -12.345, 123.4, -4567.8, 99999.4, 1e5, -3e38, 1e-9, -1e-9, 2141,
  ];
  expect(values.map((value) => cell(value))).toEqual([
    "0",
    "1",
    "−1",
    "0.500",
    "−1.00",
    "1.00",
    "10.0",
    "−12.3",
    "123",
    "−4568",
    "99999",
    "1e5",
    "−3e38",
    "0.000",
    "0.000",
    "2141",
  ]);
  expect([0, 1, -2, 0.25].map((value) => cell(value, false))).toEqual(["0", "1.00", "−2.00", "0.250"]);
  for (let e = -9; e < 38; e += 0.1) expect(cell(-(10 ** e)).length).toBeLessThanOrEqual(6);
});

test("other ways to write a number", () => {
  expect([decimal(-0.001), decimal(-1.238, 2), decimal(NaN)]).toEqual(["0.00", "−1.24", "NaN"]);
  expect([percent(0), percent(0.0001), percent(0.12345), percent(1)]).toEqual([
    "0.0 %",
    "< 0.1 %",
    "12.3 %",
    "100.0 %",
  ]);
  expect(count(1234567)).toBe("1\u202f234\u202f567");
  expect([large(950), large(944640), large(61e6)]).toEqual(["950", "945 k", "61.0 M"]);
  expect(shapeText([2, 7])).toBe("2 × 7");
});
