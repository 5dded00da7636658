import { expect, test } from "vitest";
import type { ClassVerdict } from "../../src/lib/api";
import {
  carried, classesCsv, classesSvg, effectOf, ordered, partsCsv, partsSvg, reach, shownClasses, tagsCsv,
} from "../../src/run/verdict"; // prettier-ignore

const FOUND: ClassVerdict = {
  kind: "classify",
  label: "good",
  classes: [
    { label: "good", p: 0.9 },
    { label: "bad", p: 0.1 },
  ],
  parts: [
    { text: "a", support: -7.7e-11, p: 0.9, label: "good" },
    { text: "great", support: 2, p: 0.12, label: "bad" },
    { text: "<film>", support: -0.5, p: 0.95, label: "good" },
  ],
  together: 1,
};

test("bars go to both sides, against the largest, and rounding error has none", () => {
  expect(reach(FOUND.parts)).toEqual([0, 1, -0.25]);
  expect(reach([{ text: "x", support: null, p: null, label: null }])).toEqual([0]);
  expect(FOUND.parts.map(effectOf)).toEqual(["no effect", "for it, 2.00", "against it, −0.500"]);
});

test("words stand in the text's order, or what speaks most for the label first", () => {
  expect(ordered(FOUND.parts, "text")).toEqual([0, 1, 2]);
  expect(ordered(FOUND.parts, "support")).toEqual([1, 0, 2]);
});

test("what carried it is a sentence, also where nothing did", () => {
  expect(carried(FOUND)).toBe(
    "“great” matters most: without it, the probability of “good” falls from 90.0 % to 12.0 %, and “bad” wins.",
  );
  expect(carried({ ...FOUND, parts: [FOUND.parts[0]!, FOUND.parts[2]!] })).toContain(
    "depends on no single word",
  );
  const alone = { text: "x", support: null, p: null, label: null };
  expect(carried({ ...FOUND, parts: [alone] })).toContain("only one word");
});

test("many classes are shown as the likeliest and the rest together", () => {
  const many = Array.from({ length: 40 }, (_, i) => ({ label: `c${i}`, p: 1 / 40 }));
  const shown = shownClasses(many, 12);
  expect(shown).toHaveLength(12);
  expect(shown.at(-1)?.label).toBe("29 others together");
  expect(shown.reduce((sum, { p }) => sum + p, 0)).toBeCloseTo(1, 9);
  expect(shownClasses(FOUND.classes)).toBe(FOUND.classes);
});

test("what is saved holds all of it", () => {
  expect(classesCsv(FOUND.classes)).toBe("class,probability\r\ngood,0.9\r\nbad,0.1\r\n");
  expect(partsCsv(FOUND).split("\r\n")[2]).toBe("1,great,2,0.12,bad");
  const tags = {
    kind: "tag" as const,
    words: [{ text: "I", tag: "PRON", top: [{ label: "PRON", p: 0.5 }] }],
  };
  expect(tagsCsv(tags)).toBe("position,word,tag,probability\r\n0,I,PRON,0.5\r\n");
  for (const svg of [classesSvg(FOUND.classes, "t"), partsSvg(FOUND, "t")])
    expect(new DOMParser().parseFromString(svg, "image/svg+xml").querySelector("parsererror")).toBeNull();
  expect(partsSvg(FOUND, "t")).toContain("&lt;film&gt;");
});
