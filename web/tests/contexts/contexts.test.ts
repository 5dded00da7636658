import { describe, expect, it } from "vitest";
import { defaults, fromExamples, joined, problem, split } from "../../src/contexts/defaults";
import {
  betweenSeries,
  contextsCsv,
  scatter,
  spellingsText,
  staticSeries,
} from "../../src/contexts/geometry";

describe("defaults", () => {
  it("takes a telling word that stands in several examples", () => {
    const choice = fromExamples([
      "Where is the station?",
      "The station is near the river.",
      "I see the cat.",
      "The old station was red.",
    ]);
    expect(choice?.word).toBe("station");
    expect(choice?.sentences).toHaveLength(3);
  });

  it("prefers “it” where the model's own sentences use it", () => {
    const choice = defaults([
      "The cat sleeps because it is tired.",
      "He sees the car and buys it.",
      "The cat.",
    ]);
    expect(choice.word).toBe("it");
    expect(problem(choice)).toBeNull();
    expect(defaults(["A bit of it.", "The bits of the kit."]).word).not.toBe("it");
  });

  it("falls back on the lectures' apple", () => {
    expect(defaults([]).word).toBe("apple");
    expect(problem(defaults([]))).toBeNull();
  });

  it("keeps sentences through the address and back", () => {
    const sentences = ["one  apple", " two apples\t"];
    expect(split(joined(sentences))).toEqual(["one apple", "two apples"]);
    expect(split("a\r\n\n  \nb")).toEqual(["a", "b"]);
    expect(split(Array.from({ length: 40 }, (_, i) => `s${i}`).join("\n"))).toHaveLength(12);
  });

  it("says what is missing", () => {
    expect(problem({ word: " ", sentences: ["a", "b"] })).toContain("Type the word");
    expect(problem({ word: "a", sentences: ["a"] })).toContain("at least 2");
    expect(problem({ word: "cat", sentences: ["a Cat", "a dog"] })).toContain("“a dog”");
    expect(problem({ word: "cat", sentences: ["a Cat", "cats"] })).toBeNull();
  });
});

describe("series", () => {
  it("reads (layers, occurrences) column by column", () => {
    const [first, second] = staticSeries(Float32Array.from([1, 0.5, 0.25, 0.75]), 2, ["a", "b"]);
    expect(first?.points).toEqual([
      [0, 1],
      [1, 0.25],
    ]);
    expect(second?.points).toEqual([
      [0, 0.5],
      [1, 0.75],
    ]);
  });

  it("leaves a word's likeness with itself out of the mean", () => {
    const between = Float32Array.from([1, 0.5, 0, 0.5, 1, 0.25, 0, 0.25, 1]);
    const [most, mean, least] = betweenSeries(between, 1, [0, 0, 0]);
    expect(most?.points).toEqual([[0, 0.5]]);
    expect(mean?.points).toEqual([[0, 0.25]]);
    expect(least?.points).toEqual([[0, 0]]);
  });

  it("compares only occurrences that are the same tokens, and says which are", () => {
    const between = Float32Array.from([1, 0.5, 0, 0.5, 1, 0.25, 0, 0.25, 1]);
    expect(betweenSeries(between, 1, [0, 1, 0]).map((line) => line.points)).toEqual([
      [[0, 0]],
      [[0, 0]],
      [[0, 0]],
    ]);
    expect(betweenSeries(between, 1, [0, 1, 2])).toEqual([]);
    const token = (text: string, id: number) => ({ id, text, kind: "word" as const });
    const tokens = [[token("apple", 7)], [token("A", 3), token("pple", 4)]];
    const text = spellingsText("apple", tokens, [0, 1, 0]);
    expect(text).toContain("a (“apple” 7) in sentences 1, 3; b (“A” 3 + “pple” 4) in sentence 2.");
    expect(spellingsText("apple", tokens.slice(0, 1), [0, 0])).toBe("");
  });
});

describe("scatter", () => {
  const projection = Float32Array.from([0, 0, 3, 4, -3, -4]);

  it("keeps distances in proportion, and the points in the box", () => {
    const dots = scatter(projection, 0, 3, 400, 300);
    const [a, b, c] = dots;
    if (!a || !b || !c) throw new Error("three dots expected");
    expect(Math.hypot(b.x - a.x, b.y - a.y)).toBeCloseTo(Math.hypot(c.x - a.x, c.y - a.y), 6);
    expect((a.y - b.y) / (b.x - a.x)).toBeCloseTo(4 / 3, 6);
    for (const dot of dots) {
      expect(dot.x).toBeGreaterThanOrEqual(0);
      expect(dot.x).toBeLessThanOrEqual(400);
      expect(dot.y).toBeGreaterThanOrEqual(0);
      expect(dot.y).toBeLessThanOrEqual(300);
    }
  });

  it("pulls the labels of equal points apart", () => {
    const dots = scatter(new Float32Array(12), 0, 6, 400, 300);
    const heights = dots.map((dot) => dot.labelY).sort((a, b) => a - b);
    for (let i = 1; i < heights.length; i++) {
      expect((heights[i] ?? 0) - (heights[i - 1] ?? 0)).toBeGreaterThanOrEqual(15.9);
    }
    expect(dots.every((dot) => Number.isFinite(dot.x) && Number.isFinite(dot.y))).toBe(true);
  });
});

describe("export", () => {
  it("has a line for each layer and sentence", () => {
    const text = contextsCsv(
      ["embedding"],
      ["a", "b"],
      [0, 1],
      Float32Array.from([1, 0.5]),
      Float32Array.from([1, 0.25, 0.25, 1]),
      Float32Array.from([1, 2, 3, 4]),
    );
    expect(text.split("\r\n")).toEqual([
      "layer,sentence,spelling,static_cosine,x,y,cosine_with_1,cosine_with_2",
      "embedding,a,a,1,1,2,1,0.25",
      "embedding,b,b,0.5,3,4,0.25,1",
      "",
    ]);
  });
});
