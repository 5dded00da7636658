/** Positions, Contexts, Depth, Lectures and Training against answers that the server could give. */
import { flushSync } from "svelte";
import { describe, expect, it, vi } from "vitest";
import { MODEL, pack, serve, until } from "../fake";
import { button, cleanPages, click, find, open, press, word } from "./opened";

cleanPages();

const page = (): string => document.body.textContent?.replaceAll(/\s+/g, " ") ?? "";

describe("positions", () => {
  const scheme = (name: string) => ({
    name,
    table: name === "alibi" ? null : pack(Array.from({ length: 40 }, (_, i) => Math.sin(i)), [4, 10]),
    waves: name === "alibi" ? null : [{ index: 0, values: [0, 1, 0, -1] }],
    similarity: { distances: [0, 1], values: [1, 0.5], what: "cosine" },
    bias: name === "alibi" ? pack([0, -1, -1, 0, 0, -2, -2, 0], [2, 2, 2]) : null,
    guidelines: [{ name: "unique", holds: name !== "t", sentence: `${name} is judged.` }],
    tolerance: 2 ** -23,
    note: "",
    formula: "",
  }); // prettier-ignore
  const answers = {
    "/api/positions": (body: Record<string, unknown>) => ({
      schemes: (body["schemes"] as string[]).map(scheme),
    }),
  };

  it("sets the model's own beside another, and takes both from the address", async () => {
    const asked = serve(answers);
    open("#/positions");
    await until(() => expect(page()).toContain("sinusoidal is judged."));
    expect(asked.at(-1)?.body).toEqual({ model: "tiny", schemes: ["sinusoidal", "rotary"], length: 64 });
    expect(page()).toContain("this model’s");
    expect(page()).toContain("signals within 1.2 × 10⁻⁷ of the largest count as the same");
  });

  it("draws a bias head by head, and marks a broken guideline in words", async () => {
    serve(answers);
    open("#/positions?a=alibi&b=t&head=1&length=16");
    await until(() => expect(page()).toContain("t is judged."));
    expect(document.querySelector('[aria-label="ALiBi: added to the scores of head 2"]')).not.toBeNull();
    expect(
      [...document.querySelectorAll(".rules svg")].map((mark) => mark.getAttribute("aria-label")),
    ).toEqual(["kept", "broken"]);
  });
});

describe("contexts", () => {
  const answers = {
    "/api/contexts": (body: Record<string, unknown>) => {
      const sentences = body["sentences"] as string[];
      const n = sentences.length;
      return {
        word: body["word"],
        occurrences: sentences.map((sentence) => ({
          sentence,
          words: [word("the"), word("␣cat")],
          at: [1, 1],
          spelling: sentence.startsWith("Cat") ? 1 : 0,
        })),
        spellings: sentences.some((one) => one.startsWith("Cat"))
          ? [[word("␣cat", 5)], [word("Cat", 9)]]
          : [[word("␣cat", 5)]],
        layers: ["embedding", "layer 1"],
        static: pack(new Array(2 * n).fill(0.5), [2, n]),
        between: pack(new Array(2 * n * n).fill(0.25), [2, n, n]),
        projection: pack(Array.from({ length: 4 * n }, (_, i) => i), [2, n, 2]), // prettier-ignore
        explained: [1, 0.75],
      };
    },
  };
  const linked = "#/contexts?word=cat&sentences=the%20cat%0Aa%20cat";

  it("restores word, sentences and layer from the address", async () => {
    const asked = serve(answers);
    open(`${linked}&layer=0`);
    await until(() => expect(page()).toContain("Where they lie"));
    expect(asked.at(-1)?.body).toEqual({ model: "tiny", word: "cat", sentences: ["the cat", "a cat"] });
    expect(find<HTMLInputElement>('input[type="range"]').value).toBe("0");
    expect(page()).toContain("they explain 100.0 % of the variance");
    expect(document.querySelectorAll(".dot circle")).toHaveLength(2);
  });

  it("says what keeps a wish from being asked, and asks again once it is whole", async () => {
    const asked = serve(answers);
    open(linked);
    await until(() => expect(page()).toContain("Where they lie"));
    const before = asked.length;
    const input = find<HTMLInputElement>('input[aria-label="Sentence 2"]');
    input.value = "a dog";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    flushSync();
    expect(page()).toContain("“cat” does not occur in “a dog”");
    input.value = "one more cat";
    input.dispatchEvent(new Event("input", { bubbles: true }));
    await until(() => expect(asked.length).toBe(before + 1));
    expect(asked.at(-1)?.body["sentences"]).toEqual(["the cat", "one more cat"]);
  });

  it("keeps no old answer beside an emptied field", async () => {
    serve(answers);
    open(linked);
    await until(() => expect(page()).toContain("Where they lie"));
    const type = (value: string) => {
      const input = find<HTMLInputElement>(".word input");
      input.value = value;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    };
    type("");
    await until(() => expect(page()).not.toContain("Where they lie"));
    expect(page()).toContain("Type the word to look at.");
    type("cat");
    await until(() => expect(page()).toContain("Where they lie"));
  });

  it("says which tokens the word is where they are not the same", async () => {
    serve(answers);
    open("#/contexts?word=cat&sentences=the%20cat%0Aa%20cat%0ACat%20and%20dog");
    await until(() => expect(page()).toContain("is not split into the same tokens in all sentences"));
    expect(page()).toContain("a (“␣cat” 5) in sentences 1, 2; b (“Cat” 9) in sentence 3");
    expect(page()).toContain("in two different sentences with the same tokens");
  });
});

