/**
 * Which query looks at which key, and when: a text learned in one masked pass, or written pass by pass.
 *
 * Positions 0 … T−1 of the decoder; query t may look at keys 0 … t, or at all without a causal mask. Pure; Passes.svelte draws it.
 */
import type { Cost } from "../lib/api";

export interface Pass {
  /** Positions that go into the model in this pass: [first, last]. */
  rows: [number, number];
  /** Keys that were remembered from earlier passes. */
  cached: number;
}

/** The passes of inference, from what the server counted. */
export function passesOf(cost: Cost): Pass[] {
  const { cached, passes } = cost.inference;
  const total = cost.training.positions;
  return Array.from({ length: passes }, (_, i) => {
    const before = cached[i] ?? i;
    const first = i === 0 ? 0 : Math.max(before, i); // a recurrent model remembers no keys, and still moves on
    const last = i === 0 ? Math.max((cached[1] ?? (passes > 1 ? 1 : total)) - 1, 0) : first;
    return { rows: [first, Math.min(last, total - 1)], cached: before };
  });
}

/**
 * The cells at and below the diagonal for rows `first` … `last`, as the path of one shape. Without a causal mask, those
 * of the `together` positions that go through in one pass see each other.
 */
export function staircase(first: number, last: number, cell: number, together = 0): string {
  if (last < first) return "";
  let path = `M0,${first * cell}`;
  for (let r = first; r <= last; r++)
    path += `H${(r < together ? together : r + 1) * cell}V${(r + 1) * cell}`;
  return `${path}H0Z`;
}

/** Every count that the table under the drawing shows, by row: name, training, inference. */
export function counts(cost: Cost): [string, number, number][] {
  const { training, inference } = cost;
  const last = inference.cached.at(-1) ?? 0;
  const table: [string, number, number][] = [
    ["forward passes of the decoder", training.passes, inference.passes],
    [
      "positions in the largest pass",
      training.positions,
      Math.max(...passesOf(cost).map(({ rows }) => rows[1] - rows[0] + 1)),
    ],
    ["keys cached before the last pass", 0, last],
    ["query–key pairs per layer and head", training.attended, inference.attended],
    ["the same without a cache", training.attended, inference.uncached],
  ];
  const rows = Math.max(1, ...inference.rows);
  if (rows > 1) table.push(["texts decoded together", 1, rows]);
  return table;
}

/** What happens in one pass of writing, as a sentence. */
export function passText(now: Pass, index: number, passes: number, masked = true): string {
  const given = now.rows[1] - now.rows[0] + 1;
  const what =
    given > 1
      ? `the ${given} given tokens go through the decoder at once; each looks at ${masked ? "itself and at those before it" : "all of them"}`
      : now.cached === 0
        ? "one token goes through the decoder and looks at itself"
        : `one new token goes through the decoder and looks at ${now.cached} cached ${now.cached === 1 ? "key" : "keys"} and at itself`;
  return `Pass ${index + 1} of ${passes}: ${what}.`;
}
