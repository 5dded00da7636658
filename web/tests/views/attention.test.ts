/** The attention view against answers that the server could give. */
import { describe, expect, it } from "vitest";
import { MODEL, pack, serve, until, type Answers } from "../fake";
import { button, cleanPages, click, find, open, press, word } from "./opened";

cleanPages();

const ROWS = [word("<start>", 0, "special"), word("le"), word("chat")];
const COLUMNS = [word("the"), word("cat")];
const MAP = [0.75, 0.25, 0.5, 0.5, 0.125, 0.875];
const WEIGHTS = pack([...MAP, ...MAP.map((x) => 1 - x)], [1, 2, 3, 2]);

const ANSWERS: Answers = {
  "/api/attention": () => ({
    kinds: [
      { kind: "encoder.self", rows: COLUMNS, columns: COLUMNS, layers: 1, heads: 2, weights: pack([1, 0, 0, 1, 1, 0, 0, 1], [1, 2, 2, 2]) },
      { kind: "decoder.cross", rows: ROWS, columns: COLUMNS, layers: 1, heads: 2, weights: WEIGHTS, thumbnails: false },
    ],
  }), // prettier-ignore
  "/api/attention/summary": (body) => ({
    rows: ROWS,
    columns: COLUMNS,
    weights: pack(MAP, [3, 2]),
    note: `summed up by ${String(body["how"])}`,
  }),
  "/api/attention/classes": (body) => ({
    texts: body["text"] === undefined ? 8 : 1,
    classes: ["special", "punctuation", "neighbours", "others"],
    kinds: [{ kind: "decoder.cross", mass: pack([0.5, 0, 0, 0.5, 0.25, 0.25, 0, 0.5], [1, 2, 4]) }],
  }),
  "/api/attention/evidence": (body) => ({
    columns: COLUMNS,
    predicted: word("␣dort"),
    weights: [0.125, 0.875],
    gradient: [3, 1],
    ablated: [null, -0.5],
    head_ablation: { before: -0.5, after: -1.5 },
    permuted: { before: -0.5, mean_after: -0.75, total_variation: 0.125 },
    tau: { gradient: -1, ablated: null },
    sentence: `Row ${String(body["row"])} is no explanation.`,
  }),
};
const maps = (): string[] =>
  [...document.querySelectorAll('[role="grid"]')].map((map) => map.getAttribute("aria-label") ?? "");

describe("heads", () => {
  it("opens on cross-attention, the last layer, and walks the grid by key into the address", async () => {
    serve(ANSWERS);
    open("#/attention?text=the%20cat");
    await until(() => expect(maps()).toEqual(["Layer 1, head 1"]));
    press(find('[data-head="0-0"]'), "ArrowRight");
    expect(location.hash).toContain("head=1");
    await until(() => expect(maps()).toEqual(["Layer 1, head 2"]));
    expect(find('[data-head="0-1"]').getAttribute("aria-pressed")).toBe("true");
  });

  it("is restored from the address: kind, head, lines, row", async () => {
    serve(ANSWERS);
    open("#/attention?kind=decoder.cross&head=0&as=lines&row=2");
    await until(() => expect(find(".reading").textContent).toContain("chat"));
    const reading = find(".reading").textContent?.replaceAll(/\s+/g, " ");
    expect(reading).toContain("chat looks at cat 0.875, the 0.125");
    press(find('[aria-roledescription="attention lines"]'), "ArrowUp");
    expect(location.hash).toContain("row=1");
    press(find('[aria-roledescription="attention lines"]'), "Escape");
    expect(location.hash).not.toContain("row=");
  });

  it("falls back where the address asks for a head that is not there", async () => {
    serve(ANSWERS);
    open("#/attention?kind=nothing&layer=7&head=99");
    await until(() => expect(maps()).toEqual(["Layer 1, head 1"]));
  });

  it("asks for one head alone where the overview came as thumbnails", async () => {
    const small = { kind: "encoder.self", rows: ROWS, columns: COLUMNS, layers: 1, heads: 2, weights: pack([1, 0], [1, 2, 1, 1]), thumbnails: true }; // prettier-ignore
    const asked = serve({
      "/api/attention": () => ({ kinds: [small] }),
      "/api/attention/one": () => ({ rows: ROWS, columns: COLUMNS, weights: pack(MAP, [3, 2]) }),
    });
    open("#/attention?text=long&head=1");
    await until(() => expect(maps()).toEqual(["Layer 1, head 2"]));
    expect(asked.find(({ path }) => path === "/api/attention/one")?.body).toEqual({
      model: "tiny", text: "long", kind: "encoder.self", layer: 0, head: 1,
    }); // prettier-ignore
  });

  it("says what the server says when a text is refused", async () => {
    serve({
      "/api/attention": () => {
        throw new Error("The text has 600 tokens, and 512 are the most.");
      },
    });
    open("#/attention?text=x");
    await until(() => expect(find('[role="alert"]').textContent).toContain("512 are the most"));
  });
});

describe("summed up", () => {
  it("offers an alignment only for cross-attention, and asks for what is chosen", async () => {
    const asked = serve(ANSWERS);
    open("#/attention?show=summary");
    await until(() => expect(document.body.textContent).toContain("summed up by mean"));
    click(button("Alignment"));
    await until(() => expect(document.body.textContent).toContain("summed up by alignment"));
    click(button("Encoder self"));
    await until(() => expect(document.body.textContent).toContain("summed up by mean"));
    expect(() => button("Alignment")).toThrow();
    expect(asked.some(({ body }) => body["kind"] === "encoder.self" && body["how"] === "alignment")).toBe(
      false,
    );
  });
});

