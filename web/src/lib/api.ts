/**
 * The server's answers as types, and the only two functions that ask for them.
 *
 * Knows nothing about views. A refusal becomes an `ApiError` whose message is a sentence for the reader; a server that
 * is busy (429) is asked again after the pause that it names, a few times, and `waiting` says so meanwhile.
 */
import { writable } from "svelte/store";

/** A token as a person can read it. */
export interface Word {
  id: number;
  text: string;
  kind: "special" | "punctuation" | "word";
}

/** Numbers as the model has them: base64 of float32, little-endian, row-major. */
export interface Tensor {
  shape: number[];
  data: string;
}

export type Part = "residual connections" | "cross-attention" | "causal mask" | "norms";

export interface ModelInfo {
  name: string;
  family: string;
  task: string | null;
  /** A classifier's classes by name. */
  labels: string[];
  parameters: number;
  layers: { encoder: number; decoder: number };
  heads: number;
  width: number;
  vocabulary: number;
  position: string;
  norm: string;
  /** What becomes of x in a sub-layer f: "norm(x + f(x))". */
  sublayer: string;
  /** Parts of a Transformer that this one does without. */
  without: Part[];
  has_source: boolean;
  /** The kinds of attention that it has. */
  kinds: AttentionKind[];
  limit: number;
  examples: string[];
  config: Record<string, unknown>;
}

export interface Chance {
  id: number;
  text: string;
  p: number;
}

export interface RunStep {
  position: number;
  chosen: Word;
  logp: number;
  before: Chance[];
  after: Chance[];
  kept: number;
  /** At the length limit only the stop symbol is left. */
  forced: boolean;
}

export type NodeState = "live" | "pruned" | "finished" | "best";

export interface BeamNode {
  id: number;
  parent: number | null;
  step: number;
  word: Word;
  logp: number;
  score: number;
  /** Whether the search went on from it (or it ended a text). */
  kept: boolean;
  state: NodeState;
}

export interface Cost {
  training: { passes: number; positions: number; attended: number };
  /** `rows` texts go through each pass at once; `uncached`: pairs if nothing were remembered. */
  inference: { passes: number; cached: number[]; attended: number; rows: number[]; uncached: number };
  /** Where the model's attention is cheaper than the exact one that is counted. */
  note?: string;
}

/** What ended a text: the model's stop symbol, or its limit. */
export type Ending = "stop" | "length";

export interface RunAnswer {
  source: Word[];
  steps: RunStep[];
  output: { text: string; words: Word[]; logp: number; score: number; stopped: Ending };
  tree: { nodes: BeamNode[]; best: number[]; left_out: number } | null;
  cost: Cost;
}

export interface LabelChance {
  label: string;
  p: number;
}

export interface ClassVerdict {
  kind: "classify";
  label: string;
  /** All classes, the likeliest first. */
  classes: LabelChance[];
  /**
   * The text in parts that were left out one at a time: `support` is the label's log-probability with the part minus
   * that without it, `p` and `label` what the model says without it. Null where nothing would be left.
   */
  parts: { text: string; support: number | null; p: number | null; label: string | null }[];
  /** How many words the largest part has: 1, but in a long text. */
  together: number;
}

export interface TagVerdict {
  kind: "tag";
  words: { text: string; tag: string; top: LabelChance[] }[];
}

export type VerdictAnswer = ClassVerdict | TagVerdict;

/** One tensor in a box's chain. */
export interface BoxStep {
  name: string;
  label: string;
  formula: string;
  shape: number[];
  axes: string[];
  note: string;
}

export interface Box {
  id: string;
  label: string;
  kind: string;
  stack: "encoder" | "decoder" | "top";
  layer: number | null;
  order: number;
  steps: BoxStep[];
}

export interface Arrow {
  from: string;
  to: string;
  shape: number[];
  kind: "flow" | "residual" | "memory";
}

export interface InsideAnswer {
  source: Word[] | null;
  target: Word[] | null;
  family: string;
  boxes: Box[];
  arrows: Arrow[];
}

export interface TensorAnswer {
  name: string;
  tensor: Tensor;
  rows: string[];
  columns: string[] | null;
  formula: string;
  low: number;
  high: number;
}

export type AttentionKind = "encoder.self" | "decoder.self" | "decoder.cross";

export interface AttentionAnswer {
  kinds: {
    kind: AttentionKind;
    rows: Word[];
    columns: Word[];
    layers: number;
    heads: number;
    weights: Tensor;
    thumbnails: boolean;
    /** What the weights are where they are not the softmax of scores; else empty. */
    note: string;
  }[];
  /** What the maps of a vision model are laid over. */
  picture?: PictureAnswer | null;
  /** The notes of a piece of music. */
  notes?: PlacedNote[] | null;
}

