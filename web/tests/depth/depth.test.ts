import { describe, expect, it } from "vitest";
import {
  normsCsv,
  pageOf,
  readingsCsv,
  relative,
  rowMeans,
  settled,
  type Reading,
} from "../../src/depth/layout";

const guess = (id: number, p = 0.5) => ({ id, text: `w${id}`, p });
const readings: Reading[] = [
  { after: "embedding", top: [[guess(1)], [guess(7)], [guess(3)]] },
  { after: "layer 1", top: [[guess(1)], [guess(2)], [guess(9)]] },
  { after: "layer 2", top: [[guess(1)], [guess(2)], [guess(3)]] },
];

describe("settled", () => {
  it("is the first reading from which the answer no longer changes", () => {
    expect(settled(readings, [1, 2, 3])).toEqual([0, 1, 2]);
  });

  it("does not count a right guess that was given up again, nor one never made", () => {
    expect(settled(readings, [1, 7, 4])).toEqual([0, -1, -1]);
  });
});

describe("norms", () => {
  const norms = Float32Array.from([1, 2, 3, 4]);
  const stream = Float32Array.from([2, 0, 6, 2, 9, 9]);

  it("measures a contribution against what it is added to", () => {
    expect([...relative(norms, stream, 2, 2)]).toEqual([0.5, 0, 0.5, 2]);
  });

  it("takes the mean over positions", () => {
    expect(rowMeans(norms, 2, 2)).toEqual([1.5, 3.5]);
    expect(rowMeans(new Float32Array(), 1, 0)).toEqual([0]);
  });

  it("exports the stream before and after", () => {
    const lines = normsCsv(["attention", "feed-forward"], ["a", "b"], norms, stream).split("\r\n");
    expect(lines[1]).toBe("attention,0,a,1,2,6");
    expect(lines[4]).toBe("feed-forward,1,b,4,2,9");
  });
});

describe("pages", () => {
  it("show the picked position, whole pages at a time", () => {
    expect(pageOf(5, 24, 10)).toEqual({ from: 0, to: 10 });
    expect(pageOf(25, 24, 100)).toEqual({ from: 24, to: 48 });
    expect(pageOf(999, 24, 100)).toEqual({ from: 96, to: 100 });
    expect(pageOf(-3, 24, 100)).toEqual({ from: 0, to: 24 });
  });
});

describe("export", () => {
  it("ranks the guesses", () => {
    const text = readingsCsv([{ after: "layer 1", top: [[guess(1, 0.75), guess(2, 0.25)]] }], ["le"]);
    expect(text.split("\r\n").slice(1, 3)).toEqual(["layer 1,0,le,1,w1,0.75", "layer 1,0,le,2,w2,0.25"]);
  });
});
