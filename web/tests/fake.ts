/** Answers for views under test in place of the server: `fetch` is stubbed, nothing else. */
import { vi } from "vitest";
import type { ModelInfo, Tensor } from "../src/lib/api";

export const MODEL: ModelInfo = {
  name: "tiny",
  family: "encoder-decoder",
  task: "translate",
  labels: [],
  parameters: 1234,
  layers: { encoder: 1, decoder: 1 },
  heads: 2,
  width: 4,
  vocabulary: 20,
  position: "sinusoidal",
  norm: "post-layer",
  sublayer: "norm(x + f(x))",
  without: [],
  has_source: true,
  kinds: ["encoder.self", "decoder.self", "decoder.cross"],
  limit: 512,
  examples: ["a b", "c d"],
  config: {},
};

/** Numbers as the server packs them. */
export function pack(values: readonly number[], shape: number[]): Tensor {
  const bytes = new Uint8Array(4 * values.length);
  const view = new DataView(bytes.buffer);
  values.forEach((value, i) => view.setFloat32(4 * i, value, true));
  return { shape, data: btoa(String.fromCharCode(...bytes)) };
}

export type Answers = Record<string, (body: Record<string, unknown>) => unknown>;

/** Stubs `fetch`; a thrown Error is a refusal with its message. Returns the list of what was asked. */
export function serve(answers: Answers): { path: string; body: Record<string, unknown> }[] {
  const asked: { path: string; body: Record<string, unknown> }[] = [];
  const all: Answers = { "/api/models": () => ({ models: [MODEL] }), ...answers };
  vi.stubGlobal("fetch", async (path: string, init?: RequestInit) => {
    const file = init?.body instanceof Blob ? { sent: await init.body.text() } : null;
    const body = file ?? (JSON.parse(String(init?.body ?? "{}")) as Record<string, unknown>);
    asked.push({ path, body });
    const answer = all[path.split("?")[0] ?? ""];
    try {
      if (!answer) throw new Error("There is no such address.");
      return new Response(JSON.stringify(answer(body)));
    } catch (reason) {
      return new Response(JSON.stringify({ error: (reason as Error).message }), { status: 400 });
    }
  });
  return asked;
}

/** Waits until `holds` no longer throws. */
export async function until(holds: () => void): Promise<void> {
  await vi.waitFor(holds, { timeout: 3000, interval: 10 });
}