export interface PlacedNote {
  /** Of MIDI: 60 is middle C. */
  pitch: number;
  /** In seconds. */
  begin: number;
  end: number;
  /** The tokens that the note is made of. */
  columns: number[];
}

export interface PictureAnswer {
  /** The address of a PNG that carries its own dots. */
  source: string;
  /** Patches of a side. */
  side: number;
  /** The first column that is a patch: 1 behind a class token. */
  first: number;
  pooling: string;
}

export interface AttentionMap {
  rows: Word[];
  columns: Word[];
  weights: Tensor;
  note?: string;
}

export interface ClassesAnswer {
  texts: number;
  classes: string[];
  kinds: { kind: AttentionKind; mass: Tensor }[];
}

export interface EvidenceAnswer {
  columns: Word[];
  predicted: Word;
  /** What the numbers are about, as half a sentence. */
  what: string;
  weights: number[];
  gradient: number[];
  /** Null for columns that were not tried: in a long text only the larger weights are. */
  ablated: (number | null)[];
  /** How many columns the row may look at, and of how many the weight was removed. */
  visible: number;
  tried: number;
  head_ablation: { before: number; after: number };
  permuted: { before: number; mean_after: number; total_variation: number };
  tau: { gradient: number | null; ablated: number | null };
  sentence: string;
}

export interface SchemeAnswer {
  name: string;
  table: Tensor | null;
  waves: { index: number; values: number[] }[] | null;
  similarity: { distances: number[]; values: number[]; what: string };
  bias: Tensor | null;
  guidelines: { name: string; holds: boolean; sentence: string }[];
  /** Signals nearer than this part of the largest count as the same. */
  tolerance: number;
  note: string;
  formula: string;
}

export interface PositionsAnswer {
  schemes: SchemeAnswer[];
}

export interface ContextsAnswer {
  word: string;
  /** `spelling`: which of `spellings` the word's tokens are here. */
  occurrences: { sentence: string; words: Word[]; at: [number, number]; spelling: number }[];
  /** The different tokens that cover the word; occurrences of one spelling are one word to the model. */
  spellings: Word[][];
  layers: string[];
  static: Tensor;
  between: Tensor;
  projection: Tensor;
  /** Share of the variance that the two directions hold, by layer. */
  explained: number[];
}

export interface DepthAnswer {
  words: Word[];
  sublayers: { name: string; label: string; kind: string; layer: number }[];
  norms: Tensor;
  stream: Tensor;
  predictions: { after: string; top: Chance[][] }[];
  final: Word[];
  note: string;
}

/** Rows of numbers; null is −∞, for JSON has no infinity. */
export type Numbers = (number | null)[][];
/** What a slide prints; a string where a number would lose a printed zero ("0.50"). */
export type PrintedNumbers = (number | string | null)[][];

export interface LectureStep {
  name: string;
  formula: string;
  /** Whether the slide gives it, so that nothing is computed. */
  given: boolean;
  value: Numbers;
  printed: PrintedNumbers | null;
  /** Cells that are plainly wrong; `marks` has also those cut or off in their last digit. */
  wrong: [number, number][];
  marks: { row: number; column: number; mark: string }[];
  rows: string[];
  columns: string[];
  note: string;
}

export interface LectureExample {
  id: string;
  title: string;
  deck: string;
  note: string;
  steps: LectureStep[];
  /** What the lecture asks, and what is right; empty where it asks nothing. */
  question: string;
  answer: string;
  erratum: string | null;
  /** The step with which the erratum is shown, and not before. */
  erratum_at: number | null;
}

/** Something a slide has wrong besides the numbers of an example. */
export interface Slip {
  deck: string;
  slide: string;
  printed: string;
  right: string;
  kind: string;
  example: string;
}

export interface LecturesAnswer {
  examples: LectureExample[];
  slips: Slip[];
  /** How exact the recomputed numbers are, and when a printed one counts as right, as sentences. */
  tolerance: string;
}

/** One line of a training log; what was not a number there is null. */
export type LogRow = { step: number } & Record<string, number | null>;

export interface TrainingAnswer {
  there: boolean;
  running: boolean;
  curves: {
    train: LogRow[];
    validation: LogRow[];
  };
  samples: { step: number; source: string; written: string; reference: string }[];
  flops: { spent: number | null; table: { name: string; flops: number }[] };
  facts: Record<string, unknown>;
}

/** What the server (or the way to it) says is wrong, as one sentence. */
export class ApiError extends Error {
  constructor(
    sentence: string,
    readonly status: number = 0,
  ) {
    super(sentence);
    this.name = "ApiError";
  }
}

const SILENT = "The explorer’s server does not respond. Is `clearhead explore` still running?";

