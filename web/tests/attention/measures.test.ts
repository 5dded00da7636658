import { describe, expect, it } from "vitest";
import { classesCsv, classesSvg, keenest, meaning, spoken, stack } from "../../src/attention/classes";
import { bars, evidenceCsv, evidenceSvg, order } from "../../src/attention/evidence";

const classes = ["special", "punctuation", "neighbours", "others"];
const mass = Float32Array.from([
  0.5,
  0.125,
  0.25,
  0.125,
  0,
  0,
  1,
  0, // layer 1: two heads
  0.25,
  0.25,
  0.25,
  0.25,
  0.75,
  0,
  0,
  0.25, // layer 2
]);

describe("classes", () => {
  it("stacks a head's shares from 0 to 1", () => {
    const segments = stack(mass, classes, 2, 0, 0);
    expect(segments.map(({ from }) => from)).toEqual([0, 0.5, 0.625, 0.875]);
    expect(segments.reduce((sum, { share }) => sum + share, 0)).toBe(1);
    expect(stack(mass, classes, 2, 1, 1)[0]).toEqual({ name: "special", share: 0.75, from: 0 });
  });

  it("speaks of layers and heads from 1", () => {
    expect(spoken(1, 0, stack(mass, classes, 2, 1, 0))).toBe(
      "Layer 2, head 1: special 25.0 %, punctuation 25.0 %, neighbours 25.0 %, others 25.0 %",
    );
    expect(meaning("special")).toContain("stop");
  });

  it("finds the head that gives a class most", () => {
    expect(keenest(mass, 4, 2, 0)).toEqual({ layer: 1, head: 1, share: 0.75 });
    expect(keenest(new Float32Array(), 4, 2, 0)).toBeNull();
  });

  it("exports a line for each head", () => {
    const lines = classesCsv(classes, [{ kind: "encoder.self", mass, layers: 2, heads: 2 }]).split("\r\n");
    expect(lines[0]).toBe("kind,layer,head,special,punctuation,neighbours,others");
    expect(lines[4]).toBe("encoder.self,2,2,0.75,0,0,0.25");
  });
});

describe("the bars as a file", () => {
  it("has a rectangle for each class of each head, the key and the ground", () => {
    const svg = classesSvg(mass, classes, 2, 2, "Self <attention>");
    expect(svg.match(/<rect /g)).toHaveLength(1 + 4 + 2 * 2 * 4);
    expect(svg).toContain("Self &lt;attention&gt;");
    expect(svg).toContain(">neighbours<");
  });
});

describe("evidence", () => {
  const evidence = { weights: [0.1, 0.7, 0.2], gradient: [3, 1, 2], ablated: [0, -0.5, 0.25] };

  it("scales each measure by its own largest, whatever its sign", () => {
    expect(bars(evidence.ablated).map(({ share }) => share)).toEqual([0, 1, 0.5]);
    // where all of it is rounding error, no bar is full
    expect(bars([-7.7e-11, 1e-12, null]).map(({ share }) => share)).toEqual([0, 0, 0]);
    expect(bars(evidence.gradient).map(({ rank }) => rank)).toEqual([1, 3, 2]);
    expect(bars([0, 0]).map(({ share }) => share)).toEqual([0, 0]);
  });

  it("orders by the text or by a measure", () => {
    expect(order(evidence, "text")).toEqual([0, 1, 2]);
    expect(order(evidence, "weights")).toEqual([1, 2, 0]);
    expect(order(evidence, "ablated")).toEqual([1, 2, 0]);
  });

  it("draws no bar for a token that was not tried, and leaves its cell empty", () => {
    expect(bars([null, -2, 1]).map(({ value, share }) => [value, share])).toEqual([
      [null, 0],
      [-2, 1],
      [1, 0.5],
    ]);
    const csv = evidenceCsv(["a"], { weights: [1], gradient: [2], ablated: [null] });
    expect(csv.split("\r\n")[1]).toBe("0,a,1,2,");
  });

  it("is a drawing with every token and no markup of the tokens' own", () => {
    const svg = evidenceSvg(["<s>", "a&b", "c"], evidence, "d");
    expect(svg).toContain("&lt;s&gt;");
    expect(svg).toContain("a&amp;b");
    expect(svg.match(/<rect /g)).toHaveLength(1 + 9);
  });

  it("exports the three side by side", () => {
    expect(evidenceCsv(["a", "b", "c"], evidence).split("\r\n")[2]).toBe("1,b,0.7,1,-0.5");
  });
});
