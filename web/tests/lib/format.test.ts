import { expect, test } from "vitest";
import {
  brief, cell, count, decimal, figure, large, percent, settled, shapeText, shortest,
} from "../../src/lib/format"; // prettier-ignore

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
  expect(brief(1e-5)).toBe("1.0e−5");
  expect(brief(-Infinity)).toBe("−∞");
});

test("what is only rounding error is written 0, everywhere it is not the model's own number", () => {
  expect([brief(-7.7e-11), figure(-7.7e-11), figure(-0)]).toEqual(["0", "0", "0"]);
  expect([percent(-7.7e-11), decimal(-7.7e-11)]).toEqual(["0.0 %", "0.00"]);
  // beside numbers as small as it is, it is a number; a chance may be tiny and exact
  expect([brief(-7.7e-11, 1e-10), brief(1e-20, 0)]).toEqual(["−7.7e−11", "1.0e−20"]);
  expect([settled(2e-6), settled(2e-6, 100), settled(NaN)]).toEqual([2e-6, 0, NaN]);
  expect([figure(-0.5), figure(-Infinity)]).toEqual(["−0.5", "−∞"]);
  expect(shortest(Math.fround(-7.7e-11))).toBe("−7.7e−11"); // a tensor's cell stays exact
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
