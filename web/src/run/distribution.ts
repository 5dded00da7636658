/**
 * Where the bars of two distributions lie: before and after the processors, side by side or one above the other.
 *
 * Pure geometry; Distribution.svelte draws it.
 */
import { scaleLinear } from "d3-scale";
import type { Chance } from "../lib/api";

export interface Bar extends Chance {
  x: number;
  y: number;
  width: number;
  chosen: boolean;
}

export interface Column {
  title: string;
  x: number;
  y: number;
  bars: Bar[];
}

export interface Bars {
  width: number;
  height: number;
  columns: [Column, Column];
  /** Height of a row. */
  row: number;
  /** Room for a token's text in front of its bar. */
  label: number;
  /** From a token before to the same token after; none where the columns are stacked. */
  links: { from: [number, number]; to: [number, number]; chosen: boolean }[];
}

const ROW = 26;
const HEAD = 30;
const VALUE = 62; // room for "< 0.1 %"
const BETWEEN = 56;

export function bars(
  before: readonly Chance[],
  after: readonly Chance[],
  chosen: number,
  room: number,
): Bars {
  const width = Math.max(280, room);
  const beside = width >= 620;
  const each = beside ? (width - BETWEEN) / 2 : width;
  const label = Math.min(130, Math.max(84, each * 0.3));
  const most = Math.max(0.01, ...before.map(({ p }) => p), ...after.map(({ p }) => p));
  const length = scaleLinear([0, most], [0, each - label - VALUE]);
  const column = (title: string, chances: readonly Chance[], x: number, y: number): Column => ({
    title,
    x,
    y,
    bars: chances.map((chance, i) => ({
      ...chance,
      x: x + label,
      y: y + HEAD + i * ROW,
      width: length(chance.p),
      chosen: chance.id === chosen,
    })),
  });
  const first = column("as the model gives it", before, 0, 0);
  const below = beside ? 0 : HEAD + ROW * before.length + 18;
  const second = column("as the choice is made", after, beside ? each + BETWEEN : 0, below);
  const height = beside
    ? HEAD + ROW * Math.max(before.length, after.length)
    : below + HEAD + ROW * after.length;
  const links = !beside
    ? []
    : first.bars.flatMap((bar) => {
        const same = second.bars.find(({ id }) => id === bar.id);
        if (!same) return [];
        const from: [number, number] = [each + 4, bar.y + ROW / 2 - 2];
        const to: [number, number] = [each + BETWEEN - 6, same.y + ROW / 2 - 2];
        return [{ from, to, chosen: bar.chosen }];
      });
  return { width, height, columns: [first, second], row: ROW, label, links };
}
