import { describe, expect, it } from "vitest";
import { onPatches, patchesSvg } from "../../src/attention/patches";

describe("patches", () => {
  const picture = { source: "data:image/png;base64,", side: 2, first: 1, pooling: "first" };
  // five tokens: the class token and four patches; weight r,c is 10 r + c
  const weights = Float32Array.from({ length: 25 }, (_, i) => 10 * Math.floor(i / 5) + (i % 5));

  it("shows the row of the class token, of a patch, or the mean", () => {
    expect([...onPatches(weights, 5, picture, null)]).toEqual([1, 2, 3, 4]);
    expect([...onPatches(weights, 5, picture, 3)]).toEqual([31, 32, 33, 34]);
    expect([...onPatches(weights, 5, { ...picture, pooling: "mean" }, null)]).toEqual([21, 22, 23, 24]);
    const bare = Float32Array.from({ length: 16 }, (_, i) => i);
    const without = { ...picture, first: 0, pooling: "last" };
    expect([...onPatches(bare, 4, without, null)]).toEqual([12, 13, 14, 15]);
  });

  it("draws a square for each patch over the picture", () => {
    const svg = patchesSvg(picture, Float32Array.from([0, 1, 2, 3]), (value) => `c${value}`, "A head");
    expect(svg.match(/<rect /g)).toHaveLength(4);
    expect(svg).toContain('<rect x="24" y="24" width="24" height="24" fill="c3"');
    expect(svg).toContain("<image href=");
  });
});
