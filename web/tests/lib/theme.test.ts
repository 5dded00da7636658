/** Contrast of the page's own colours, read from the style sheet: AA for text, 3 : 1 for borders of fields. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { contrast, rgb } from "../../src/lib/colour";

const sheet = readFileSync(join(import.meta.dirname, "../../src/app.css"), "utf8");

function tokens(theme: string): Record<string, string> {
  const block = sheet.split(`:root[data-theme="${theme}"] {`)[1]!.split("}")[0]!;
  return Object.fromEntries(
    [...block.matchAll(/--([a-z-]+): (#[0-9a-f]{6});/g)].map((found) => [found[1], found[2]]),
  );
}

test.each(["light", "dark"])("text is readable on every ground (%s)", (theme) => {
  const colour = tokens(theme);
  const pair = (ink: string, ground: string): number => contrast(rgb(colour[ink]!), rgb(colour[ground]!));
  for (const ground of ["paper", "surface", "sunken", "accent-soft", "warm-soft"])
    for (const ink of ["ink", "ink-soft", "ink-faint"])
      expect([ink, ground, pair(ink, ground) >= 4.5]).toEqual([ink, ground, true]);
  for (const ground of ["paper", "surface"])
    for (const ink of ["accent", "bad", "good", "warm"])
      expect([ink, ground, pair(ink, ground) >= 4.5]).toEqual([ink, ground, true]);
  expect(pair("on-accent", "accent")).toBeGreaterThanOrEqual(4.5);
  expect(pair("line-strong", "surface")).toBeGreaterThanOrEqual(3);
});
