/** The frame, Run and Inside against answers that the server could give. */
import { flushSync, mount, unmount } from "svelte";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import App from "../../src/App.svelte";
import type { RunAnswer, Word } from "../../src/lib/api";
import { go } from "../../src/lib/address";
import { models, modelsProblem } from "../../src/lib/model";
import { MODEL, pack, serve, until, type Answers } from "../fake";

const word = (id: number, text = `w${id}`): Word => ({ id, text, kind: "word" });

function run(body: Record<string, unknown>): RunAnswer {
  const chosen = [word(7), word(8), word(2, "<stop>")];
  return {
    source: [word(4), word(5)],
    steps: chosen.map((one, position) => ({
      position,
      chosen: one,
      logp: -0.25 * (position + 1),
      before: [
        { id: one.id, text: one.text, p: 0.5 },
        { id: 9, text: "w9", p: 0.25 },
      ],
      after: [{ id: one.id, text: one.text, p: 1 }],
      kept: 1,
      forced: false,
    })),
    output: {
      text: `out of ${String(body["text"])}`,
      words: chosen.slice(0, 2),
      logp: -1.5,
      score: -0.5,
      stopped: "stop",
    },
    tree:
      body["strategy"] === "beam"
        ? {
            nodes: chosen.map((one, step) => ({
              id: step,
              parent: step ? step - 1 : null,
              step,
              word: one,
              logp: -1,
              score: -1,
              kept: true,
              state: "best",
            })),
            best: [0, 1, 2],
            left_out: 0,
          }
        : null,
    cost: {
      training: { passes: 1, positions: 3, attended: 6 },
      inference: { passes: 3, cached: [0, 1, 2], attended: 6, rows: [1, 1, 1], uncached: 10 },
    },
  };
}

const INSIDE = {
  source: [word(4)],
  target: [word(7)],
  family: "encoder-decoder",
  boxes: [
    {
      id: "encoder.tokens",
      label: "Tokens",
      kind: "tokens",
      stack: "encoder",
      layer: null,
      order: 0,
      steps: [{ name: "encoder.ids", label: "ids", formula: "id", shape: [1], axes: ["source"], note: "" }],
    },
    {
      id: "encoder.0.self",
      label: "Self-attention",
      kind: "attention",
      stack: "encoder",
      layer: 0,
      order: 1,
      steps: [
        {
          name: "encoder.0.self.weights",
          label: "weights",
          formula: "A",
          shape: [2, 1, 1],
          axes: ["head", "source", "source"],
          note: "Each row sums to 1.",
        },
      ],
    },
    {
      id: "decoder.tokens",
      label: "Tokens",
      kind: "tokens",
      stack: "decoder",
      layer: null,
      order: 2,
      steps: [],
    },
  ],
  arrows: [{ from: "encoder.tokens", to: "encoder.0.self", shape: [1, 4], kind: "flow" }],
};
const ANSWERS: Answers = {
  "/api/run": run,
  "/api/inside": () => INSIDE,
  "/api/tensor": (body) => ({
    name: body["name"],
    tensor: pack([0.125], [1, 1]),
    rows: ["w4"],
    columns: ["w4"],
    formula: "A",
    low: 0.125,
    high: 0.125,
  }),
};

