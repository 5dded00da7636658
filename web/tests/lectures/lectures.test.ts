import { describe, expect, it } from "vitest";
import {
  asPrinted,
  counted,
  decimals,
  lectureCsv,
  markOf,
  verdict,
  walked,
  written,
} from "../../src/lectures/steps";
import type { LectureStep } from "../../src/lib/api";

const softmax: LectureStep = {
  name: "S",
  formula: "softmax(KᵀQ/√2)",
  given: false,
  value: [
    [0.2483, 0.1978],
    [0.5035, 0.4011],
  ],
  printed: [
    [0.248, 0],
    [0.503, 0.5],
  ],
  wrong: [[0, 1]],
  marks: [
    { row: 0, column: 1, mark: "wrong" },
    { row: 1, column: 1, mark: "truncated" },
  ],
  rows: [],
  columns: [],
  note: "",
};
const plain: LectureStep = {
  name: "Q",
  formula: "W X",
  given: false,
  value: [[1, 0]],
  printed: [[1, 0]],
  wrong: [],
  marks: [],
  rows: [],
  columns: [],
  note: "",
};

describe("numbers", () => {
  it("are written with as many decimals as they need, up to four", () => {
    expect(decimals([[1, 2]])).toBe(0);
    expect(decimals([[1.5, 2], [0.25]])).toBe(2);
    expect(decimals([[1 / 3]])).toBe(4);
    expect(decimals([[null]])).toBe(0);
  });

  it("show −∞ where a mask stands, and no minus zero", () => {
    expect(written(null, 2)).toBe("−∞");
    expect(written(-0.0001, 2)).toBe("0.00");
    expect(written(-1.5, 2)).toBe("−1.50");
    expect(asPrinted(0.5)).toBe("0.5");
    expect(asPrinted(-0.66)).toBe("−0.66");
    expect(asPrinted("0.50")).toBe("0.50"); // the zero that the slide prints
  });
});

describe("marks", () => {
  it("tell wrong from badly rounded from right", () => {
    expect(markOf(softmax, 0, 0)).toBeNull();
    expect(markOf(softmax, 0, 1)).toBe("wrong");
    expect(markOf(softmax, 1, 1)).toBe("truncated");
    expect(counted([softmax, plain])).toEqual({ printed: 6, wrong: 1, rounding: 1 });
  });

  it("become a sentence", () => {
    expect(verdict(plain)).toBe("All 2 printed numbers are right.");
    expect(verdict({ ...plain, printed: null })).toBe("The slide gives no numbers here.");
    expect(verdict({ ...plain, given: true })).toBe("Given by the slide.");
    expect(verdict(softmax)).toBe(
      "1 of 4 printed numbers wrong; 1 off in the last digit, or truncated instead of rounded.",
    );
  });
});

describe("walking", () => {
  it("stays between the first and the last step", () => {
    expect(walked("ArrowRight", 0, 3)).toBe(1);
    expect(walked("ArrowRight", 2, 3)).toBe(2);
    expect(walked("ArrowLeft", 0, 3)).toBe(0);
    expect(walked("End", 0, 3)).toBe(2);
    expect(walked("a", 1, 3)).toBeNull();
  });
});

describe("export", () => {
  it("sets printed beside recomputed", () => {
    const words = { title: "", deck: "", note: "", question: "", answer: "" };
    const example = { id: "e", ...words, steps: [softmax], erratum: null, erratum_at: null };
    const lines = lectureCsv(example).split("\r\n");
    expect(lines[1]).toBe("e,S,1,1,0.2483,0.248,right");
    expect(lines[2]).toBe("e,S,1,2,0.1978,0,wrong");
  });
});
