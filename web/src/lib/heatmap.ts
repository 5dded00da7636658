/**
 * The geometry and the paint of a heat map: where cells lie, how they are drawn on a canvas or written as SVG.
 *
 * R rows, C columns, values row-major. Knows nothing about Svelte; HeatMap.svelte adds hover and keys.
 */
import { css, domainOf, inkOn, scale, type ScaleName, type Theme } from "./colour";
import { escapeXml } from "./exports";
import { cell } from "./format";

export interface MapSpec {
  values: Float32Array;
  rows: number;
  columns: number;
  rowLabels?: readonly string[] | undefined;
  columnLabels?: readonly string[] | undefined;
  scale?: ScaleName | undefined;
  domain?: readonly [number, number] | undefined;
  /** Write the numbers into the cells; undefined: where there are few. */
  numbers?: boolean | undefined;
  /** The most pixels that all rows together may take, where no numbers are written; by default as many as they like. */
  tallest?: number | undefined;
  title: string;
}

export interface Layout {
  /** Size of a cell. */
  wide: number;
  high: number;
  /** Room for labels. */
  left: number;
  top: number;
  width: number;
  height: number;
  written: boolean;
  /** Every so many-th row and column has its label: all of them where there is room; 0 where none are given. */
  rowEvery: number;
  columnEvery: number;
  /** Column labels are turned upright when a cell is narrower than they are. */
  turned: boolean;
}

const CHARACTER = 7.8; // of the 12 px label font, on average
const LONGEST = 16; // characters of a label before it is cut
const LINE = 13; // pixels that a line of labels needs
const FEW = 400; // cells whose numbers still fit on a page

export function cut(label: string, longest = LONGEST): string {
  const signs = [...label];
  return signs.length <= longest ? label : `${signs.slice(0, longest - 1).join("")}…`;
}

function widest(labels: readonly string[] | undefined): number {
  return Math.max(0, ...(labels ?? []).map((label) => [...cut(label)].length)) * CHARACTER;
}

/** Lays a map out in the given width; it may come out wider, and is then scrolled. */
export function layout(spec: MapSpec, room: number): Layout {
  const { rows, columns } = spec;
  const few = rows * columns <= FEW && columns <= 24;
  const asked = spec.numbers ?? few;
  const labels = spec.rowLabels ? widest(spec.rowLabels) + 10 : 0;
  let wide = Math.max(1.25, Math.min(40, (room - labels) / Math.max(columns, 1)));
  const written = asked && rows * columns <= 4096 && (wide >= 34 || spec.numbers === true);
  if (written) wide = Math.max(wide, 46);
  else if (wide > 8) wide = Math.floor(wide);
  // tokens against tokens are square; features have no names, so their rows may be taller for the tokens'
  const square = spec.columnLabels !== undefined;
  const flat = Math.max(Math.min(wide, 28), Math.min(18, 700 / Math.max(rows, 1)));
  const most = (spec.tallest ?? Infinity) / Math.max(rows, 1);
  const high = written ? 26 : Math.max(1.25, Math.min(square ? Math.min(wide, 28) : flat, most));
  const rowEvery = spec.rowLabels ? everyFor(LINE, high) : 0;
  // where cells are narrow, short labels (numbers) stand level above every few of them, long ones upright
  const across = widest(spec.columnLabels) + 6;
  const turned = spec.columnLabels !== undefined && across > wide && (wide >= 11 || across > 3 * LINE);
  const columnEvery = spec.columnLabels ? everyFor(turned ? LINE : across, wide) : 0;
  const left = spec.rowLabels ? Math.ceil(labels) : 0;
  const top = spec.columnLabels ? (turned ? Math.ceil(across + 2) : 20) : 0;
  return {
    wide,
    high,
    left,
    top,
    written,
    rowEvery,
    columnEvery,
    turned,
    width: Math.ceil(left + columns * wide),
    height: Math.ceil(top + rows * high),
  };
}

/** Labels of `room` pixels over cells of `size`: on all of them, or on every second, fifth, tenth … */
export function everyFor(room: number, size: number): number {
  if (size >= room - 2) return 1;
  const least = room / size;
  const unit = 10 ** Math.floor(Math.log10(least));
  return Math.ceil([1, 2, 5, 10].map((step) => step * unit).find((step) => step >= least) ?? 10 * unit);
}

/** Which of `count` rows or columns have a label. */
export function labelled(count: number, every: number): number[] {
  return every < 1 ? [] : Array.from({ length: Math.ceil(count / every) }, (_, i) => i * every);
}

/** The cell under a point, or null beside the cells. */
export function cellAt(where: Layout, spec: MapSpec, x: number, y: number): [number, number] | null {
  const r = Math.floor((y - where.top) / where.high);
  const c = Math.floor((x - where.left) / where.wide);
  return r >= 0 && c >= 0 && r < spec.rows && c < spec.columns ? [r, c] : null;
}

export function domainFor(spec: MapSpec): readonly [number, number] {
  return spec.domain ?? domainOf(spec.values, spec.scale ?? "sequential");
}

export interface Paint {
  theme: Theme;
  ink: string;
  font: string;
}

