/**
 * Geometry of a line chart: from series of points to paths, ticks and the nearest point.
 * Pure: draws nothing, so the same numbers serve the page, the tests and the SVG export.
 */

import { scaleLinear, scaleLog, type ScaleContinuousNumeric } from "d3-scale";
import { line } from "d3-shape";
import { short } from "./figures";

export type Point = readonly [x: number, y: number];

export interface Series {
  name: string;
  points: Point[];
  /** Drawn with dots on the points: for few, separate measurements. */
  dots?: boolean;
  dashed?: boolean;
}

export interface Frame {
  width: number;
  height: number;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Tick {
  at: number;
  value: number;
  label: string;
}

export interface Plot {
  frame: Frame;
  x: ScaleContinuousNumeric<number, number>;
  y: ScaleContinuousNumeric<number, number>;
  xTicks: Tick[];
  yTicks: Tick[];
  paths: { name: string; d: string; index: number; points: { x: number; y: number }[] }[];
  /** How many points a logarithmic axis could not show (zero or below). */
  dropped: number;
}

export interface PlotOptions {
  logY?: boolean;
  logX?: boolean;
  /** Fixed ends of the y axis; by default the data's own, with a little air. */
  yDomain?: readonly [number, number];
  /** Ticks only at whole numbers (steps, layers, distances). */
  wholeX?: boolean;
}

/** Room for the labels: less on a narrow screen; `above` is what the legend takes, over the y axis's name. */
export function frame(width: number, height: number, above = 0): Frame {
  return { width, height, left: width < 480 ? 46 : 56, right: 24, top: 26 + above, bottom: 40 };
}

/** Where the names of the series stand: one after the other, on as many lines as they need. */
export function legend(
  names: string[],
  width: number,
): { places: { x: number; y: number; text: string }[]; height: number } {
  if (names.length < 2) return { places: [], height: 0 };
  const most = Math.max(12, Math.floor((width - 60) / 7));
  let [x, y] = [4, 10];
  const places = names.map((name) => {
    const letters = [...name];
    const text = letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : name;
    const wide = 22 + [...text].length * 7 + 18;
    if (x > 4 && x + wide > width) [x, y] = [4, y + 20];
    const place = { x, y, text };
    x += wide;
    return place;
  });
  return { places, height: y + 12 };
}

function shown(series: Series, options: PlotOptions): Point[] {
  return series.points.filter(
    ([x, y]) =>
      Number.isFinite(x) && Number.isFinite(y) && (!options.logY || y > 0) && (!options.logX || x > 0),
  );
}

function extent(values: number[], log: boolean): [number, number] {
  if (values.length === 0) return log ? [1, 10] : [0, 1];
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low < high) return [low, high];
  // a single value still needs an axis around it
  return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
}

function axis(domain: readonly [number, number], range: [number, number], log: boolean, nice: boolean) {
  const scale = (log ? scaleLog() : scaleLinear()).domain(domain).range(range);
  return nice ? scale.nice() : scale;
}

/** At most about `count` ticks; a logarithmic axis keeps the powers of ten first, then 2 and 5. */
export function ticks(
  scale: ScaleContinuousNumeric<number, number>,
  count: number,
  log: boolean,
  onlyWhole = false,
): Tick[] {
  let values = scale.ticks(count);
  if (log && values.length > count) {
    const leading = (value: number): number => Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9));
    for (const kept of [[1, 2, 5], [1]]) {
      const fewer = values.filter((value) => kept.includes(leading(value)));
      if (fewer.length >= 2) values = fewer;
      if (values.length <= count) break;
    }
    if (values.length > count) {
      const every = Math.ceil(values.length / count);
      values = values.filter((_, i) => i % every === 0);
    }
  }
  if (onlyWhole) values = values.filter(Number.isInteger);
  return values.map((value) => ({ at: scale(value), value, label: short(value) }));
}

export function plot(series: Series[], box: Frame, options: PlotOptions = {}): Plot {
  const kept = series.map((one) => shown(one, options));
  const all = kept.flat();
  const x = axis(
    extent(
      all.map(([value]) => value),
      options.logX ?? false,
    ),
    [box.left, box.width - box.right],
    options.logX ?? false,
    false,
  );
  const y = axis(
    options.yDomain ??
      extent(
        all.map(([, value]) => value),
        options.logY ?? false,
      ),
    [box.height - box.bottom, box.top],
    options.logY ?? false,
    options.yDomain === undefined,
  );
  const draw = line<Point>()
    .x(([value]) => x(value))
    .y(([, value]) => y(value));
  const across = Math.max(2, Math.floor((box.width - box.left - box.right) / 80));
  const up = Math.max(2, Math.floor((box.height - box.top - box.bottom) / 44));
  return {
    frame: box,
    x,
    y,
    xTicks: ticks(x, across, options.logX ?? false, options.wholeX),
    yTicks: ticks(y, up, options.logY ?? false),
    paths: series.map((one, index) => ({
      name: one.name,
      index,
      d: draw(kept[index] ?? []) ?? "",
      points: one.dots ? (kept[index] ?? []).map(([px, py]) => ({ x: x(px), y: y(py) })) : [],
    })),
    dropped: series.reduce((sum, one, i) => sum + one.points.length - (kept[i]?.length ?? 0), 0),
  };
}

/** Every x at which any series has a point, in order, each once: the stops of the reading cursor. */
export function stops(series: Series[]): number[] {
  return [...new Set(series.flatMap((one) => one.points.map(([x]) => x)))].sort((a, b) => a - b);
}

/** The index of the stop nearest to x (-1 when there is none). */
export function nearest(sorted: number[], x: number): number {
  if (sorted.length === 0) return -1;
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] ?? 0) <= x) low = middle;
    else high = middle;
  }
  return x - (sorted[low] ?? 0) <= (sorted[high] ?? 0) - x ? low : high;
}

/** What each series says at x: its value there, or null where it has none. */
export function valuesAt(series: Series[], x: number): (number | null)[] {
  return series.map((one) => one.points.find(([at]) => at === x)?.[1] ?? null);
}
