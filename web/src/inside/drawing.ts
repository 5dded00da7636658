/**
 * Where the boxes and arrows of the architecture lie: encoder left, decoder right, from the tokens at the bottom
 * to the words at the top. One layer of each stack is opened; the others are slabs, or one slab for many.
 *
 * Pure geometry from the server's boxes and arrows; Architecture.svelte draws it.
 */
import type { Arrow, Box, InsideAnswer, Word } from "../lib/api";
import { cut } from "../lib/heatmap";
import { rounded, type Point } from "./paths";

/** Something in the drawing that can be picked: a box, or a slab that stands for closed layers. */
export interface Spot {
  id: string;
  column: number;
  x: number;
  y: number;
  width: number;
  height: number;
  label: string;
  /** The opened thing: a box of the server's, or the layers [first, last] that a slab stands for. */
  box: Box | null;
  layers: [number, number] | null;
}

export interface Line {
  id: string;
  kind: Arrow["kind"];
  path: string;
  shape: number[];
  /** Where the shape is written, if there is room. */
  at: Point | null;
  /** Shapes stand on the side where no residual arrow leaves. */
  anchor: "start" | "end";
}

export interface Frame {
  x: number;
  y: number;
  width: number;
  height: number;
  label: string;
  column: number;
}

export interface Drawing {
  width: number;
  height: number;
  spots: Spot[];
  lines: Line[];
  frames: Frame[];
  /** The tokens themselves, under the first boxes. */
  texts: { text: string; name: string; x: number; y: number }[];
}

const BOX = 36;
const TALL = 50; // a box whose label needs two lines
const SLAB = 28;
const GAP = 26; // between boxes: room for an arrow and its shape
const TITLE = 12; // more room at its top, for its name
const WORDS = 42; // below the tokens, for the text itself and the stack's name
const LOOP = 17; // how far a residual arrow goes around
const HEAD = 20; // room above for the encoder's output to turn
/** Room around an opened layer, beside the outer columns (residual arrows) and between them (encoder's output). */
const ROOMY = { frame: 12, edge: 24, channel: 46 };
const TIGHT = { frame: 8, edge: 16, channel: 26 };
const MANY = 7; // layers beyond which the closed ones share a slab
const LETTER = 7.2;

type Item = { kind: "box"; box: Box } | { kind: "slab"; layers: [number, number] };

/** Which layer a stack of `depth` has open when `layer` is asked for. */
export function opened(layer: number, depth: number): number {
  return Math.min(Math.max(layer, 0), depth - 1);
}

/** The boxes of a column from below, closed layers as slabs. */
function itemsOf(boxes: readonly Box[], layer: number): Item[] {
  const depth = 1 + Math.max(-1, ...boxes.map((box) => box.layer ?? -1));
  const open = opened(layer, depth);
  const slab = (first: number, last: number): Item[] =>
    first > last
      ? []
      : depth > MANY
        ? [{ kind: "slab", layers: [first, last] }]
        : Array.from({ length: last - first + 1 }, (_, i) => ({
            kind: "slab",
            layers: [first + i, first + i],
          }));
  const asItems = (some: readonly Box[]): Item[] => some.map((box) => ({ kind: "box", box }));
  const at = boxes.findIndex((box) => box.layer !== null);
  if (at < 0) return asItems(boxes);
  const end = boxes.findLastIndex((box) => box.layer !== null) + 1;
  return [
    ...asItems(boxes.slice(0, at)),
    ...slab(0, open - 1),
    ...asItems(boxes.filter((box) => box.layer === open)),
    ...slab(open + 1, depth - 1),
    ...asItems(boxes.slice(end)),
  ];
}

/** A label in one line, or in two where it is too wide. */
export function lines(label: string, width: number): string[] {
  if (label.length * LETTER <= width - 12) return [label];
  const words = label.split(/(?<=[\s-])/);
  for (let cut = words.length - 1; cut > 0; cut--) {
    const first = words.slice(0, cut).join("").trim();
    if (first.length * LETTER <= width - 12) return [first, words.slice(cut).join("").trim()];
  }
  return [label];
}

