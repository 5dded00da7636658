import { flushSync, mount, unmount } from "svelte";
import { afterEach, expect, test, vi } from "vitest";
import Choice from "../../src/components/Choice.svelte";
import Exports from "../../src/components/Exports.svelte";
import HeatMap from "../../src/components/HeatMap.svelte";
import Problem from "../../src/components/Problem.svelte";
import Slider from "../../src/components/Slider.svelte";
import Words from "../../src/components/Words.svelte";

let shown: Record<string, unknown> | null = null;
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- components differ in their props
function show(component: any, props: Record<string, unknown>): HTMLElement {
  shown = mount(component, { target: document.body, props }) as Record<string, unknown>;
  flushSync();
  return document.body;
}
afterEach(() => {
  if (shown) void unmount(shown);
  shown = null;
  document.body.innerHTML = "";
});
function press(element: Element, key: string, more: KeyboardEventInit = {}): void {
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
  flushSync();
}

const VALUES = new Float32Array([0.1, 0.2, 0.3, 1 / 3, -5, -Infinity]);
const MAP = {
  values: VALUES,
  rows: 2,
  columns: 3,
  rowLabels: ["a", "b"],
  columnLabels: ["x", "y", "z"],
  title: "weights",
};

test("the arrow keys move over the heat map, which reads each cell's exact value", () => {
  const onpick = vi.fn();
  const page = show(HeatMap, { ...MAP, onpick });
  const grid = page.querySelector<HTMLElement>('[role="grid"]')!;
  const cell = (): string => page.querySelector('[role="gridcell"]')!.textContent.replace(/\s+/g, " ").trim();
  grid.focus();
  flushSync();
  expect(cell()).toBe("a, x: 0.1");
  press(grid, "ArrowDown");
  expect(cell()).toBe("b, x: 0.33333334");
  press(grid, "ArrowRight");
  press(grid, "ArrowRight");
  press(grid, "ArrowRight"); // stays at the edge
  expect(cell()).toBe("b, z: −∞");
  press(grid, "Home");
  press(grid, "ArrowUp");
  press(grid, "ArrowUp");
  expect(cell()).toBe("a, x: 0.1");
  press(grid, "End", { ctrlKey: true });
  press(grid, "Enter");
  expect(onpick).toHaveBeenCalledExactlyOnceWith(1, 2);
  expect(grid.getAttribute("aria-rowcount")).toBe("2");
  expect(page.querySelector("output")!.textContent).toContain("−∞");
});

test("a picked cell is read until another is pointed at", () => {
  const page = show(HeatMap, { ...MAP, picked: [1, 1] });
  expect(page.querySelector("output")!.textContent).toMatch(/b\s*×\s*y\s*−5/);
});

test("tokens are picked by mouse and keyboard, with one stop for Tab", () => {
  const onpick = vi.fn();
  const words = ["a", "b", "c"].map((text, id) => ({ id, text, kind: "word" }));
  const page = show(Words, { words, label: "tokens", picked: 1, onpick });
  const buttons = [...page.querySelectorAll("button")];
  expect(buttons.map((one) => one.tabIndex)).toEqual([-1, 0, -1]);
  press(buttons[1]!, "ArrowRight");
  press(buttons[1]!, "Home");
  buttons[2]!.click();
  press(buttons[2]!, "ArrowRight"); // nothing further
  expect(onpick.mock.calls).toEqual([[2], [0], [2]]);
});

test("a choice follows the arrow keys around its ends", () => {
  const onchange = vi.fn();
  const options = ["a", "b", "c"].map((value) => ({ value, label: value }));
  const page = show(Choice, { label: "which", options, value: "c", onchange });
  press(page.querySelector('[aria-checked="true"]')!, "ArrowRight");
  press(page.querySelector('[aria-checked="true"]')!, "ArrowLeft");
  expect(onchange.mock.calls).toEqual([["a"], ["b"]]);
});

test("a slider says its value, or the word for it", () => {
  const onchange = vi.fn();
  const page = show(Slider, {
    label: "Top-p",
    value: 0.30000000000000004,
    low: 0,
    high: 1,
    step: 0.05,
    onchange,
  });
  expect(page.querySelector("output")!.textContent).toBe("0.3");
  const input = page.querySelector("input")!;
  input.value = "0.5";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  expect(onchange).toHaveBeenCalledExactlyOnceWith(0.5);
});

test("exports download under a name that is safe for a file", async () => {
  const saved: { name: string; content: Blob }[] = [];
  let last: Blob | null = null;
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => ((last = blob as Blob), "blob:x"));
  vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function (this: HTMLAnchorElement) {
    saved.push({ name: this.download, content: last! });
  });
  const page = show(Exports, { name: "decoder.0/self: head 1", csv: () => "a,b\r\n", svg: () => "<svg/>" });
  const [svg, , csv] = [...page.querySelectorAll("button")];
  csv!.click();
  svg!.click();
  expect(saved.map(({ name }) => name)).toEqual(["decoder.0-self-head-1.csv", "decoder.0-self-head-1.svg"]);
  expect(await saved[0]!.content.text()).toBe("a,b\r\n");
  vi.restoreAllMocks();
});

test("without a drawing only numbers can be saved; what fails is said", () => {
  const page = show(Exports, {
    name: "x",
    csv: () => {
      throw new Error("There is nothing to save.");
    },
  });
  expect([...page.querySelectorAll("button")].map((one) => one.textContent.trim())).toEqual(["CSV"]);
  page.querySelector("button")!.click();
  flushSync();
  expect(page.querySelector('[role="alert"]')!.textContent).toBe("There is nothing to save.");
});

test("a problem is an alert with a way to try again", () => {
  const again = vi.fn();
  const page = show(Problem, { sentence: "The text is too long.", again });
  expect(page.querySelector('[role="alert"]')!.textContent).toContain("The text is too long.");
  page.querySelector("button")!.click();
  expect(again).toHaveBeenCalledOnce();
});