let app: Record<string, unknown> | null = null;
function open(hash: string): HTMLElement {
  history.replaceState(null, "", hash);
  app = mount(App, { target: document.body });
  flushSync();
  return document.body;
}
beforeEach(() => {
  // drawings are laid out in the width of their place, which a page without layout does not have
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(700);
  // and nothing ever comes into sight there
  vi.stubGlobal("IntersectionObserver", undefined);
  vi.stubGlobal("matchMedia", (query: string) => ({
    matches: query.includes("reduce"),
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
});
const text = (element: Element | null): string => (element?.textContent ?? "").replace(/\s+/g, " ").trim();

test("an address opens its view, its text and its step", async () => {
  const asked = serve(ANSWERS);
  const page = open("#/run?text=hello&strategy=sample&temperature=0.5&step=2");
  await until(() => expect(text(page.querySelector("[data-testid=output]"))).toBe("out of hello"));
  expect(asked.find(({ path }) => path === "/api/run")!.body).toMatchObject({
    model: "tiny",
    text: "hello",
    strategy: "sample",
    temperature: 0.5,
    seed: 0,
  });
  expect(text(page.querySelector('[aria-label="Next-token distribution"] h2'))).toBe("Next token at step 2");
  expect(page.querySelector('[aria-current="page"]')!.textContent).toBe("Run");
  expect(page.querySelector<HTMLInputElement>("input[name=text]")!.value).toBe("hello");
});

test("the drawn bars carry the server's numbers", async () => {
  serve(ANSWERS);
  const page = open("#/run?step=1");
  await until(() => expect(page.querySelectorAll("g.bar")).toHaveLength(3));
  const drawn = [...page.querySelectorAll<SVGGElement>("g.bar")].map((bar) => [
    bar.dataset["id"],
    bar.dataset["p"],
  ]);
  expect(drawn).toEqual([
    ["7", "0.5"],
    ["9", "0.25"],
    ["7", "1"],
  ]);
});

test("picking a token goes to its step and into the address", async () => {
  serve(ANSWERS);
  const page = open("#/run?step=1");
  await until(() =>
    expect(page.querySelectorAll('[aria-label="Tokens that were written"] button')).toHaveLength(3),
  );
  page.querySelectorAll<HTMLElement>('[aria-label="Tokens that were written"] button')[2]!.click();
  flushSync();
  expect(location.hash).toContain("step=3");
  expect(text(page.querySelector('[aria-label="Next-token distribution"] h2'))).toBe("Next token at step 3");
});

test("a beam has a tree, and the switch shows training and inference", async () => {
  serve(ANSWERS);
  const page = open("#/run?strategy=beam&step=1");
  await until(() => expect(page.querySelectorAll("g.node.best")).toHaveLength(3));
  const training = [...page.querySelectorAll<HTMLElement>('[role="radio"]')].find(
    (one) => one.textContent === "Training view",
  )!;
  training.click();
  flushSync();
  expect(location.hash).toContain("mode=training");
  expect(text(page.querySelector('[aria-label="Training and inference"]'))).toContain(
    "all 3 positions go through the decoder in one pass",
  );
});

test("a refusal is shown as its sentence, and goes away with a better question", async () => {
  let refuse = true;
  serve({
    ...ANSWERS,
    "/api/run": (body) => {
      if (refuse) throw new Error("The text has 600 tokens: shorten it.");
      return run(body);
    },
  });
  const page = open("#/run?text=long&step=1");
  await until(() =>
    expect(text(page.querySelector('main [role="alert"]'))).toBe("The text has 600 tokens: shorten it."),
  );
  refuse = false;
  const input = page.querySelector<HTMLInputElement>("input[name=text]")!;
  input.value = "short";
  input.dispatchEvent(new Event("input", { bubbles: true }));
  page.querySelector("form")!.dispatchEvent(new SubmitEvent("submit", { cancelable: true }));
  await until(() => expect(text(page.querySelector("[data-testid=output]"))).toBe("out of short"));
  expect(page.querySelector('main [role="alert"]')).toBeNull();
  expect(location.hash).toContain("text=short");
});

test("an emptied field shows no old answer, in any view and link, and a new text is asked for", async () => {
  const asked = serve(ANSWERS);
  const page = open("#/run?text=hello&step=1");
  await until(() => expect(text(page.querySelector("[data-testid=output]"))).toBe("out of hello"));
  const type = (value: string): void => {
    const input = page.querySelector<HTMLInputElement>("input[name=text]")!;
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    page.querySelector("form")!.dispatchEvent(new SubmitEvent("submit", { cancelable: true }));
    flushSync();
  };
  for (const empty of ["", "  "]) {
    type(empty);
    expect(page.querySelector("[data-testid=output]")).toBeNull();
    expect(text(page.querySelector("main"))).toContain("There is no text yet");
    expect(location.hash).toContain("text=");
    type("again");
    await until(() => expect(text(page.querySelector("[data-testid=output]"))).toBe("out of again"));
  }
  const before = asked.length;
  for (const view of ["inside", "attention", "depth"] as const) {
    go(view, { text: "" });
    flushSync();
    expect(text(page.querySelector("main"))).toContain("There is no text yet");
  }
  expect(asked).toHaveLength(before);
});

test("a classifier's run is its verdict and what carried it, a tagger's its words", async () => {
  const reader = (kind: string) => ({
    ...MODEL,
    family: "encoder",
    has_source: false,
    labels: ["good", "bad"],
    config: { head: { kind } },
  });
  const verdicts: Record<string, unknown> = {
    classify: {
      kind: "classify",
      label: "good",
      classes: [
        { label: "good", p: 0.75 },
        { label: "bad", p: 0.25 },
      ],
      parts: [
        { text: "so", support: 0.1, p: 0.7, label: "good" },
        { text: "fine", support: 1.5, p: 0.2, label: "bad" },
      ],
      together: 1,
    },
    tag: { kind: "tag", words: [{ text: "so", tag: "ADV", top: [{ label: "ADV", p: 0.5 }] }] },
  };
  for (const kind of ["classify", "tag"]) {
    const asked = serve({
      "/api/models": () => ({ models: [reader(kind)] }),
      "/api/verdict": () => verdicts[kind],
    });
    const page = open("#/run?text=so%20fine");
    await until(() => expect(page.querySelector("[data-testid=verdict]")).not.toBeNull());
    expect(asked.map(({ path }) => path)).toEqual(["/api/models", "/api/verdict"]);
    expect(asked[1]!.body).toEqual({ model: "tiny", text: "so fine" });
    const said = text(page.querySelector("main"));
    if (kind === "classify") {
      expect(said).toContain("“good”, 75.0 %");
      expect(said).toContain("falls from 75.0 % to 20.0 %, and “bad” wins");
      const bars = [...page.querySelectorAll<HTMLElement>("[data-testid=verdict] .track span")];
      expect(bars.map((bar) => bar.style.width)).toEqual(["75%", "25%"]);
    } else expect(text(page.querySelector("[data-testid=verdict]"))).toBe("so ADV 50.0 %");
    await unmount(app!);
    app = null;
    models.set([]);
    document.body.innerHTML = "";
  }
});

test("a server that does not answer is said, and asked again on request", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("gone")));
  const page = open("#/run?step=1");
  await until(() => expect(text(page.querySelector('[role="alert"]'))).toContain("does not respond"));
  serve(ANSWERS);
  page.querySelector<HTMLElement>('[role="alert"] button')!.click();
  await until(() =>
    expect(text(page.querySelector("[data-testid=output]"))).toBe(`out of ${MODEL.examples[0]}`),
  );
});

