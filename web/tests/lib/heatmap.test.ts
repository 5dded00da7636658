import { expect, test } from "vitest";
import { cellAt, cut, labelled, layout, mapSvg, type MapSpec } from "../../src/lib/heatmap";
import { csv, escapeXml, matrixCsv } from "../../src/lib/exports";

function spec(rows: number, columns: number, more: Partial<MapSpec> = {}): MapSpec {
  return { values: new Float32Array(rows * columns).map((_, i) => i), rows, columns, title: "t", ...more };
}

test("each cell is found again under its middle, and nothing beside the cells", () => {
  for (const [rows, columns, room] of [
    [3, 4, 300],
    [9, 9, 700],
    [6, 128, 640],
    [512, 512, 900],
    [1, 1, 80],
  ] as const) {
    const labels = Array.from({ length: rows }, (_, i) => `word ${i}`);
    const one = spec(rows, columns, { rowLabels: labels });
    const where = layout(one, room);
    for (const [r, c] of [
      [0, 0],
      [rows - 1, columns - 1],
      [rows >> 1, columns >> 1],
    ] as const)
      expect(
        cellAt(where, one, where.left + (c + 0.5) * where.wide, where.top + (r + 0.5) * where.high),
      ).toEqual([r, c]);
    expect(cellAt(where, one, where.left - 1, where.top + 1)).toBeNull();
    expect(cellAt(where, one, where.width + 1, where.top + 1)).toBeNull();
    expect(where.width).toBe(Math.ceil(where.left + columns * where.wide));
  }
});

test("rows share the height that they may take", () => {
  const tall = spec(64, 32, {
    numbers: false,
    columnLabels: Array.from({ length: 32 }, (_, i) => String(i)),
  });
  expect(layout(tall, 600).high).toBe(18);
  expect(layout({ ...tall, tallest: 544 }, 600).high).toBe(8.5);
  expect(layout({ ...tall, tallest: 10 }, 600).high).toBe(1.25);
});

test("labels never vanish: where cells are smaller than a line, every second, fifth … has one", () => {
  const names = (n: number) => Array.from({ length: n }, (_, i) => String(i));
  for (const [rows, columns, room, tallest] of [
    [8, 8, 600, undefined],
    [64, 32, 300, 544],
    [64, 64, 390, undefined],
    [512, 512, 700, 544],
    [200, 3, 300, 200],
  ] as const) {
    const one = spec(rows, columns, {
      rowLabels: names(rows), columnLabels: names(columns), numbers: false, tallest,
    }); // prettier-ignore
    const where = layout(one, room);
    const across = where.turned ? 11 : 6 * String(columns - 1).length;
    for (const [count, every, size, line] of [
      [rows, where.rowEvery, where.high, 11],
      [columns, where.columnEvery, where.wide, across],
    ] as const) {
      const shown = labelled(count, every);
      expect(shown.length).toBeGreaterThan(0);
      expect(shown[0]).toBe(0);
      if (shown.length > 1) expect(every * size).toBeGreaterThanOrEqual(line); // and never run into each other
      if (size >= 11 && every === 1) expect(shown).toHaveLength(count);
    }
    const drawn = mapSvg(one).match(/<text /g) ?? [];
    const [high, wide] = [layout(one, 720).rowEvery, layout(one, 720).columnEvery];
    expect(drawn).toHaveLength(labelled(rows, high).length + labelled(columns, wide).length);
  }
  expect(layout(spec(8, 8), 600).rowEvery).toBe(0);
});

test("numbers are written where they fit, and always if asked for", () => {
  expect(layout(spec(6, 8), 600).written).toBe(true);
  expect(layout(spec(6, 64), 600).written).toBe(false);
  expect(layout(spec(6, 20), 390).written).toBe(false);
  expect(layout(spec(20, 20, { numbers: true }), 390).written).toBe(true);
  expect(layout(spec(6, 8, { numbers: false }), 600).written).toBe(false);
  expect(layout(spec(512, 512, { numbers: true }), 600).written).toBe(false);
});

test("tokens against tokens are square", () => {
  const labels = Array.from({ length: 20 }, (_, i) => String(i));
  const where = layout(spec(20, 20, { rowLabels: labels, columnLabels: labels }), 500);
  expect(where.wide).toBe(where.high);
});

test("the SVG holds every cell and every label, escaped", () => {
  const svg = mapSvg(spec(2, 3, { rowLabels: ["<s>", "a&b"], columnLabels: ["x", "y", "z"] }));
  expect(svg.match(/<rect /g)).toHaveLength(1 + 6);
  expect(svg).toContain("&lt;s&gt;");
  expect(svg).toContain("a&amp;b");
  const parsed = new DOMParser().parseFromString(svg, "image/svg+xml");
  expect(parsed.querySelector("parsererror")).toBeNull();
});

test("CSV is quoted where it must be and keeps every digit", () => {
  expect(
    csv([
      ["a,b", 'say "x"', 1.5],
      ["line\nend", "", -0.1],
    ]),
  ).toBe('"a,b","say ""x""",1.5\r\n"line\nend",,-0.1\r\n');
  const value = Math.fround(1 / 3);
  const written = matrixCsv(new Float32Array([value, 1]), 1, 2, ["r"], ["a", "b"]);
  expect(Number(written.split("\r\n")[1]!.split(",")[1])).toBe(value);
});

test("labels are cut by signs, not by halves of them", () => {
  expect(cut("🙂".repeat(20))).toBe(`${"🙂".repeat(15)}…`);
  expect(cut("short")).toBe("short");
  expect(escapeXml(`<a b="c">'&`)).toBe("&lt;a b=&quot;c&quot;&gt;&#39;&amp;");
});