interface Placed {
  spots: Spot[];
  frame: Frame | null;
  height: number;
}

/** One column, its spots measured upwards from 0 at the bottom (y is turned later). */
function stacked(items: readonly Item[], column: number, x: number, width: number, around: number): Placed {
  const spots: Spot[] = [];
  let up = 0;
  let inside = false;
  let frame: Frame | null = null;
  for (const item of items) {
    const within = item.kind === "box" && item.box.layer !== null;
    if (within !== inside) up += within ? around : around + TITLE;
    if (within && !frame)
      frame = { x: x - around, y: up - around, width: width + 2 * around, height: 0, label: "", column };
    if (inside && !within && frame) frame.height = up - GAP - frame.y;
    inside = within;
    const label =
      item.kind === "box"
        ? item.box.label
        : item.layers[0] === item.layers[1]
          ? `Layer ${item.layers[0] + 1}`
          : `Layers ${item.layers[0] + 1} – ${item.layers[1] + 1}`;
    const height = item.kind === "slab" ? SLAB : lines(label, width).length > 1 ? TALL : BOX;
    const id = item.kind === "box" ? item.box.id : `${column}:${item.layers.join("-")}`;
    spots.push({
      id,
      column,
      x,
      y: up,
      width,
      height,
      label,
      box: item.kind === "box" ? item.box : null,
      layers: item.kind === "slab" ? item.layers : null,
    });
    up += height + GAP;
  }
  if (inside && frame) frame.height = up - GAP + around + TITLE - frame.y;
  if (frame) {
    const first = items.find((item) => item.kind === "box" && item.box.layer !== null);
    if (first?.kind === "box") frame.label = `Layer ${first.box.layer! + 1}`;
  }
  return { spots, frame, height: up - GAP + (inside ? around + TITLE : 0) };
}

/** The whole drawing for a width of `room`. */
export function draw(answer: InsideAnswer, layer: number, room: number): Drawing {
  const stacks = (["encoder", "decoder"] as const).filter((name) =>
    answer.boxes.some((box) => box.stack === name),
  );
  const top = answer.boxes.filter((box) => box.stack === "top");
  const columns = Math.max(stacks.length, 1);
  const { frame, edge, channel } = room < 420 ? TIGHT : ROOMY;
  const free = room - 2 * (edge + frame) - (columns - 1) * (channel + 2 * frame);
  const wide = Math.max(96, Math.min(190, free / columns));
  const width = columns * wide + 2 * (edge + frame) + (columns - 1) * (channel + 2 * frame);
  const placed = stacks.map((name, column) => {
    const own = answer.boxes.filter((box) => box.stack === name);
    const crowned = column === columns - 1 ? [...own, ...top] : own;
    return stacked(
      itemsOf(crowned, layer),
      column,
      edge + frame + column * (wide + channel + 2 * frame),
      wide,
      frame,
    );
  });
  const tallest = Math.max(0, ...placed.map(({ height }) => height));
  const height = tallest + HEAD + WORDS;
  const turned = <T extends { y: number; height: number }>(one: T): T => ({
    ...one,
    y: height - WORDS - one.y - one.height,
  });
  const spots = placed.flatMap((one) => one.spots.map(turned));
  return {
    width,
    height,
    spots,
    frames: placed.flatMap((one) => (one.frame ? [turned(one.frame)] : [])),
    lines: linesOf(answer.arrows, spots, columns),
    texts: placed.map(({ spots: some }, i) => ({
      text: textOf(stacks[i] === "encoder" ? answer.source : answer.target, wide),
      x: some[0]!.x + wide / 2,
      name: stacks[i] === "encoder" ? "Encoder" : "Decoder",
      y: height - WORDS + 13,
    })),
  };
}

