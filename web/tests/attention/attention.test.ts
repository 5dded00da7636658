import { describe, expect, it } from "vitest";
import {
  colourTop,
  gridCsv,
  gridSvg,
  largest,
  moved,
  pixels,
  scaleOf,
  sharpness,
  spanOf,
  window4,
} from "../../src/attention/grid";
import { chosenKind, kindText } from "../../src/attention/kinds";
import { curve, ladder, links, rung } from "../../src/attention/lines";

describe("grid", () => {
  const shape = { layers: 2, heads: 3, rows: 2, columns: 2 };
  const values = Float32Array.from({ length: 24 }, (_, i) => i);

  it("finds a head's own numbers", () => {
    expect([...window4(values, shape, 0, 0)]).toEqual([0, 1, 2, 3]);
    expect([...window4(values, shape, 1, 2)]).toEqual([20, 21, 22, 23]);
  });

  it("saves every weight with its place", () => {
    const lines = gridCsv(values, shape).split("\r\n");
    expect(lines).toHaveLength(1 + 24 + 1);
    expect(lines[1]).toBe("1,1,0,0,0");
    expect(lines[24]).toBe("2,3,1,1,23");
  });

  it("draws every head, and leaves only cells out that nobody would see", () => {
    const svg = gridSvg(values, shape, "A & B");
    expect(svg.match(/stroke="#d8dde4"/g)).toHaveLength(6);
    expect(svg.match(/<rect /g)).toHaveLength(1 + 6 + 23); // the ground, the frames, all weights but the zero
    expect(svg).toContain("A &amp; B");
  });

  it("paints from nothing to the top, one opaque pixel for each weight", () => {
    const seen: number[] = [];
    const out = pixels(Float32Array.from([0, 0.25, 0.5]), 0.5, (share) => {
      seen.push(share);
      return [Math.round(share * 255), 0, 0];
    });
    expect(seen).toEqual([0, 0.5, 1]);
    expect([...out]).toEqual([0, 0, 0, 255, 128, 0, 0, 255, 255, 0, 0, 255]);
    expect(largest(Float32Array.from([0.1, 0.75, 0.5]))).toBe(0.75);
  });

  it("lets small maps compare, and makes large ones visible", () => {
    expect(colourTop(Float32Array.from([0.1, 0.2]))).toBe(1);
    const large = new Float32Array(200 * 200).fill(0.001);
    large.fill(0.5, 0, 400); // one in 100 is heavy
    expect(colourTop(large)).toBe(0.5);
    large.fill(0.001);
    large[0] = 0.5;
    expect(colourTop(large)).toBeCloseTo(0.001);
    expect(colourTop(new Float32Array(5000))).toBeGreaterThan(0);
  });

  it("lets colours diverge where weights are negative", () => {
    expect(scaleOf(Float32Array.from([0, 0.5]))).toBe("sequential");
    const signed = Float32Array.from([-2, 0.5, 1, 0]);
    expect(scaleOf(signed)).toBe("diverging");
    expect(spanOf("diverging", 2)).toEqual([-2, 2]);
    expect(spanOf("sequential", 2)).toEqual([0, 2]);
    expect([largest(signed), colourTop(signed)]).toEqual([2, 2]);
    const seen: number[] = [];
    pixels(signed, 1, (share) => {
      seen.push(share);
      return [0, 0, 0];
    });
    expect(seen).toEqual([-1, 0.5, 1, 0]);
    const one = { layers: 1, heads: 1, rows: 2, columns: 2 };
    expect(gridSvg(signed, one, "signed").match(/<rect /g)).toHaveLength(1 + 1 + 3);
  });

  it("moves within the grid and never out of it", () => {
    expect(moved("ArrowRight", 0, 2, 2, 3)).toEqual([0, 2]);
    expect(moved("ArrowLeft", 1, 2, 2, 3)).toEqual([1, 1]);
    expect(moved("ArrowDown", 0, 1, 2, 3)).toEqual([1, 1]);
    expect(moved("ArrowUp", 0, 1, 2, 3)).toEqual([0, 1]);
    expect(moved("End", 1, 0, 2, 3)).toEqual([1, 2]);
    expect(moved("x", 0, 0, 2, 3)).toBeNull();
  });

  it("calls a head that looks at one token sharp, an even one not", () => {
    expect(sharpness(Float32Array.from([0, 1, 1, 0]), 2, 2)).toBeCloseTo(1);
    expect(sharpness(Float32Array.from([0.5, 0.5, 0.5, 0.5]), 2, 2)).toBeCloseTo(0);
    expect(sharpness(Float32Array.from([-1.5, 1.5, 0, 0]), 2, 2)).toBeCloseTo(0); // the second looks at nothing
  });
});

describe("kinds", () => {
  it("takes what was asked for if the model has it", () => {
    const all = ["encoder.self", "decoder.self", "decoder.cross"];
    expect(chosenKind(all, "encoder.self")).toBe("encoder.self");
    expect(chosenKind(all, "nonsense")).toBe("decoder.cross");
    expect(chosenKind(["decoder.self"], "decoder.cross")).toBe("decoder.self");
    expect(chosenKind([], "x")).toBeUndefined();
  });

  it("does not speak of a mask where there is none", () => {
    expect(kindText("decoder.self").sentence).toContain("masked");
    expect(kindText("decoder.self", false).sentence).toContain("no causal mask");
    expect(kindText("encoder.self", false)).toEqual(kindText("encoder.self"));
  });

  it("names an unknown kind by itself", () => {
    expect(kindText("vision.self").label).toBe("vision.self");
  });
});

describe("lines", () => {
  const weights = Float32Array.from([0.7, 0.3, 0, 0.01, 0.19, 0.8]);

  it("leaves faint ones out and puts the heaviest on top", () => {
    const { links: drawn, left } = links(weights, 2, 3);
    expect(drawn.map(({ row, column }) => [row, column])).toEqual([
      [1, 1],
      [0, 1],
      [0, 0],
      [1, 2],
    ]);
    expect(left).toBe(0);
  });

  it("draws negative weights by their size", () => {
    const { links: drawn } = links(Float32Array.from([-0.9, 0.5, 0.001, -0.01]), 2, 2);
    expect(drawn.map(({ weight }) => weight)).toEqual([0.5, Math.fround(-0.9)]);
  });

  it("shows faint ones too for a picked word", () => {
    expect(links(weights, 2, 3, { row: 1 }).links).toHaveLength(3);
    expect(links(weights, 2, 3, { column: 0 }).links.map(({ row }) => row)).toEqual([1, 0]);
  });

  it("says how many there were too many", () => {
    const many = new Float32Array(512 * 512).fill(0.03);
    const found = links(many, 512, 512);
    expect(found.links).toHaveLength(1500);
    expect(found.left).toBe(512 * 512 - 1500);
  });

  it("runs from the middle of one word to the middle of the other", () => {
    const shape = ladder(600, 4, 7);
    const path = curve(shape, { row: 1, column: 6, weight: 1 });
    expect(path.startsWith(`M${shape.left},${rung(shape, 1)}C`)).toBe(true);
    expect(path.endsWith(`${shape.right},${rung(shape, 6)}`)).toBe(true);
    expect(rung(shape, 6)).toBeLessThan(shape.height);
  });
});
