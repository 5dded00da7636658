/**
 * What is said of a tensor in a box's chain: its size in words, its colours. Pure functions.
 */
import type { BoxStep } from "../lib/api";
import type { ScaleName } from "../lib/colour";

const NAMES: Record<string, [string, string]> = {
  source: ["source token", "source tokens"],
  target: ["target token", "target tokens"],
  head: ["head", "heads"],
  group: ["head", "heads"],
  feature: ["feature", "features"],
  vocabulary: ["word", "words"],
  class: ["class", "classes"],
  expert: ["expert", "experts"],
  block: ["block", "blocks"],
  mixture: ["mixture", "mixtures"],
  landmark: ["landmark", "landmarks"],
  round: ["round", "rounds"],
  "global token": ["global token", "global tokens"],
};

const LYING = ["feature", "class", "expert"];

/** "4 heads × 9 target tokens × 32 features". */
export function sizeInWords({ shape, axes }: BoxStep): string {
  return shape
    .map((size, i) => {
      const names = NAMES[axes[i] ?? ""];
      return names ? `${size} ${names[size === 1 ? 0 : 1]}` : String(size);
    })
    .join(" × ");
}

/** Whether one head of the tensor is shown at a time. */
export function byHead({ axes }: BoxStep): boolean {
  return axes[0] === "head" || axes[0] === "group";
}

/** Numbers with a sign diverge from 0; the others grow from the page's ground. */
export function scaleFor(low: number, high: number): ScaleName {
  return low < 0 && high > 0 ? "diverging" : "sequential";
}

/** What a row and a column are, for a cell without labels. */
export function sides(step: BoxStep): [string, string] {
  const left = byHead(step) ? step.axes.slice(1) : step.axes;
  const name = (axis: string | undefined, otherwise: string): string => NAMES[axis ?? ""]?.[0] ?? otherwise;
  // a single axis: one vector, or a number for each class or expert, is a row; a number for each token, a column
  if (left.length === 1)
    return LYING.includes(left[0] ?? "")
      ? ["text", name(left[0], "column")]
      : [name(left[0], "row"), "number"];
  return [name(left[0], "row"), name(left[1], "column")];
}