/** Draws the map: one image scaled up for the cells, text over it where there is room. */
export function paint(
  canvas: HTMLCanvasElement,
  spec: MapSpec,
  where: Layout,
  how: Paint,
  fineness: number,
): void {
  canvas.width = Math.max(1, Math.round(where.width * fineness));
  canvas.height = Math.max(1, Math.round(where.height * fineness));
  const on = canvas.getContext("2d");
  if (!on || !spec.rows || !spec.columns) return;
  const colour = scale(spec.scale ?? "sequential", how.theme, domainFor(spec));
  const small = document.createElement("canvas");
  small.width = spec.columns;
  small.height = spec.rows;
  const pen = small.getContext("2d")!;
  const image = pen.createImageData(spec.columns, spec.rows);
  for (let i = 0; i < spec.values.length; i++) {
    const [r, g, b] = colour(spec.values[i]!);
    image.data.set([r, g, b, 255], 4 * i);
  }
  pen.putImageData(image, 0, 0);
  on.scale(fineness, fineness);
  on.imageSmoothingEnabled = false;
  on.drawImage(small, where.left, where.top, spec.columns * where.wide, spec.rows * where.high);
  drawLabels(on, spec, where, how);
  if (where.written) drawNumbers(on, spec, where, how, colour);
}

function drawLabels(on: CanvasRenderingContext2D, spec: MapSpec, where: Layout, how: Paint): void {
  on.fillStyle = how.ink;
  on.font = `12px ${how.font}`;
  on.textBaseline = "middle";
  on.textAlign = "right";
  for (const r of labelled(spec.rows, where.rowEvery))
    on.fillText(cut(spec.rowLabels?.[r] ?? ""), where.left - 7, where.top + (r + 0.5) * where.high);
  for (const c of labelled(spec.columns, where.columnEvery)) {
    const x = where.left + (c + 0.5) * where.wide;
    on.save();
    on.translate(x, where.top - 7);
    on.textAlign = where.turned ? "left" : "center";
    if (where.turned) on.rotate(-Math.PI / 2);
    on.fillText(cut(spec.columnLabels?.[c] ?? ""), 0, where.turned ? 0 : -3);
    on.restore();
  }
}

function drawNumbers(
  on: CanvasRenderingContext2D,
  spec: MapSpec,
  where: Layout,
  how: Paint,
  colour: (value: number) => readonly [number, number, number],
): void {
  on.font = `11px ${how.font}`;
  on.textAlign = "center";
  on.textBaseline = "middle";
  const whole = spec.values.every(Number.isInteger);
  for (let r = 0; r < spec.rows; r++)
    for (let c = 0; c < spec.columns; c++) {
      const value = spec.values[r * spec.columns + c]!;
      on.fillStyle = css(inkOn(colour(value)));
      on.fillText(
        cell(value, whole),
        where.left + (c + 0.5) * where.wide,
        where.top + (r + 0.5) * where.high + 0.5,
      );
    }
}

/** The map as an SVG document of its own, on the light theme's ground. Every cell is a rectangle with its value. */
export function mapSvg(spec: MapSpec, theme: Theme = "light"): string {
  const where = layout(spec, 720);
  const colour = scale(spec.scale ?? "sequential", theme, domainFor(spec));
  const ink = theme === "light" ? "#1c232d" : "#e8ebf0";
  const ground = theme === "light" ? "#ffffff" : "#12151b";
  const whole = spec.values.every(Number.isInteger);
  const parts: string[] = [];
  const text = (x: number, y: number, anchor: string, words: string, fill: string, extra = ""): string =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}" dominant-baseline="central" fill="${fill}"${extra}>${escapeXml(words)}</text>`;
  for (const r of labelled(spec.rows, where.rowEvery)) {
    const y = where.top + (r + 0.5) * where.high;
    parts.push(text(where.left - 7, y, "end", cut(spec.rowLabels?.[r] ?? ""), ink));
  }
  for (let r = 0; r < spec.rows; r++) {
    const y = where.top + r * where.high;
    for (let c = 0; c < spec.columns; c++) {
      const value = spec.values[r * spec.columns + c]!;
      const x = where.left + c * where.wide;
      const fill = colour(value);
      parts.push(
        `<rect x="${x}" y="${y}" width="${where.wide}" height="${where.high}" fill="${css(fill)}"/>`,
      );
      if (where.written)
        parts.push(
          text(x + where.wide / 2, y + where.high / 2, "middle", cell(value, whole), css(inkOn(fill))),
        );
    }
  }
  for (const c of labelled(spec.columns, where.columnEvery)) {
    const x = where.left + (c + 0.5) * where.wide;
    const turn = where.turned ? ` transform="rotate(-90 ${x} ${where.top - 7})"` : "";
    const anchor = where.turned ? "start" : "middle";
    parts.push(text(x, where.top - 7, anchor, cut(spec.columnLabels?.[c] ?? ""), ink, turn));
  }
  const size = `width="${where.width}" height="${where.height}" viewBox="0 0 ${where.width} ${where.height}"`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif" font-size="12" ` +
    `shape-rendering="crispEdges"><title>${escapeXml(spec.title)}</title>` +
    `<rect width="100%" height="100%" fill="${ground}"/>${parts.join("")}</svg>\n`
  );
}