test("inside: the box in the address is open, with its tensor for the head in the address", async () => {
  const asked = serve(ANSWERS);
  const page = open("#/inside?text=hi&target=ho&box=encoder.0.self&head=1");
  await until(() =>
    expect(page.querySelector('[data-tensor="encoder.0.self.weights"] [role="grid"]')).not.toBeNull(),
  );
  expect(asked.find(({ path }) => path === "/api/tensor")!.body).toEqual({
    model: "tiny",
    text: "hi",
    target: "ho",
    name: "encoder.0.self.weights",
    head: 1,
  });
  expect(text(page.querySelector("#chain h2"))).toBe("Self-attention");
  expect(page.querySelector('[data-spot="encoder.0.self"]')!.getAttribute("aria-pressed")).toBe("true");
});

test("inside: boxes are opened with the keyboard alone", async () => {
  serve(ANSWERS);
  const page = open("#/inside?box=encoder.0.self");
  await until(() => expect(page.querySelector('[data-spot="encoder.0.self"]')).not.toBeNull());
  const here = page.querySelector<SVGGElement>('[data-spot="encoder.0.self"]')!;
  expect(here.getAttribute("tabindex")).toBe("0");
  here.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  flushSync();
  const next = page.querySelector<SVGGElement>('[data-spot="encoder.tokens"]')!;
  expect(next.getAttribute("tabindex")).toBe("0");
  next.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  flushSync();
  expect(location.hash).toContain("box=encoder.tokens");
  await until(() => expect(text(page.querySelector("#chain h2"))).toBe("Tokens"));
});

test("the tabs are links that take the text along and leave the rest", async () => {
  serve(ANSWERS);
  const page = open("#/run?text=hi&step=2&strategy=beam");
  await until(() => expect(page.querySelector("[data-view=inside]")).not.toBeNull());
  expect(page.querySelector<HTMLAnchorElement>("[data-view=inside]")!.getAttribute("href")).toBe(
    "#/inside?text=hi",
  );
  go("inside", { text: "hi" });
  flushSync();
  expect(page.querySelector('[aria-current="page"]')!.textContent).toBe("Inside");
  await until(() => expect(document.title).toBe("Inside · clearhead explorer"));
});
