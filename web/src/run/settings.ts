/**
 * The dials of a run: their names in the address and in the request, their bounds, and which strategy uses which.
 *
 * Only what differs from the usual value stands in the address. Pure functions.
 */
import type { Changes, Params } from "../lib/address";

export type Strategy = "greedy" | "sample" | "beam";
export const STRATEGIES: readonly Strategy[] = ["greedy", "sample", "beam"];

export type DialName =
  | "temperature"
  | "top_k"
  | "top_p"
  | "min_p"
  | "frequency"
  | "presence"
  | "beam"
  | "length_penalty"
  | "max_length"
  | "seed";

export interface Dial {
  name: DialName;
  label: string;
  usual: number;
  low: number;
  high: number;
  step: number;
  /** How the usual value reads where it means "nothing is done". */
  off?: string;
  for: readonly Strategy[];
  hint: string;
}

const ALL = STRATEGIES;

export const DIALS: readonly Dial[] = [
  {
    name: "temperature",
    label: "Temperature",
    usual: 1,
    low: 0.1,
    high: 3,
    step: 0.05,
    for: ["sample"],
    hint: "log-probabilities are divided by it: below 1 sharpens, above 1 flattens",
  },
  {
    name: "top_k",
    label: "Top-k",
    usual: 0,
    low: 0,
    high: 50,
    step: 1,
    off: "all",
    for: ["sample"],
    hint: "keep only the k most likely tokens",
  },
  {
    name: "top_p",
    label: "Top-p",
    usual: 1,
    low: 0.05,
    high: 1,
    step: 0.05,
    off: "all",
    for: ["sample"],
    hint: "keep the smallest set of tokens with this total probability",
  },
  {
    name: "min_p",
    label: "Min-p",
    usual: 0,
    low: 0,
    high: 1,
    step: 0.05,
    off: "off",
    for: ["sample"],
    hint: "keep tokens with at least this share of the highest probability",
  },
  {
    name: "beam",
    label: "Beam width",
    usual: 4,
    low: 2,
    high: 16,
    step: 1,
    for: ["beam"],
    hint: "number of texts kept at each step",
  },
  {
    name: "length_penalty",
    label: "Length penalty α",
    usual: 1,
    low: 0,
    high: 2,
    step: 0.1,
    for: ["beam"],
    hint: "a text's log-probability is divided by its length to the power α",
  },
  {
    name: "frequency",
    label: "Frequency penalty",
    usual: 0,
    low: -2,
    high: 4,
    step: 0.1,
    off: "off",
    for: ALL,
    hint: "subtracted from a token's score each time it is written",
  },
  {
    name: "presence",
    label: "Presence penalty",
    usual: 0,
    low: -2,
    high: 4,
    step: 0.1,
    off: "off",
    for: ALL,
    hint: "subtracted from a token's score once it has been written",
  },
  {
    name: "max_length",
    label: "Maximum length",
    usual: 0,
    low: 0,
    high: 100,
    step: 1,
    off: "as needed",
    for: ALL,
    hint: "maximum number of tokens to write",
  },
  {
    name: "seed",
    label: "Seed",
    usual: 0,
    low: 0,
    high: 99,
    step: 1,
    for: ["sample"],
    hint: "the same seed gives the same text",
  },
];

export interface Settings {
  strategy: Strategy;
  values: Record<DialName, number>;
}

export function strategyOf(params: Params): Strategy {
  return STRATEGIES.find((name) => name === params["strategy"]) ?? "greedy";
}

/** Reads the dials from the address; what lies outside its bounds is put back to the nearest bound. */
export function settingsOf(params: Params): Settings {
  const read = (dial: Dial): [DialName, number] => {
    const given = params[dial.name];
    const value = given === undefined ? NaN : Number(given);
    return [dial.name, Number.isFinite(value) ? Math.min(Math.max(value, dial.low), dial.high) : dial.usual];
  };
  const values = Object.fromEntries(DIALS.map(read)) as Record<DialName, number>;
  return { strategy: strategyOf(params), values };
}

/** How a dial's new value is written into the address: not at all where it is the usual one. */
export function turned(dial: Dial, value: number): Changes {
  return { [dial.name]: value === dial.usual ? null : value, step: null };
}

/** The request's part that the dials decide; a dial that the strategy does not use is left out. */
export function bodyOf({ strategy, values }: Settings): Record<string, string | number> {
  const used = DIALS.filter((dial) => dial.for.includes(strategy));
  const body: Record<string, string | number> = { strategy };
  for (const { name, usual } of used)
    if (name !== "max_length" || values[name] !== usual) body[name] = values[name];
  return body;
}

/** The rule by which the strategy chooses, in a line; x is the source, where there is one. */
export function formulaOf(strategy: Strategy, hasSource: boolean): string {
  const given = hasSource ? "y₁ … yₜ₋₁, x" : "y₁ … yₜ₋₁";
  const text = hasSource ? "P(y | x)" : "P(y)";
  return {
    greedy: `yₜ = argmax p(y | ${given})`,
    sample: `yₜ ~ q(y) ∝ exp( log p(y | ${given}) / T ), over the tokens that are kept`,
    beam: `score(y) = log ${text} / |y|ᵅ,   log ${text} = Σₜ log p(yₜ | ${given})`,
  }[strategy];
}