/** The sentence in a refusal's body, whatever its shape. */
function sentenceOf(body: unknown, status: number): string {
  if (typeof body === "object" && body !== null) {
    const { error, detail } = body as { error?: unknown; detail?: unknown };
    if (typeof error === "string") return error;
    if (typeof detail === "string") return detail;
  }
  return `The server refused this request (status ${status}) and gave no reason.`;
}

const BUSY = [429, 503];
const TRIES = 5; // in all
const LONGEST_PAUSE = 15; // seconds; a server that wants more is not asked again without the reader's word

/** One sentence for each question that waits for a busy server: what it said, and when it is asked again. */
export const waiting = writable<string[]>([]);

/** How many seconds a busy server wants to be left alone: Retry-After as seconds or as a date, else 1, 2, 4 … */
export function pauseOf(header: string | null, tried: number, now: number): number {
  const named = header === null || header.trim() === "" ? NaN : Number(header);
  if (Number.isFinite(named)) return Math.max(0, named);
  const date = Date.parse(header ?? "");
  return Number.isNaN(date) ? 2 ** (tried - 1) : Math.max(0, (date - now) / 1000);
}

/** Waits, visibly; ends with an AbortError when the question is given up. */
async function rest(
  seconds: number,
  sentence: string,
  signal: AbortSignal | null | undefined,
): Promise<void> {
  waiting.update((all) => [...all, sentence]);
  try {
    await new Promise<void>((done, failed) => {
      const timer = setTimeout(done, 1000 * seconds);
      signal?.addEventListener("abort", () => {
        clearTimeout(timer);
        failed(new DOMException("given up", "AbortError"));
      });
    });
  } finally {
    waiting.update((all) => {
      const at = all.indexOf(sentence);
      return all.filter((_, i) => i !== at);
    });
  }
}

async function once(path: string, init: RequestInit): Promise<{ response: Response; body: unknown }> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (reason) {
    if (superseded(reason)) throw reason;
    throw new ApiError(SILENT);
  }
  try {
    return { response, body: await response.json() };
  } catch (reason) {
    if (superseded(reason)) throw reason;
    throw new ApiError(`The server's answer could not be read (status ${response.status}).`, response.status);
  }
}

async function answered<T>(path: string, init: RequestInit): Promise<T> {
  for (let tried = 1; ; tried++) {
    const { response, body } = await once(path, init);
    if (response.ok) return body as T;
    const refusal = new ApiError(sentenceOf(body, response.status), response.status);
    if (!BUSY.includes(response.status) || tried === TRIES) throw refusal;
    const pause = pauseOf(response.headers.get("Retry-After"), tried, Date.now());
    if (pause > LONGEST_PAUSE) throw refusal;
    const soon = pause >= 1 ? `in ${Math.ceil(pause)} s` : "now";
    await rest(pause, `${refusal.message} Trying again ${soon} (${tried + 1} of ${TRIES}).`, init.signal);
  }
}

const underway = new Map<string, AbortController>();

/** True for the error of a request that a newer one replaced (or that its caller gave up). */
export function superseded(reason: unknown): boolean {
  return reason instanceof DOMException && reason.name === "AbortError";
}

/**
 * Asks the server; a body is JSON, or a file as it is. Without a `signal` the newest request to a path wins: the one before it is aborted and
 * rejects with an error for which `superseded` holds. With a `signal` the caller decides (many at once).
 * Most views want `Asked` (lib/asked.svelte.ts), which does all this.
 */
export async function post<T>(path: string, body: object, signal?: AbortSignal): Promise<T> {
  const file = body instanceof Blob;
  let own: AbortController | null = null;
  if (!signal) {
    underway.get(path)?.abort();
    own = new AbortController();
    underway.set(path, own);
  }
  try {
    return await answered<T>(path, {
      method: "POST",
      headers: { "Content-Type": file ? "application/octet-stream" : "application/json" },
      body: file ? body : JSON.stringify(body),
      signal: signal ?? own!.signal,
    });
  } finally {
    if (own && underway.get(path) === own) underway.delete(path);
  }
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return answered<T>(path, signal ? { signal } : {});
}

/** The tensor's numbers, row-major, exactly as the model has them. */
export function unpack(tensor: Tensor): Float32Array {
  const raw = atob(tensor.data);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const size = tensor.shape.reduce((product, n) => product * n, 1);
  if (bytes.length !== 4 * size)
    throw new ApiError(`A tensor of shape ${tensor.shape.join(" × ")} came with ${bytes.length} bytes.`);
  const view = new DataView(bytes.buffer);
  const values = new Float32Array(size);
  for (let i = 0; i < size; i++) values[i] = view.getFloat32(4 * i, true);
  return values;
}
