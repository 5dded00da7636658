/**
 * Light or dark: the system's choice until the reader makes one, which is then remembered in this browser.
 */
import { derived, readable, writable } from "svelte/store";
import type { Theme } from "./colour";

export type Choice = "system" | Theme;
const KEY = "clearhead-theme";

function remembered(): Choice {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system"; // storage may be forbidden; then nothing is remembered
  }
}

const system = readable<Theme>("light", (set) => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const tell = (): void => set(dark.matches ? "dark" : "light");
  tell();
  dark.addEventListener("change", tell);
  return () => dark.removeEventListener("change", tell);
});

export const choice = writable<Choice>(remembered());
export const theme = derived([choice, system], ([$choice, $system]) =>
  $choice === "system" ? $system : $choice,
);

export function choose(value: Choice): void {
  choice.set(value);
  try {
    if (value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // not remembered, then
  }
}
