/**
 * One question to the server as reactive state: the newest answer, whether one is under way, what went wrong.
 *
 * Each `Asked` is its own line to the server: a newer question replaces the older one, and other lines are
 * left alone. Knows nothing about what is asked.
 */
import { ApiError, get, post, superseded } from "./api";

export class Asked<T> {
  value = $state.raw<T | null>(null);
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
      this.problem = null;
      this.busy = false;
      return answer;
    } catch (reason) {
      if (this.underway !== mine || superseded(reason)) return null;
      this.value = null;
      this.problem = reason instanceof ApiError ? reason.message : String(reason);
      this.busy = false;
      return null;
    }
  }

  /** Gives up what is under way and forgets the answer. */
  clear(): void {
    this.underway?.abort();
    this.underway = null;
    this.value = null;
    this.problem = null;
    this.busy = false;
  }
}
