/**
 * The bundles that the server holds, the chosen one, and the text that all views share.
 *
 * The choice lives in the address; here it is only read from there.
 */
import { derived, writable } from "svelte/store";
import { address } from "./address";
import { ApiError, get, type ModelInfo, type Part } from "./api";

export const models = writable<ModelInfo[]>([]);
/** Why there are no models, as a sentence. */
export const modelsProblem = writable<string | null>(null);

export async function loadModels(): Promise<void> {
  try {
    const answer = await get<{ models: ModelInfo[] }>("/api/models");
    models.set(answer.models);
    modelsProblem.set(answer.models.length ? null : "The server has no model to show.");
  } catch (reason) {
    modelsProblem.set(reason instanceof ApiError ? reason.message : String(reason));
  }
}

/** The model named in the address, else the first; null until the list is there. */
export const model = derived([models, address], ([$models, $address]) => {
  return $models.find(({ name }) => name === $address.params["model"]) ?? $models[0] ?? null;
});

/** What a model reads: the text that views share means something to models that read the same. */
export function readingOf({ family, task, config }: Pick<ModelInfo, "family" | "task" | "config">): string {
  if (family !== "vision") return task === "music" ? "music" : "text";
  const { size, channels } = imageOf(config);
  return `pictures ${channels}x${size}`;
}

/** What a model of pictures reads: the pixels of a side, and the channels. */
export function imageOf(config: ModelInfo["config"]): { size: number; channels: number } {
  return { size: 0, channels: 0, ...(config["image"] ?? {}) };
}

/** Whether the model has a part that can be taken out. */
export const has = derived(
  model,
  ($model) =>
    (part: Part): boolean =>
      !$model?.without.includes(part),
);

/** The text that views work on: the address's, else the model's first example. */
export const text = derived(
  [model, address],
  ([$model, $address]) => $address.params["text"] ?? $model?.examples[0] ?? "",
);

/** The given target, or "" where the model's own greedy translation is meant. */
export const target = derived(address, ($address) => $address.params["target"] ?? "");

/** The body that every question about the shared text begins with; null without a model or a text. */
export const question = derived([model, text, target], ([$model, $text, $target]) =>
  $model && $text.trim()
    ? { model: $model.name, text: $text, ...($target && $model.has_source ? { target: $target } : {}) }
    : null,
);