describe("depth", () => {
  const guess = (text: string, id: number, p: number) => ({ id, text, p });
  const answers = {
    "/api/depth": () => ({
      words: [word("<start>", 0, "special"), word("le")],
      sublayers: [{ name: "decoder.0.self", label: "layer 1: self-attention", kind: "self", layer: 0 }],
      norms: pack([1, 3], [1, 2]),
      stream: pack([2, 2, 3, 4], [2, 2]),
      predictions: [
        { after: "embedding", top: [[guess("the", 5, 0.5)], [guess("chat", 7, 0.25)]] },
        { after: "layer 1", top: [[guess("le", 6, 0.75)], [guess("chat", 7, 0.9)]] },
      ],
      final: [word("le", 6), word("chat", 7)],
      note: "A note.",
    }),
  };

  it("shows what each sub-layer adds, and against what", async () => {
    serve(answers);
    open("#/depth");
    await until(() => expect(page()).toContain("layer 1: self-attention 2.00"));
    click(button("Ratio to the stream"));
    await until(() => expect(page()).toContain("layer 1: self-attention 1.00"));
    expect(page()).toContain("above 1, the contribution is larger than the stream it is added to");
    expect(page().toLowerCase()).not.toContain("share of the stream");
    expect(location.hash).toContain("size=ratio");
  });

  it("does not speak of a residual stream where there is none", async () => {
    const bare = { ...MODEL, norm: "pre-layer", sublayer: "f(norm(x))", without: ["residual connections"] };
    serve({ ...answers, "/api/models": () => ({ models: [bare] }) });
    open("#/depth");
    await until(() => expect(page()).toContain("Norm of each sub-layer’s output"));
    expect(page()).toContain("every sub-layer’s output replaces its input");
    expect(page()).toContain("x ← Sublayer(norm(x)); p = softmax(W norm(x))");
    expect(page()).not.toContain("residual stream");
  });

  it("counts early answers, and walks the table by key", async () => {
    serve(answers);
    open("#/depth?row=0&column=0");
    await until(() => expect(page()).toContain("1 of 2 answers are settled before the last layer"));
    expect(page()).toContain("Most likely after “<start>”, read at embedding");
    press(button("embedding, position 1: the 50.0 %"), "ArrowRight");
    expect(location.hash).toContain("column=1");
    expect(page()).toContain("Most likely after “le”, read at embedding");
    expect(button("layer 1, position 2: chat 90.0 %").classList.contains("kept")).toBe(true);
    expect(button("embedding, position 1: the 50.0 %").classList.contains("kept")).toBe(false);
  });
});