describe("by token class", () => {
  it("counts this text, or the examples, and opens the head of a bar", async () => {
    const asked = serve(ANSWERS);
    open("#/attention?show=classes&text=the%20cat");
    await until(() =>
      expect(document.body.textContent).toContain(
        "Layer 1, head 1 gives the most weight to special tokens: 50.0 %",
      ),
    );
    click(button("The example sentences"));
    await until(() => expect(document.body.textContent).toContain("averaged over 8 sentences"));
    expect(asked.at(-1)?.body).toEqual({ model: "tiny" });
    const chart = find('[aria-roledescription="bar chart"]');
    press(chart, "ArrowRight");
    press(chart, "ArrowRight");
    expect(document.body.textContent).toContain("Layer 1, head 2: special 25.0 %, punctuation 25.0 %");
    press(chart, "Enter");
    expect(location.hash).toContain("head=1");
    expect(location.hash).not.toContain("show=");
  });
});

describe("is it an explanation?", () => {
  it("sets the measures beside each other and speaks the server's sentence", async () => {
    serve(ANSWERS);
    open("#/attention?show=evidence&row=1");
    await until(() => expect(document.body.textContent).toContain("Row 1 is no explanation."));
    expect(document.body.textContent).toContain("What “dort” depends on");
    const lines = (): string[] =>
      [...find("table").querySelectorAll("tbody tr")].map(
        (row) => row.textContent?.replaceAll(/\s+/g, " ").trim() ?? "",
      );
    expect(lines()).toEqual(["the 0.125 3.00 –", "cat 0.875 1.00 −0.500"]);
    click(button("Attention"));
    await until(() => expect(lines()[0]).toContain("cat"));
    expect(location.hash).toContain("sort=weights");
    expect(document.querySelector('[aria-label="τ = undefined"]')).not.toBeNull();
    expect(document.body.textContent).toContain("0.223"); // e^−1.5: the head set to zero
  });

  it("asks about another row when one is picked", async () => {
    serve(ANSWERS);
    open("#/attention?show=evidence");
    await until(() => expect(document.body.textContent).toContain("Row 1 is no"));
    click(button("chat"));
    await until(() => expect(document.body.textContent).toContain("Row 2 is no"));
  });
});

describe("a picture", () => {
  const patches = [word("1,1"), word("1,2"), word("2,1"), word("2,2")];
  const map = [0.7, 0.1, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1, 0.1, 0.7];
  const example = "picture 1x2x2 00ff8040";
  const vision = {
    ...MODEL,
    family: "vision",
    has_source: false,
    kinds: ["encoder.self"],
    examples: [example],
  };

  it("carries the weights of its patches; picking one shows where it looks", async () => {
    const asked = serve({
      "/api/models": () => ({ models: [vision] }),
      "/api/attention": () => ({
        kinds: [{ kind: "encoder.self", rows: patches, columns: patches, layers: 1, heads: 1, weights: pack(map, [1, 1, 4, 4]), thumbnails: false }],
        picture: { source: "data:image/png;base64,", side: 2, first: 0, pooling: "mean" },
      }), // prettier-ignore
    });
    open("#/attention");
    const weight = (name: string): number =>
      Number(find(`.patches [aria-label^="Patch ${name}"]`).getAttribute("aria-label")?.split(": ")[1]);
    await until(() => expect(weight("1,1")).toBeCloseTo(0.25, 5));
    expect(asked.find(({ path }) => path === "/api/attention")?.body["text"]).toBe(example);
    click(find('.patches [aria-label^="Patch 2,1"]'));
    expect(location.hash).toContain("row=2");
    await until(() => expect(weight("2,1")).toBeCloseTo(0.7, 5));
    expect(document.querySelectorAll('[aria-label="Picture 1"]')).toHaveLength(1);
    expect(document.body.textContent).not.toContain("By token class");
  });

  it("is read by the server when it is a file", async () => {
    const asked = serve({
      "/api/models": () => ({ models: [{ ...vision, config: { image: { size: 224, channels: 3 } } }] }),
      "/api/picture": ({ sent }) => {
        if (sent !== "good") throw new Error("It is damaged.");
        return { text: "picture-0123456789abcdef" };
      },
    });
    open("#/attention?row=1");
    const choose = (content: string, size = content.length): void => {
      const file = new File([content], "my cat.jpg", { type: "image/jpeg" });
      Object.defineProperty(file, "size", { value: size });
      const field = find<HTMLInputElement>("input[type=file]");
      Object.defineProperty(field, "files", { value: [file], configurable: true });
      field.dispatchEvent(new Event("change", { bubbles: true }));
    };
    await until(() => expect(document.body.textContent).toContain("the model reads 224 × 224 pixels"));
    choose("good");
    await until(() => expect(location.hash).toBe("#/attention?text=picture-0123456789abcdef"));
    expect(asked.find(({ path }) => path.startsWith("/api/picture"))!.path).toBe(
      "/api/picture?model=tiny&file=my+cat.jpg",
    );
    expect(find('[aria-label="Your picture"]').getAttribute("aria-pressed")).toBe("true");
    choose("bad");
    await until(() => expect(find("[role=alert]").textContent).toBe("It is damaged."));
    choose("good", 2 ** 25 + 1);
    await until(() => expect(find("[role=alert]").textContent).toContain("more than 32 MB"));
    click(find('[aria-label="Picture 1"]'));
    expect(document.querySelector(".shared [role=alert]")).toBeNull();
  });
});
