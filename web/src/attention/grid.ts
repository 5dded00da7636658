/**
 * The grid of all layers × heads: where each thumbnail's numbers lie, how it is painted, where the
 * arrow keys lead, and the whole of it as a file.
 */
import { table } from "../charts/csv";
import { css, scale, type ScaleName } from "../lib/colour";
import { escapeXml } from "../lib/exports";

export interface Shape4 {
  layers: number;
  heads: number;
  rows: number;
  columns: number;
}

/** The numbers of one head, as a window into the packed (layers, heads, rows, columns) array. */
export function window4(values: Float32Array, shape: Shape4, layer: number, head: number): Float32Array {
  const size = shape.rows * shape.columns;
  const start = (layer * shape.heads + head) * size;
  return values.subarray(start, start + size);
}

export type Paint = (share: number) => readonly [number, number, number];

/** Some cheaper attentions have weights below 0: their colours diverge from 0. */
export function scaleOf(values: Float32Array): ScaleName {
  return values.some((value) => value < 0) ? "diverging" : "sequential";
}

/** The weights at the two ends of a scale whose strongest colour is `top`. */
export function spanOf(name: ScaleName, top: number): [number, number] {
  return [name === "diverging" ? -top : 0, top];
}

/** One RGBA pixel for each weight. The colour runs to `top`, so faint heads show too. */
export function pixels(weights: Float32Array, top: number, paint: Paint): Uint8ClampedArray<ArrayBuffer> {
  const out = new Uint8ClampedArray(weights.length * 4);
  for (let i = 0; i < weights.length; i++) {
    const [r, g, b] = paint(top > 0 ? Math.max(-1, Math.min(1, (weights[i] ?? 0) / top)) : 0);
    out[4 * i] = r;
    out[4 * i + 1] = g;
    out[4 * i + 2] = b;
    out[4 * i + 3] = 255;
  }
  return out;
}

/** The largest weight, whatever its sign. */
export function largest(values: Float32Array): number {
  let top = 0;
  for (const value of values) if (Math.abs(value) > top) top = Math.abs(value);
  return top;
}

/** Where a key leads from (layer, head); null for keys the grid leaves alone. */
export function moved(
  key: string,
  layer: number,
  head: number,
  layers: number,
  heads: number,
): [layer: number, head: number] | null {
  switch (key) {
    case "ArrowLeft":
      return [layer, Math.max(0, head - 1)];
    case "ArrowRight":
      return [layer, Math.min(heads - 1, head + 1)];
    case "ArrowUp":
      return [Math.max(0, layer - 1), head];
    case "ArrowDown":
      return [Math.min(layers - 1, layer + 1), head];
    case "Home":
      return [layer, 0];
    case "End":
      return [layer, heads - 1];
    default:
      return null;
  }
}

/**
 * How sharply a head looks: 1 when every row looks at one token, 0 when all rows spread evenly.
 * (One minus the mean entropy of the rows over that of a uniform row.)
 */
export function sharpness(weights: Float32Array, rows: number, columns: number): number {
  if (columns < 2 || rows === 0) return 1;
  let entropy = 0;
  let looking = 0;
  for (let r = 0; r < rows; r++) {
    const row = weights.subarray(r * columns, (r + 1) * columns);
    let sum = 0;
    for (const weight of row) sum += Math.abs(weight);
    if (sum === 0) continue; // it may look at nothing
    looking += 1;
    for (const weight of row) {
      const p = Math.abs(weight) / sum; // a row that sums to 1 stays as it is
      if (p > 0) entropy -= p * Math.log(p);
    }
  }
  return looking ? 1 - entropy / looking / Math.log(columns) : 1;
}

const MANY = 4096; // weights above which a map is so fine that single ones are hardly seen

/**
 * The weight that gets the strongest colour: 1 in a small map, so that maps compare; in a large one, where
 * nearly all weights are tiny, what only one weight in 200 exceeds.
 */
export function colourTop(weights: Float32Array): number {
  if (weights.length <= MANY) return Math.max(1, largest(weights));
  const sorted = weights.map(Math.abs).sort();
  return Math.max(sorted[Math.floor(0.995 * (sorted.length - 1))] ?? 1, 1e-6);
}

/** All heads as an SVG document: a row of small maps for each layer. Cells too faint to be seen are left out. */
export function gridSvg(values: Float32Array, shape: Shape4, title: string): string {
  const [left, top, wide, gap] = [70, 58, 110, 10];
  const tall = wide * Math.min(1.6, Math.max(0.5, shape.rows / Math.max(1, shape.columns)));
  const [cellWide, cellTall] = [wide / shape.columns, tall / shape.rows];
  const most = largest(values);
  const name = scaleOf(values);
  const colour = scale(name, "light", spanOf(name, most || 1));
  const parts: string[] = [];
  for (let layer = 0; layer < shape.layers; layer++) {
    const y = top + layer * (tall + gap);
    parts.push(`<text x="${left - 10}" y="${y + tall / 2}" text-anchor="end">Layer ${layer + 1}</text>`);
    for (let head = 0; head < shape.heads; head++) {
      const x = left + head * (wide + gap);
      if (layer === 0) {
        parts.push(`<text x="${x + wide / 2}" y="${top - 10}" text-anchor="middle">Head ${head + 1}</text>`);
      }
      parts.push(
        `<rect x="${x}" y="${y}" width="${wide}" height="${tall}" fill="${css(colour(0))}" stroke="#d8dde4"/>`,
      );
      window4(values, shape, layer, head).forEach((weight, i) => {
        if (Math.abs(weight) < most / 250) return;
        const [r, c] = [Math.floor(i / shape.columns), i % shape.columns];
        parts.push(
          `<rect x="${(x + c * cellWide).toFixed(2)}" y="${(y + r * cellTall).toFixed(2)}" ` +
            `width="${cellWide.toFixed(2)}" height="${cellTall.toFixed(2)}" fill="${css(colour(weight))}"/>`,
        );
      });
    }
  }
  const [width, height] = [left + shape.heads * (wide + gap), top + shape.layers * (tall + gap)];
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="12" fill="#161c25" shape-rendering="crispEdges">` +
    `<rect width="100%" height="100%" fill="#ffffff"/><text x="10" y="20">${escapeXml(title)}</text>` +
    `${parts.join("")}</svg>\n`
  );
}

/** Every weight of every head, a line each; of a long text the means over blocks that its thumbnails show. */
export function gridCsv(values: Float32Array, shape: Shape4): string {
  const size = shape.rows * shape.columns;
  return table(
    ["layer", "head", "row", "column", "weight"],
    Array.from(values, (weight, i) => {
      const [map, cell] = [Math.floor(i / size), i % size];
      return [
        Math.floor(map / shape.heads) + 1,
        (map % shape.heads) + 1,
        Math.floor(cell / shape.columns),
        cell % shape.columns,
        weight,
      ];
    }),
  );
}
