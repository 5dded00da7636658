/**
 * Where the reader is: `#/view?name=value&…`. Everything a view needs to restore itself stands here.
 *
 * `parse` and `format` are pure; the store follows the browser's address line, `go` and `change` write it.
 */
import { readable } from "svelte/store";

export const VIEWS = [
  "run",
  "inside",
  "attention",
  "positions",
  "contexts",
  "depth",
  "lectures",
  "training",
] as const;
export type View = (typeof VIEWS)[number];
export type Params = Record<string, string>;
/** What `go` and `change` take: null, undefined and "" mean "not in the address", but for a text, which may be empty. */
export type Changes = Record<string, string | number | boolean | null | undefined>;
export interface Address {
  view: View;
  params: Params;
}

/** These stay when the reader goes to another view. */
export const SHARED = ["model", "text", "target"] as const;

export function isView(name: string): name is View {
  return (VIEWS as readonly string[]).includes(name);
}

/** Reads `#/run?text=a%20b`; anything that is not a view is the first one. */
export function parse(hash: string): Address {
  const [path = "", query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const params: Params = {};
  for (const [name, value] of new URLSearchParams(query)) params[name] = value;
  return { view: isView(path) ? path : "run", params };
}

/** Writes an address such that `parse(format(view, params))` gives it back. */
export function format(view: View, params: Changes): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    if (value !== null && value !== undefined && (value !== "" || name === "text"))
      query.set(name, String(value));
  const written = query.toString();
  return `#/${view}${written ? `?${written}` : ""}`;
}

/** Only those parameters that every view shares. */
export function sharedOf(params: Params): Params {
  const kept = SHARED.filter((name) => params[name] || (name === "text" && name in params));
  return Object.fromEntries(kept.map((name) => [name, params[name] ?? ""]));
}

let tell: () => void = () => undefined;

export const address = readable<Address>(parse(location.hash), (set) => {
  tell = () => set(parse(location.hash));
  tell();
  addEventListener("hashchange", tell);
  addEventListener("popstate", tell);
  return () => {
    removeEventListener("hashchange", tell);
    removeEventListener("popstate", tell);
    tell = () => undefined;
  };
});

/** Goes to a view: a new entry in the browser's history. `params` replaces the old ones entirely. */
export function go(view: View, params: Changes = {}): void {
  history.pushState(null, "", format(view, params));
  tell();
}

/** Changes some parameters in place, without a new entry in the history. */
export function change(changes: Changes): void {
  const { view, params } = parse(location.hash);
  const next = format(view, { ...params, ...changes });
  if (next === location.hash) return;
  history.replaceState(null, "", next);
  tell();
}

/** A whole number from the address, or `otherwise` where there is none or it lies outside. */
export function whole(params: Params, name: string, otherwise: number, low = 0, high = Infinity): number {
  const value = Number(params[name]);
  return params[name] !== undefined && Number.isInteger(value) && value >= low && value <= high
    ? value
    : otherwise;
}
