/**
 * One question to the server as reactive state: the newest answer, whether one is under way, what went wrong.
 *
 * Each `Asked` is its own line to the server: a newer question replaces the older one, and other lines are
 * left alone. Knows nothing about what is asked.
 */
import { ApiError, get, post, superseded } from "./api";

/** What is wrong with such a question stays wrong when it is asked again. */
const REFUSALS = [400, 403, 404, 405, 413, 422];

export class Asked<T> {
  value = $state.raw<T | null>(null);
  /** The question that `value` answers, as JSON; "" without a body. */
  of = $state<string | null>(null);
  problem = $state<string | null>(null);
  busy = $state(false);
  private underway: AbortController | null = null;

  /** Asks anew (GET without a body). The last answer stays visible until the new one is there. */
  async ask(path: string, body?: object): Promise<T | null> {
    this.underway?.abort();
    const mine = new AbortController();
    this.underway = mine;
    this.busy = true;
    try {
      const answer = body ? await post<T>(path, body, mine.signal) : await get<T>(path, mine.signal);
      if (this.underway !== mine) return null;
      this.value = answer;
      this.of = body ? JSON.stringify(body) : "";
      this.problem = null;
      this.busy = false;
      return answer;
    } catch (reason) {
      if (this.underway !== mine || superseded(reason)) return null;
      this.value = null;
      this.problem = reason instanceof ApiError ? reason.message : String(reason);
      const refused = reason instanceof ApiError && REFUSALS.includes(reason.status);
      this.again = refused ? undefined : () => void this.ask(path, body);
      this.busy = false;
      return null;
    }
  }

  /** Asks the same once more; undefined where that is no use, because the server refuses this very question. */
  again = $state<(() => void) | undefined>();

  /** Gives up what is under way and forgets the answer. */
  clear(): void {
    this.underway?.abort();
    this.underway = null;
    this.value = null;
    this.problem = null;
    this.busy = false;
  }
}