/** As much of the text as fits under a column. */
function textOf(words: readonly Word[] | null, width: number): string {
  return cut((words ?? []).map(({ text }) => text).join(" "), Math.floor((width + 16) / 6.4));
}

/** The spot that shows a box: itself, or the slab of its layer. */
function shownBy(spots: readonly Spot[], id: string, stack: number): Spot | undefined {
  const own = spots.find((spot) => spot.id === id);
  if (own) return own;
  const layer = Number(id.split(".")[1]);
  return spots.find(
    (spot) => spot.column === stack && spot.layers && layer >= spot.layers[0] && layer <= spot.layers[1],
  );
}

function linesOf(arrows: readonly Arrow[], spots: readonly Spot[], columns: number): Line[] {
  const found = new Map<string, Line>();
  const columnOf = (id: string): number => (columns > 1 && id.startsWith("decoder") ? 1 : 0);
  const order = { flow: 0, residual: 1, memory: 2 };
  for (const arrow of [...arrows].sort((a, b) => order[a.kind] - order[b.kind])) {
    const from = shownBy(spots, arrow.from, columnOf(arrow.from));
    const to = shownBy(spots, arrow.to, columnOf(arrow.to));
    if (!from || !to || from === to) continue;
    // past a sub-layer that is hidden in a slab there is nothing to go around
    if (arrow.kind === "residual" && to.layers) continue;
    const id = `${arrow.kind}:${from.id}:${to.id}`;
    if (!found.has(id))
      found.set(id, { id, kind: arrow.kind, shape: arrow.shape, ...routed(arrow.kind, from, to, columns) });
  }
  return [...found.values()];
}

function routed(
  kind: Arrow["kind"],
  from: Spot,
  to: Spot,
  columns: number,
): Pick<Line, "path" | "at" | "anchor"> {
  const middle = from.x + from.width / 2;
  const outward = columns > 1 && from.column === columns - 1 ? 1 : -1;
  if (kind === "flow") {
    const below = to.y + to.height;
    return {
      path: `M${middle},${from.y}V${below + 1}`,
      at: [middle - 8 * outward, below + 13],
      anchor: outward > 0 ? "end" : "start",
    };
  }
  if (kind === "residual") {
    const side = outward < 0 ? to.x : to.x + to.width;
    const around = side + outward * LOOP;
    const tap = from.y - 9;
    const into = to.y + to.height / 2;
    return {
      path: rounded(
        [
          [middle, tap],
          [around, tap],
          [around, into],
          [side + outward, into],
        ],
        7,
      ),
      at: null,
      anchor: "start",
    };
  }
  const channel = (from.x + from.width + to.x) / 2;
  const above = from.y - 14;
  const into = to.y + to.height / 2;
  const path = rounded(
    [
      [middle, from.y],
      [middle, above],
      [channel, above],
      [channel, into],
      [to.x - 1, into],
    ],
    8,
  );
  return { path, at: null, anchor: "start" };
}

/** The spot that an arrow key leads to. */
export function neighbour(drawing: Drawing, id: string, key: string): Spot | null {
  const here = drawing.spots.find((spot) => spot.id === id);
  if (!here) return drawing.spots[0] ?? null;
  const near = (some: Spot[]): Spot | null =>
    some.sort((a, b) => Math.abs(a.y - here.y) - Math.abs(b.y - here.y))[0] ?? null;
  const { spots } = drawing;
  if (key === "ArrowUp") return near(spots.filter((spot) => spot.column === here.column && spot.y < here.y));
  if (key === "ArrowDown")
    return near(spots.filter((spot) => spot.column === here.column && spot.y > here.y));
  if (key === "ArrowLeft") return near(spots.filter((spot) => spot.column === here.column - 1));
  if (key === "ArrowRight") return near(spots.filter((spot) => spot.column === here.column + 1));
  return null;
}
