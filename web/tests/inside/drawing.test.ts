import { expect, test } from "vitest";
import type { Arrow, Box, InsideAnswer } from "../../src/lib/api";
import { draw, lines, neighbour } from "../../src/inside/drawing";
import { rounded } from "../../src/inside/paths";
import { byHead, scaleFor, sides, sizeInWords } from "../../src/inside/chain";

/** An encoder-decoder (or one stack of it) of `depth` layers, as the server describes it. */
function model(depth: number, stacks: ("encoder" | "decoder")[]): InsideAnswer {
  const boxes: Box[] = [];
  const arrows: Arrow[] = [];
  const add = (id: string, kind: string, stack: Box["stack"], layer: number | null): string => {
    boxes.push({ id, label: kind, kind, stack, layer, order: boxes.length, steps: [] });
    return id;
  };
  const join = (from: string, to: string, kind: Arrow["kind"] = "flow"): void => {
    arrows.push({ from, to, kind, shape: [3, 8] });
  };
  let memory = "";
  let last = "";
  for (const stack of stacks) {
    last = add(`${stack}.tokens`, "tokens", stack, null);
    for (let layer = 0; layer < depth; layer++)
      for (const part of stack === "decoder" && memory
        ? ["self", "cross", "feedforward"]
        : ["self", "feedforward"]) {
        const inner = add(
          `${stack}.${layer}.${part}`,
          part === "feedforward" ? part : "attention",
          stack,
          layer,
        );
        const sum = add(`${inner}.add`, "add", stack, layer);
        join(last, inner);
        join(inner, sum);
        join(last, sum, "residual");
        if (part === "cross") join(memory, inner, "memory");
        last = sum;
      }
    memory = last;
  }
  join(last, add("softmax", "softmax", "top", null));
  return { source: [], target: [], family: "", boxes, arrows };
}

const BOTH = model(3, ["encoder", "decoder"]);

test("encoder left, decoder right, tokens below, words on top; nothing overlaps", () => {
  const { spots, width, height } = draw(BOTH, 1, 440);
  const at = (id: string) => spots.find((spot) => spot.id === id)!;
  expect(at("encoder.1.self").x).toBeLessThan(at("decoder.1.self").x);
  expect(at("encoder.tokens").y).toBeGreaterThan(at("encoder.1.self").y);
  expect(at("softmax").y).toBe(Math.min(...spots.map(({ y }) => y)));
  for (const a of spots) {
    expect(a.x).toBeGreaterThanOrEqual(0);
    expect(a.x + a.width).toBeLessThanOrEqual(width);
    expect(a.y + a.height).toBeLessThanOrEqual(height);
    for (const b of spots)
      if (a !== b && a.column === b.column) expect(a.y + a.height <= b.y || b.y + b.height <= a.y).toBe(true);
  }
});

test("one layer of each stack is open, the others are slabs", () => {
  const { spots } = draw(BOTH, 1, 440);
  expect(spots.flatMap(({ box }) => (box?.layer == null ? [] : [box.layer]))).toEqual(Array(10).fill(1));
  expect(spots.filter(({ layers }) => layers).map(({ layers }) => layers)).toEqual([
    [0, 0],
    [2, 2],
    [0, 0],
    [2, 2],
  ]);
  const deep = draw(model(24, ["decoder"]), 30, 440);
  expect(deep.spots.filter(({ layers }) => layers).map(({ layers }) => layers)).toEqual([[0, 22]]);
});

test("residual arrows are drawn in open layers only, the encoder's output goes to every decoder layer", () => {
  const { lines: drawn } = draw(BOTH, 0, 440);
  expect(drawn.filter(({ kind }) => kind === "residual")).toHaveLength(5);
  expect(drawn.filter(({ kind }) => kind === "memory")).toHaveLength(3);
  expect(new Set(drawn.map(({ id }) => id)).size).toBe(drawn.length);
  for (const line of drawn.filter(({ kind }) => kind === "flow")) expect(line.shape).toEqual([3, 8]);
});

test("every box can be reached with the arrow keys", () => {
  const drawing = draw(BOTH, 0, 440);
  const reached = new Set(["softmax"]);
  const todo = ["softmax"];
  while (todo.length)
    for (const key of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) {
      const next = neighbour(drawing, todo[0]!, key);
      if (next && !reached.has(next.id)) {
        todo.push(next.id);
        reached.add(next.id);
      }
      if (key === "ArrowRight") todo.shift();
    }
  expect(reached.size).toBe(drawing.spots.length);
});

test("it fits a telephone, and single stacks are drawn too", () => {
  expect(draw(BOTH, 0, 330).width).toBeLessThanOrEqual(330);
  for (const stack of ["encoder", "decoder"] as const) {
    const { spots, texts } = draw(model(1, [stack]), 0, 330);
    expect(new Set(spots.map(({ column }) => column))).toEqual(new Set([0]));
    expect(texts).toHaveLength(1);
  }
});

test("labels are broken where they are too wide", () => {
  expect(lines("Add", 120)).toEqual(["Add"]);
  expect(lines("Masked self-attention", 110)).toEqual(["Masked self-", "attention"]);
  expect(lines("Unbreakablewordthatistoolong", 60)).toEqual(["Unbreakablewordthatistoolong"]);
});

test("corners are rounded, ends are kept", () => {
  expect(
    rounded(
      [
        [0, 0],
        [10, 0],
        [10, 10],
      ],
      4,
    ),
  ).toBe("M0,0L6,0Q10,0 10,4L10,10");
  expect(
    rounded(
      [
        [0, 0],
        [2, 0],
        [2, 9],
      ],
      4,
    ),
  ).toBe("M0,0L1,0Q2,0 2,1L2,9");
});

test("tensors are described by their axes", () => {
  const step = {
    name: "n",
    label: "l",
    formula: "f",
    shape: [4, 9, 1],
    axes: ["head", "target", "feature"],
    note: "",
  };
  expect(sizeInWords(step)).toBe("4 heads × 9 target tokens × 1 feature");
  expect([byHead(step), byHead({ ...step, axes: ["source", "feature"] })]).toEqual([true, false]);
  expect(sides(step)).toEqual(["target token", "feature"]);
  const routed = { ...step, shape: [9, 4], axes: ["target", "expert"] };
  expect(sizeInWords(routed)).toBe("9 target tokens × 4 experts");
  expect(sides(routed)).toEqual(["target token", "expert"]);
  expect(sides({ ...step, shape: [4], axes: ["expert"] })).toEqual(["text", "expert"]);
  expect(sides({ ...step, shape: [9], axes: ["target"] })).toEqual(["target token", "number"]);
  expect([scaleFor(-1, 1), scaleFor(0, 1), scaleFor(-2, -1)]).toEqual([
    "diverging",
    "sequential",
    "sequential",
  ]);
});
