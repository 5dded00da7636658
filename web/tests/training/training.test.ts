import { describe, expect, it } from "vitest";
import {
  bySource,
  compared,
  curvesCsv,
  flopsBars,
  flopsTicks,
  headline,
  measures,
  nameOf,
  series,
  type Curves,
} from "../../src/training/curves";

const curves: Curves = {
  train: [
    { step: 20, loss: 7.2, rate: 0.0008, gradient_norm: 2, flops: 8e10, epoch: 0 },
    { step: 40, loss: 5.4, rate: 0.0016, gradient_norm: 1.3, flops: 16e10, epoch: 0 },
  ],
  validation: [{ step: 40, loss: 5.1, perplexity: 164.02, bleu: 1.25 }],
};

describe("curves", () => {
  it("finds every measure, the usual ones first", () => {
    expect(measures(curves)).toEqual(["loss", "perplexity", "bleu", "rate", "gradient_norm", "flops"]);
    expect(nameOf("beam_width")).toBe("Beam width");
  });

  it("draws training and validation in one chart where both have it", () => {
    expect(series(curves, "loss").map(({ name, points }) => [name, points])).toEqual([
      [
        "training",
        [
          [20, 7.2],
          [40, 5.4],
        ],
      ],
      ["validation", [[40, 5.1]]],
    ]);
    expect(series(curves, "bleu").map(({ name }) => name)).toEqual(["validation"]);
    expect(series(curves, "nothing")).toEqual([]);
  });

  it("says what the run has come to", () => {
    expect(headline(curves)).toEqual([
      { label: "Step", value: "40" },
      { label: "Training loss", value: "5.4" },
      { label: "Validation loss", value: "5.1" },
      { label: "Validation perplexity", value: "164" },
      { label: "Validation BLEU", value: "1.25" },
    ]);
    expect(headline({ train: [], validation: [] })).toEqual([]);
  });

  it("exports both splits under one header", () => {
    const lines = curvesCsv(curves).split("\r\n");
    expect(lines[0]).toBe("split,step,loss,perplexity,bleu,rate,gradient_norm,flops");
    expect(lines[1]).toBe("train,20,7.2,,,0.0008,2,80000000000");
    expect(lines[3]).toBe("validation,40,5.1,164.02,1.25,,,");
  });
});

describe("flops", () => {
  const table = [
    { name: "Transformer base", flops: 3.3e18 },
    { name: "ByteNet", flops: 0 },
  ];

  it("stand on one logarithmic scale, smallest first", () => {
    const bars = flopsBars(3.3e12, table);
    expect(bars.map(({ name, own }) => [name, own])).toEqual([
      ["This run", true],
      ["Transformer base", false],
    ]);
    expect(bars[1]?.share).toBe(1);
    expect(bars[0]?.share).toBeGreaterThan(0);
    expect(bars[0]?.text).toBe("3.3 × 10¹²");
  });

  it("have powers of ten beside them, evenly spaced", () => {
    const ticks = flopsTicks(flopsBars(3.3e12, table), 4);
    expect(ticks.map(({ label }) => label)).toEqual(["10¹¹", "10¹³", "10¹⁵", "10¹⁷"]);
    const gaps = ticks.slice(1).map(({ share }, i) => share - (ticks[i]?.share ?? 0));
    for (const gap of gaps) expect(gap).toBeCloseTo(gaps[0] ?? 0, 9);
    expect(flopsTicks([])).toEqual([]);
  });

  it("name this run once, also where the table has it already, and leave an unknown cost out", () => {
    const names = (spent: number | null) =>
      flopsBars(spent, [...table, { name: "this model", flops: 5e12 }]).map(({ name }) => name);
    expect(names(5e12)).toEqual(["This run", "Transformer base"]);
    expect(names(null)).toEqual(["Transformer base"]);
  });

  it("are compared in words, whichever is larger", () => {
    expect(compared(3.3e12, { name: "Transformer base", flops: 3.3e18 })).toContain("1.0 × 10⁶ times");
    expect(compared(6.6e18, { name: "Transformer base", flops: 3.3e18 })).toBe(
      "This run took 2 times as much as Transformer base.",
    );
    expect(compared(0, { name: "x", flops: 1 })).toBe("");
  });
});

describe("samples", () => {
  it("are gathered by source and ordered by step", () => {
    const groups = bySource([
      { step: 800, source: "a", written: "x", reference: "r" },
      { step: 400, source: "b", written: "y", reference: "s" },
      { step: 400, source: "a", written: "z", reference: "r" },
    ]);
    expect(groups.map(({ source }) => source)).toEqual(["a", "b"]);
    expect(groups[0]?.written).toEqual([
      { step: 400, text: "z" },
      { step: 800, text: "x" },
    ]);
  });
});