describe("lectures", () => {
  const step = { formula: "W X", note: "", rows: [], columns: [], given: false, marks: [] };
  const example = {
    id: "e1",
    title: "By hand",
    deck: "T9",
    note: "About it.",
    question: "Which is it?",
    answer: "The second.",
    erratum: "One is wrong.",
    erratum_at: 1,
    steps: [
      { ...step, name: "X", given: true, value: [[1]], printed: null, wrong: [] },
      { ...step, name: "S", value: [[0.5, null]], printed: [[0.4, null]], wrong: [[0, 0]], marks: [{ row: 0, column: 0, mark: "wrong" }] },
    ],
  }; // prettier-ignore
  const answers = {
    "/api/lectures": () => ({
      examples: [example, { ...example, id: "e2", title: "Again" }],
      slips: [
        {
          deck: "L9",
          slide: "Masks",
          printed: "casual",
          right: "causal",
          kind: "word",
          example: "e2",
        },
      ],
      tolerance: "Right within half a unit.",
    }),
  };

  it("walks by button and by key, and marks what is wrong", async () => {
    serve(answers);
    open("#/lectures");
    await until(() => expect(page()).toContain("Step 1 of 2"));
    expect(page()).toContain("Given by the slide.");
    expect(page()).toContain("Which is it?");
    expect(page()).not.toContain("The second.");
    expect(page()).not.toContain("One is wrong.");
    press(find("article"), "ArrowRight");
    await until(() => expect(page()).toContain("Step 2 of 2"));
    expect(page()).toContain("Answer. The second.");
    expect(page()).toContain("Erratum. One is wrong.");
    expect(page()).toContain("1 of 2 printed numbers wrong.");
    expect(page()).toContain("Right within half a unit.");
    expect(find("td.wrong.printed").textContent).toContain("0.4");
    expect(find('table[aria-label="S, recomputed"]').textContent?.replaceAll(/\s+/g, " ")).toContain(
      "0.5 −∞",
    );
    expect(button("Next step").disabled).toBe(true);
    click(button("Previous step"));
    expect(location.hash).toBe("#/lectures");
  });

  it("restores example and step from the address", async () => {
    serve(answers);
    open("#/lectures?example=e2&step=1");
    await until(() => expect(find("article").getAttribute("aria-label")).toBe("Again"));
    expect(page()).toContain("Step 2 of 2");
  });

  it("lists the slips, and leads to the example that works one out", async () => {
    serve(answers);
    open("#/lectures");
    await until(() => expect(page()).toContain("Other mistakes on the slides: 1"));
    expect(page()).toContain("causal");
    click(button("worked out"));
    expect(location.hash).toContain("example=e2");
  });
});

describe("training", () => {
  const answer = (running: boolean, step: number) => ({
    there: true,
    running,
    curves: {
      train: [
        { step: 1, loss: 8, rate: 0.1, gradient_norm: 1, flops: 1e9 },
        { step, loss: 2, rate: 0.1, gradient_norm: 1, flops: 2e9 },
      ],
      validation: [{ step, loss: 2.5, perplexity: 12.18, bleu: 30 }],
    },
    samples: [{ step, source: "a", written: "b", reference: "b" }],
    flops: { spent: 2e9, table: [{ name: "Transformer base", flops: 3.2e18 }] },
    facts: { task: "translate" },
  });

  it("shows the curve that the address names, on a logarithmic axis", async () => {
    serve({ "/api/training": () => answer(false, 100) });
    open("#/training?measure=bleu&log=y");
    await until(() => expect(page()).toContain("Validation BLEU 30"));
    expect(find('[aria-roledescription="line chart"]').getAttribute("aria-label")).toContain("BLEU by step");
    expect(button("Log").getAttribute("aria-checked")).toBe("true");
    press(find('[aria-roledescription="line chart"]'), "End");
    expect(page()).toContain("Step 100");
    expect(page()).toContain("Transformer base took 1.6 × 10⁹ times as much");
  });

  it("looks again every two seconds while a run goes on, and stops when it ends", async () => {
    vi.useFakeTimers({ shouldAdvanceTime: true });
    let looks = 0;
    serve({ "/api/training": () => answer(++looks < 3, 100 * looks) });
    open("#/training");
    await until(() => expect(looks).toBe(1));
    await until(() => expect(page()).toContain("training"));
    await vi.advanceTimersByTimeAsync(2100);
    await until(() => expect(page()).toContain("Step 200"));
    await vi.advanceTimersByTimeAsync(2100);
    await until(() => expect(page()).toContain("Step 300"));
    await vi.advanceTimersByTimeAsync(10_000);
    expect(looks).toBe(3);
  });

  it("says so when a bundle lies without its log", async () => {
    const empty = { ...answer(false, 1), there: false };
    serve({ "/api/training": () => empty });
    open("#/training");
    await until(() => expect(page()).toContain("has no training log"));
  });
});
