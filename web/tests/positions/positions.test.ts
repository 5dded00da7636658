import { describe, expect, it } from "vitest";
import {
  ALONE,
  chosenPair,
  groups,
  labelOf,
  oriented,
  positionsCsv,
  SCHEMES,
  someWaves,
  symmetric,
  waveSeries,
} from "../../src/positions/schemes";

describe("schemes", () => {
  it("each stand in one group", () => {
    expect(groups().flatMap(({ schemes }) => schemes)).toHaveLength(SCHEMES.length);
    expect(new Set(SCHEMES.map(({ name }) => name)).size).toBe(SCHEMES.length);
    expect(labelOf("t5")).toBe("T5 bias");
    expect(labelOf("new")).toBe("new");
  });

  it("at first are the model's own and another", () => {
    expect(chosenPair(undefined, undefined, "rotary")).toEqual(["rotary", "sinusoidal"]);
    expect(chosenPair(undefined, undefined, "sinusoidal")).toEqual(["sinusoidal", "rotary"]);
    expect(chosenPair("alibi", "t5", "rotary")).toEqual(["alibi", "t5"]);
    expect(chosenPair("alibi", ALONE, "rotary")).toEqual(["alibi", null]);
    expect(chosenPair("nonsense", "nonsense", "rotary")).toEqual(["rotary", "sinusoidal"]);
  });
});

describe("waves", () => {
  const waves = Array.from({ length: 64 }, (_, index) => ({ index, values: [index, index + 1] }));

  it("keep the fastest and the slowest when there are many", () => {
    const some = someWaves(waves);
    expect(some).toHaveLength(6);
    expect([some[0]?.index, some.at(-1)?.index]).toEqual([0, 63]);
    expect(someWaves(waves.slice(0, 3))).toHaveLength(3);
  });

  it("become lines over the positions", () => {
    expect(waveSeries(waves.slice(1, 2))).toEqual([
      {
        name: "feature 1",
        points: [
          [0, 1],
          [1, 2],
        ],
      },
    ]);
  });
});

describe("colours", () => {
  it("have 0 in the middle, and do not mind −∞", () => {
    expect(symmetric(Float32Array.from([-3, 1, -Infinity]))).toEqual([-3, 3]);
    expect(symmetric(new Float32Array(2))).toEqual([-1, 1]);
  });
});

describe("export", () => {
  it("says of each number where it stands", () => {
    const lines = positionsCsv([
      {
        name: "alibi",
        table: null,
        similarity: { distances: [0, 1], values: [0, -0.5] },
        bias: { values: Float32Array.from([0, -1, -1, 0, 0, -2, -2, 0]), heads: 2, positions: 2 },
      },
    ]).split("\r\n");
    expect(lines[2]).toBe("alibi,bias,0,0,1,-1");
    expect(lines[7]).toBe("alibi,bias,1,1,0,-2");
    expect(lines[10]).toBe("alibi,similarity,,1,,-0.5");
  });
});

describe("a table", () => {
  it("lies on its side when it has few features", () => {
    const { values, rows, columns, turned } = oriented(Float32Array.from([1, 2, 3, 4, 5, 6]), [3, 2]);
    expect([turned, rows, columns, [...values]]).toEqual([true, 2, 3, [1, 3, 5, 2, 4, 6]]);
  });

  it("stands otherwise, untouched", () => {
    const values = new Float32Array(3 * 16);
    expect(oriented(values, [3, 16])).toEqual({ values, rows: 3, columns: 16, turned: false });
  });
});
