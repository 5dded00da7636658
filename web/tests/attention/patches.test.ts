import { describe, expect, it } from "vitest";
import { onPatches, patchesSvg } from "../../src/attention/patches";
import { pictureDots, pictureText } from "../../src/lib/picture";

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

describe("pictures as text", () => {
  it("writes colours plane by plane, and grey by the eye's weights", () => {
    const dots = [255, 0, 0, 255, 1, 2, 3, 255];
    expect(pictureText(3, 2, 1, dots)).toBe("picture 3x1x2 ff0100020003");
    expect(pictureText(1, 2, 1, dots)).toBe("picture 1x1x2 4c02");
  });

  it("reads them back", () => {
    expect([...(pictureDots("picture 3x1x2 ff0100020003")?.data ?? [])]).toEqual([
      255, 0, 0, 255, 1, 2, 3, 255,
    ]);
    expect(pictureDots("picture 1x1x2 00ff")).toMatchObject({ width: 2, height: 1 });
    for (const text of ["hello", "picture 1x1x2 00", "picture 2x1x1 0000", "picture 1x0x0 "])
      expect(pictureDots(text)).toBeNull();
  });
});
