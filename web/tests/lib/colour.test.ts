import { expect, test } from "vitest";
import {
  contrast,
  domainOf,
  inkOn,
  luminance,
  rgb,
  scale,
  series,
  type Rgb,
  type Theme,
} from "../../src/lib/colour";

const THEMES: Theme[] = ["light", "dark"];
const steps = Array.from({ length: 101 }, (_, i) => i / 100);

/** How a colour looks without the green or the red receptors (Viénot, Brettel and Mollon 1999), linear light. */
function without([r, g, b]: Rgb): Rgb {
  const linear = [r, g, b].map((c) => (c / 255) ** 2.2) as [number, number, number];
  const yellow = 0.29275 * linear[0] + 0.70725 * linear[1];
  const blue = -0.02234 * linear[0] + 0.02234 * linear[1] + linear[2];
  const back = (c: number): number => 255 * Math.max(0, Math.min(1, c)) ** (1 / 2.2);
  return [back(yellow), back(yellow), back(blue)];
}

test.each(THEMES)(
  "the sequential scale gets steadily darker or lighter (%s), for every kind of eye",
  (theme) => {
    for (const seen of [(c: Rgb) => c, without]) {
      const light = steps.map((t) => luminance(seen(scale("sequential", theme, [0, 1])(t))));
      const sign = theme === "light" ? -1 : 1;
      for (let i = 1; i < light.length; i++) expect(sign * (light[i]! - light[i - 1]!)).toBeGreaterThan(0);
    }
  },
);

test.each(THEMES)(
  "the diverging scale grows away from 0 on both sides (%s), and its sides differ",
  (theme) => {
    const colour = scale("diverging", theme, [-1, 1]);
    const ground = luminance(colour(0));
    for (const side of [-1, 1]) {
      const away = steps.map((t) => Math.abs(luminance(colour(side * t)) - ground));
      for (let i = 1; i < away.length; i++) expect(away[i]!).toBeGreaterThanOrEqual(away[i - 1]!);
    }
    // blue against orange: told apart by blueness, which all but very few people see
    const [low, high] = [without(colour(-0.5)), without(colour(0.5))];
    expect(low[2] - low[0]).toBeGreaterThan(25);
    expect(high[0] - high[2]).toBeGreaterThan(25);
  },
);

test("numbers on any cell are readable (AA)", () => {
  for (const theme of THEMES)
    for (const name of ["sequential", "diverging"] as const)
      for (const t of steps) {
        const ground = scale(name, theme, [0, 1])(t);
        expect(contrast(ground, inkOn(ground))).toBeGreaterThanOrEqual(4.5);
      }
});

test("series stand out from the page (3 : 1)", () => {
  for (const [theme, ground] of [
    ["light", "#ffffff"],
    ["dark", "#161a21"],
  ] as const)
    for (let i = 0; i < 8; i++)
      expect(contrast(rgb(series(i, theme)), rgb(ground))).toBeGreaterThanOrEqual(3);
});

test("values outside are put to the ends, and what is no number is grey", () => {
  const colour = scale("sequential", "light", [0, 1]);
  expect(colour(-5)).toEqual(colour(0));
  expect(colour(7)).toEqual(colour(1));
  const [r, g, b] = colour(-Infinity);
  expect(Math.max(r, g, b) - Math.min(r, g, b)).toBeLessThan(10);
});

test("a domain spans what is finite", () => {
  expect(domainOf([1, -Infinity, 3, NaN], "sequential")).toEqual([1, 3]);
  expect(domainOf([1, -4], "diverging")).toEqual([-4, 4]);
  expect(domainOf([NaN], "sequential")).toEqual([0, 1]);
  expect(domainOf([2, 2], "sequential")).toEqual([0, 2]);
  expect(domainOf([0, 0], "diverging")).toEqual([-1, 1]);
});

test("contrast is WCAG's", () => {
  expect(contrast(rgb("#ffffff"), rgb("#000000"))).toBeCloseTo(21, 5);
  expect(contrast(rgb("#777777"), rgb("#ffffff"))).toBeCloseTo(4.48, 2);
});
