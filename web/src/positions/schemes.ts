/**
 * Position schemes for the page: their names in reading order, which to show at first,
 * and their numbers as series and tables.
 */

import { table as tableCsv, type Cell } from "../charts/csv";
import type { Series } from "../charts/plot";

export interface SchemeName {
  name: string;
  label: string;
  group:
    | "Added to the embedding"
    | "Rotates queries and keys"
    | "Added to the scores"
    | "The tutorial’s candidates";
}

export const SCHEMES: SchemeName[] = [
  { name: "sinusoidal", label: "Sinusoidal", group: "Added to the embedding" },
  { name: "learned", label: "Learned", group: "Added to the embedding" },
  { name: "none", label: "None", group: "Added to the embedding" },
  { name: "rotary", label: "Rotary", group: "Rotates queries and keys" },
  { name: "t5", label: "T5 bias", group: "Added to the scores" },
  { name: "alibi", label: "ALiBi", group: "Added to the scores" },
  { name: "transformer_xl", label: "Transformer-XL", group: "Added to the scores" },
  { name: "shaw", label: "Shaw relative", group: "Added to the scores" },
  { name: "music", label: "Music Transformer", group: "Added to the scores" },
  { name: "t", label: "The number t itself", group: "The tutorial’s candidates" },
  { name: "t/T", label: "t divided by the length", group: "The tutorial’s candidates" },
  { name: "cos(t(k+1)/(T_max·d))", label: "Slow cosines", group: "The tutorial’s candidates" },
];

export function labelOf(name: string): string {
  return SCHEMES.find((scheme) => scheme.name === name)?.label ?? name;
}

export function groups(): { group: string; schemes: SchemeName[] }[] {
  const found = new Map<string, SchemeName[]>();
  for (const scheme of SCHEMES) found.set(scheme.group, [...(found.get(scheme.group) ?? []), scheme]);
  return [...found].map(([group, schemes]) => ({ group, schemes }));
}

/** In the address: no second scheme, on purpose. */
export const ALONE = "-";

/** The two schemes of the address; at first the model's own beside the paper's, or rotary beside that. */
export function chosenPair(
  first: string | undefined,
  second: string | undefined,
  own: string,
): [string, string | null] {
  const known = (name: string | undefined) =>
    SCHEMES.some((scheme) => scheme.name === name) ? name : undefined;
  const left = known(first) ?? known(own) ?? "sinusoidal";
  if (second === ALONE) return [left, null];
  return [left, known(second) ?? (left === "sinusoidal" ? "rotary" : "sinusoidal")];
}

export interface Wave {
  index: number;
  values: number[];
}

export function waveSeries(waves: Wave[]): Series[] {
  return waves.map(({ index, values }) => ({
    name: `feature ${index}`,
    points: values.map((value, position) => [position, value] as const),
  }));
}

/** At most `most` waves, evenly chosen, fastest and slowest among them: more cannot be told apart. */
export function someWaves(waves: Wave[], most = 6): Wave[] {
  if (waves.length <= most) return waves;
  return Array.from(
    { length: most },
    (_, i) => waves[Math.round((i * (waves.length - 1)) / (most - 1))],
  ).filter((wave) => wave !== undefined);
}

/** A table (positions, features) the way it fits a page: one with few features is laid on its side. */
export function oriented(
  values: Float32Array,
  shape: number[],
): { values: Float32Array; rows: number; columns: number; turned: boolean } {
  const [positions = 0, features = 0] = shape;
  if (features > 8) return { values, rows: positions, columns: features, turned: false };
  const turned = new Float32Array(values.length);
  for (let p = 0; p < positions; p++) {
    for (let f = 0; f < features; f++) turned[f * positions + p] = values[p * features + f] ?? 0;
  }
  return { values: turned, rows: features, columns: positions, turned: true };
}

/** −1, 0 and 1 in the middle of the colours: the same distance from 0 to either side. */
export function symmetric(values: Float32Array): [number, number] {
  let most = 0;
  for (const value of values) if (Number.isFinite(value) && Math.abs(value) > most) most = Math.abs(value);
  return most > 0 ? [-most, most] : [-1, 1];
}

export interface SchemeNumbers {
  name: string;
  table: { values: Float32Array; positions: number; features: number } | null;
  similarity: { distances: number[]; values: number[] } | null;
  bias: { values: Float32Array; heads: number; positions: number } | null;
}

/** Everything drawn, as one long table: scheme, what, two indices, value. */
export function positionsCsv(schemes: SchemeNumbers[]): string {
  function* lines(): Generator<Cell[]> {
    for (const { name, table, similarity, bias } of schemes) {
      if (table) {
        for (const [i, value] of table.values.entries()) {
          yield [name, "table", "", Math.floor(i / table.features), i % table.features, value];
        }
      }
      if (bias) {
        const size = bias.positions * bias.positions;
        for (const [i, value] of bias.values.entries()) {
          const within = i % size;
          yield [
            name,
            "bias",
            Math.floor(i / size),
            Math.floor(within / bias.positions),
            within % bias.positions,
            value,
          ];
        }
      }
      for (const [i, distance] of (similarity?.distances ?? []).entries()) {
        yield [name, "similarity", "", distance, "", similarity?.values[i]];
      }
    }
  }
  return tableCsv(["scheme", "what", "head", "row", "column", "value"], lines());
}
