import { describe, expect, it } from "vitest";
import { frame, legend, nearest, plot, stops, valuesAt, type Series } from "../../src/charts/plot";

const box = frame(600, 300);
const falling: Series = {
  name: "loss",
  points: [
    [20, 7.2],
    [40, 5.4],
    [60, 0.9],
  ],
};

describe("plot", () => {
  it("puts the first and the last x on the frame's edges", () => {
    const { x } = plot([falling], box);
    expect(x(20)).toBe(box.left);
    expect(x(60)).toBe(box.width - box.right);
  });

  it("puts larger values higher up, inside the frame", () => {
    const { y } = plot([falling], box);
    expect(y(7.2)).toBeLessThan(y(0.9));
    expect(y(7.2)).toBeGreaterThanOrEqual(box.top);
    expect(y(0.9)).toBeLessThanOrEqual(box.height - box.bottom);
  });

  it("spaces powers of ten evenly on a logarithmic axis", () => {
    const { y } = plot(
      [
        {
          name: "p",
          points: [
            [0, 1],
            [1, 1000],
          ],
        },
      ],
      box,
      { logY: true },
    );
    expect(y(1) - y(10)).toBeCloseTo(y(10) - y(100), 6);
  });

  it("drops, and counts, what a logarithmic axis cannot show", () => {
    const drawn = plot(
      [
        {
          name: "p",
          points: [
            [0, 0],
            [1, -1],
            [2, 3],
            [3, NaN],
          ],
        },
      ],
      box,
      { logY: true },
    );
    expect(drawn.dropped).toBe(3);
    expect(drawn.paths[0]?.d).not.toContain("NaN");
  });

  it("makes an axis around one point and around none", () => {
    for (const points of [[], [[5, 2]]] as Series["points"][]) {
      const drawn = plot([{ name: "one", points, dots: true }], box);
      expect(drawn.yTicks.length).toBeGreaterThan(0);
      expect(JSON.stringify(drawn.paths)).not.toContain("null");
    }
  });

  it("keeps ticks few on a wide logarithmic range, and whole where asked", () => {
    const wide = plot(
      [
        {
          name: "p",
          points: [
            [0, 1e-3],
            [10, 1e9],
          ],
        },
      ],
      box,
      { logY: true },
    );
    expect(wide.yTicks.length).toBeLessThanOrEqual(6);
    expect(wide.yTicks.length).toBeGreaterThanOrEqual(2);
    const layers = plot(
      [
        {
          name: "p",
          points: [
            [0, 1],
            [2, 3],
          ],
        },
      ],
      box,
      { wholeX: true },
    );
    expect(layers.xTicks.map((tick) => tick.value)).toEqual([0, 1, 2]);
  });
});

describe("reading a chart", () => {
  const rare: Series = { name: "validation", points: [[40, 3]] };

  it("stops at every x once", () => {
    expect(stops([falling, rare])).toEqual([20, 40, 60]);
  });

  it("finds the nearest stop, as a search through all would", () => {
    const sorted = [0, 3, 4, 10, 11, 30];
    for (let x = -2; x < 33; x += 0.37) {
      const distance = Math.min(...sorted.map((stop) => Math.abs(stop - x)));
      expect(Math.abs((sorted[nearest(sorted, x)] ?? NaN) - x)).toBeCloseTo(distance, 9);
    }
    expect(nearest([], 3)).toBe(-1);
  });

  it("says nothing where a series has no point", () => {
    expect(valuesAt([falling, rare], 20)).toEqual([7.2, null]);
    expect(valuesAt([falling, rare], 40)).toEqual([5.4, 3]);
  });
});

describe("legend", () => {
  it("breaks into lines before it runs out of the chart, and cuts a name longer than that", () => {
    const { places, height } = legend(["training", "validation", "x".repeat(100)], 240);
    for (const { x, text } of places) expect(x + 22 + text.length * 7).toBeLessThanOrEqual(240);
    expect(places.map(({ y }) => y)).toEqual([10, 10, 30]);
    expect(height).toBeGreaterThan(places.at(-1)!.y);
  });

  it("needs no room for one line", () => {
    expect(legend(["loss"], 600)).toEqual({ places: [], height: 0 });
  });
});
