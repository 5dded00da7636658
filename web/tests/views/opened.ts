/** Opens the page at an address, as a browser would, with a fake server behind it; cleans up after each test. */
import { flushSync, mount, unmount } from "svelte";
import { afterEach, beforeEach, vi } from "vitest";
import App from "../../src/App.svelte";
import type { Word } from "../../src/lib/api";
import { models, modelsProblem } from "../../src/lib/model";

export const word = (text: string, id = 1, kind: Word["kind"] = "word"): Word => ({ id, text, kind });

let app: Record<string, unknown> | null = null;

export function open(hash: string): HTMLElement {
  history.replaceState(null, "", hash);
  app = mount(App, { target: document.body });
  flushSync();
  return document.body;
}

export function find<T extends HTMLElement = HTMLElement>(selector: string): T {
  const found = document.querySelector<T>(selector);
  if (!found) throw new Error(`There is no ${selector} on the page.`);
  return found;
}

/** The button (or radio) with this text or label. */
export function button(name: string): HTMLButtonElement {
  const all = [...document.querySelectorAll<HTMLButtonElement>("button")];
  const found = all.find(
    (one) => one.textContent?.trim() === name || one.getAttribute("aria-label") === name,
  );
  if (!found) throw new Error(`There is no button “${name}” on the page.`);
  return found;
}

export function press(element: Element, key: string): void {
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  flushSync();
}

export function click(element: HTMLElement): void {
  element.click();
  flushSync();
}

export function cleanPages(): void {
  beforeEach(() => {
    // drawings are laid out in the width of their place, which a page without layout does not have
    vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(700);
    vi.stubGlobal("matchMedia", () => ({
      matches: false,
      addEventListener: () => undefined,
      removeEventListener: () => undefined,
    }));
  });
  afterEach(async () => {
    if (app) await unmount(app);
    app = null;
    models.set([]);
    modelsProblem.set(null);
    document.body.innerHTML = "";
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
}
