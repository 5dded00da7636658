/** A row of weights as a piano roll: what each note gets, and where notes are drawn. */
import { table } from "../charts/csv";
import type { PlacedNote } from "../lib/api";
import { escapeXml } from "../lib/exports";

export interface Roll {
  width: number;
  height: number;
  /** Room for the names of pitches. */
  left: number;
  /** One rectangle for each note. */
  bars: { x: number; y: number; width: number; height: number }[];
  pitches: { pitch: number; y: number }[];
  seconds: { second: number; x: number }[];
}

const LEFT = 36;
const ABOVE = 6; // so that the name of the highest pitch is whole
const BELOW = 20; // for the seconds
const SEMITONE = 8; // pixels

/** What the events of each note get of a row (of weights rows × columns), together. */
export function onNotes(
  weights: Float32Array,
  columns: number,
  notes: readonly PlacedNote[],
  row: number,
): Float32Array {
  return Float32Array.from(notes, (note) =>
    note.columns.reduce((sum, column) => sum + (weights[row * columns + column] ?? 0), 0),
  );
}

/** What is left of the row: rests, time, loudness and the start. */
export function besideNotes(
  weights: Float32Array,
  columns: number,
  row: number,
  values: Float32Array,
): number {
  const all = weights.subarray(row * columns, (row + 1) * columns);
  return all.reduce((a, b) => a + b, 0) - values.reduce((a, b) => a + b, 0);
}

/** Time to the right, pitch upwards, within the room there is; a long piece is wider, and is scrolled. */
export function layRoll(notes: readonly PlacedNote[], room: number): Roll {
  const low = Math.min(...notes.map(({ pitch }) => pitch));
  const high = Math.max(...notes.map(({ pitch }) => pitch));
  const end = Math.max(...notes.map((note) => note.end));
  const second = Math.max(24, Math.min(320, (room - LEFT - 16) / end));
  const y = (pitch: number): number => ABOVE + (high - pitch) * SEMITONE;
  const every = Math.max(1, Math.ceil(30 / second));
  return {
    width: LEFT + end * second + 16,
    height: ABOVE + (high - low + 1) * SEMITONE + BELOW,
    left: LEFT,
    bars: notes.map((note) => ({
      x: LEFT + note.begin * second,
      y: y(note.pitch),
      width: (note.end - note.begin) * second,
      height: SEMITONE - 1,
    })),
    pitches: [...new Set([low, high])].map((pitch) => ({ pitch, y: y(pitch) + SEMITONE - 1 })),
    seconds: Array.from({ length: Math.floor(end / every) + 1 }, (_, i) => ({
      second: i * every,
      x: LEFT + i * every * second,
    })),
  };
}

export function rollSvg(
  roll: Roll,
  values: Float32Array,
  paint: (value: number) => string,
  title: string,
): string {
  const bars = roll.bars.map(
    ({ x, y, width, height }, i) =>
      `<rect x="${x.toFixed(1)}" y="${y}" width="${width.toFixed(1)}" height="${height}" ` +
      `fill="${paint(values[i] ?? 0)}" stroke="#465263" stroke-width="0.4"/>`,
  );
  const names = [
    ...roll.pitches.map(
      ({ pitch, y }) => `<text x="${roll.left - 5}" y="${y}" text-anchor="end">${pitch}</text>`,
    ),
    ...roll.seconds.map(
      ({ second, x }) =>
        `<text x="${x.toFixed(1)}" y="${roll.height - 5}" text-anchor="middle">${second} s</text>`,
    ),
  ];
  const [width, height] = [Math.ceil(roll.width), Math.ceil(roll.height)];
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="system-ui, sans-serif" font-size="11" fill="#161c25"><title>${escapeXml(title)}</title>` +
    `<rect width="100%" height="100%" fill="#ffffff"/>${bars.join("")}${names.join("")}</svg>\n`
  );
}

export function rollCsv(notes: readonly PlacedNote[], values: Float32Array): string {
  return table(
    ["pitch", "begin", "end", "weight"],
    notes.map((note, i) => [note.pitch, note.begin, note.end, values[i] ?? 0]),
  );
}
