import { expect, test } from "vitest";
import type { BeamNode, Cost } from "../../src/lib/api";
import { bars } from "../../src/run/distribution";
import { counts, passesOf, passText, staircase } from "../../src/run/passes";
import { neighbour, pathTo, place, WIDE } from "../../src/run/tree";

const chance = (id: number, p: number): { id: number; text: string; p: number } => ({
  id,
  text: `t${id}`,
  p,
});

test("a bar's length is in proportion to its probability, in both columns alike", () => {
  const drawn = bars([chance(1, 0.5), chance(2, 0.25)], [chance(2, 0.8), chance(1, 0.2)], 2, 900);
  const [before, after] = drawn.columns;
  const unit = before.bars[0]!.width / 0.5;
  for (const bar of [...before.bars, ...after.bars]) expect(bar.width).toBeCloseTo(unit * bar.p, 9);
  expect([...before.bars, ...after.bars].filter(({ chosen }) => chosen).map(({ id }) => id)).toEqual([2, 2]);
  expect(drawn.links).toHaveLength(2);
  expect(drawn.width).toBe(900);
});

test("on a narrow page the columns stand one above the other", () => {
  const drawn = bars([chance(1, 0.5)], [chance(1, 1)], 1, 330);
  expect(drawn.links).toHaveLength(0);
  expect(drawn.columns[1].bars[0]!.y).toBeGreaterThan(drawn.columns[0].bars[0]!.y);
  for (const { bars: some } of drawn.columns)
    for (const bar of some) expect(bar.x + bar.width).toBeLessThan(330);
});

function node(
  id: number,
  parent: number | null,
  step: number,
  state: BeamNode["state"] = "live",
  score = -id,
): BeamNode {
  return {
    id,
    parent,
    step,
    word: { id, text: `w${id}`, kind: "word" },
    logp: score,
    score,
    kept: true,
    state,
  };
}
const TREE = [
  node(0, null, 0, "best"),
  node(1, null, 0),
  node(2, 0, 1, "best"),
  node(3, 0, 1, "pruned"),
  node(4, 1, 1),
  node(5, 2, 2, "best"),
];

test("nodes of one step stand in one column, apart from each other", () => {
  const drawn = place(TREE);
  expect(drawn.nodes).toHaveLength(TREE.length);
  for (const a of drawn.nodes)
    for (const b of drawn.nodes) {
      if (a.node.step === b.node.step) expect(a.x).toBe(b.x);
      if (a !== b && a.node.step === b.node.step) expect(Math.abs(a.y - b.y)).toBeGreaterThanOrEqual(23);
      expect(a.x + WIDE / 2).toBeLessThanOrEqual(drawn.width);
      expect(a.y).toBeLessThan(drawn.height);
    }
  expect(drawn.links).toHaveLength(TREE.length);
});

test("a branch whose beginning is not drawn is not drawn either", () => {
  expect(place(TREE.filter(({ id }) => id !== 1)).nodes.map(({ node }) => node.id)).not.toContain(4);
  expect(place([]).nodes).toEqual([]);
});

test("arrow keys go along a text and between texts", () => {
  const drawn = place(TREE);
  expect(neighbour(drawn, 5, "ArrowLeft")).toBe(2);
  expect(neighbour(drawn, 0, "ArrowRight")).toBe(2);
  expect(neighbour(drawn, 0, "ArrowLeft")).toBeNull();
  const down = neighbour(drawn, 0, "ArrowDown") ?? neighbour(drawn, 0, "ArrowUp");
  expect(down).toBe(1);
  expect(pathTo(TREE, 5).map(({ id }) => id)).toEqual([0, 2, 5]);
});

const COST: Cost = {
  training: { passes: 1, positions: 4, attended: 10 },
  inference: { passes: 4, cached: [0, 1, 2, 3], attended: 10, rows: [1, 2, 2, 2], uncached: 20 },
};

test("writing goes one position at a time over all positions", () => {
  expect(passesOf(COST).map(({ rows }) => rows)).toEqual([
    [0, 0],
    [1, 1],
    [2, 2],
    [3, 3],
  ]);
  const prompted: Cost = {
    training: { passes: 1, positions: 7, attended: 28 },
    inference: { passes: 3, cached: [0, 5, 6], attended: 28, rows: [1, 1, 1], uncached: 64 },
  };
  expect(passesOf(prompted).map(({ rows }) => rows)).toEqual([
    [0, 4],
    [5, 5],
    [6, 6],
  ]);
});

test("the counts are the server's", () => {
  const table = Object.fromEntries(counts(COST).map(([name, ...both]) => [name, both]));
  expect(table["forward passes of the decoder"]).toEqual([1, 4]);
  expect(table["keys cached before the last pass"]).toEqual([0, 3]);
  expect(table["query–key pairs per layer and head"]).toEqual([10, 10]);
  expect(table["texts decoded together"]).toEqual([1, 2]);
});

test("a pass is a sentence", () => {
  const text = (first: number, last: number, cached: number): string =>
    passText({ rows: [first, last], cached }, 1, 4);
  expect(text(0, 4, 0)).toBe(
    "Pass 2 of 4: the 5 given tokens go through the decoder at once; each looks at itself and at those before it.",
  );
  expect(text(0, 0, 0)).toBe("Pass 2 of 4: one token goes through the decoder and looks at itself.");
  expect(text(1, 1, 1)).toContain("looks at 1 cached key and at itself");
  expect(text(2, 2, 2)).toContain("looks at 2 cached keys and at itself");
});

test("the staircase covers the cells at and below the diagonal", () => {
  expect(staircase(0, 1, 10)).toBe("M0,0H10V10H20V20H0Z");
  expect(staircase(2, 2, 10)).toBe("M0,20H30V30H0Z");
  expect(staircase(1, 0, 10)).toBe("");
  expect(staircase(0, 2, 10, 2)).toBe("M0,0H20V10H20V20H30V30H0Z"); // two given tokens see each other
});
