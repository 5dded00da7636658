/**
 * Where the nodes of a beam's tree lie: steps from left to right, the tidy-tree layout of D3 from top to bottom.
 *
 * Pure geometry; Tree.svelte draws it.
 */
import { stratify, tree as tidy, type HierarchyPointNode } from "d3-hierarchy";
import type { BeamNode } from "../lib/api";

export interface Placed {
  node: BeamNode;
  x: number;
  y: number;
}

export interface Drawn {
  width: number;
  height: number;
  start: [number, number];
  nodes: Placed[];
  links: { from: [number, number]; to: [number, number]; state: BeamNode["state"]; id: number }[];
}

export const WIDE = 118; // a node
export const ACROSS = 150; // from one step to the next
export const DOWN = 27; // from one text to the next
const EDGE = 18;
const LABEL = WIDE / 2 + 2; // room behind the middle of the last step
const HEAD = 28; // room for the numbers of the steps

interface Item {
  id: string;
  parent: string;
  node: BeamNode | null;
}

/** Lays the tree out; a node whose parent is not among `nodes` is left out with all behind it. */
export function place(nodes: readonly BeamNode[]): Drawn {
  const known = new Set<number>();
  const items: Item[] = [{ id: "start", parent: "", node: null }];
  for (const node of [...nodes].sort((a, b) => a.step - b.step || b.score - a.score)) {
    if (node.parent !== null && !known.has(node.parent)) continue;
    known.add(node.id);
    items.push({ id: String(node.id), parent: node.parent === null ? "start" : String(node.parent), node });
  }
  const root = stratify<Item>()
    .id((item) => item.id)
    .parentId((item) => item.parent)(items);
  const laid = tidy<Item>()
    .nodeSize([DOWN, ACROSS])
    .separation(() => 1)(root);
  return gather(laid);
}

function gather(laid: HierarchyPointNode<Item>): Drawn {
  let top = Infinity;
  let bottom = -Infinity;
  let right = 0;
  laid.each(({ x, y }) => {
    top = Math.min(top, x);
    bottom = Math.max(bottom, x);
    right = Math.max(right, y);
  });
  // the layout's x is our y: it draws trees downwards
  const spot = (one: HierarchyPointNode<Item>): [number, number] => [one.y + EDGE, one.x - top + EDGE + HEAD];
  const drawn: Drawn = {
    width: right + EDGE + LABEL,
    height: bottom - top + 2 * EDGE + HEAD,
    start: spot(laid),
    nodes: [],
    links: [],
  };
  laid.each((one) => {
    const { node } = one.data;
    if (!node) return;
    const [x, y] = spot(one);
    drawn.nodes.push({ node, x, y });
    const [fromX, fromY] = spot(one.parent!);
    // from a node's right side to the next one's left side; the beginning is only a dot
    const out = one.parent === laid ? 5 : WIDE / 2;
    drawn.links.push({ from: [fromX + out, fromY], to: [x - WIDE / 2, y], state: node.state, id: node.id });
  });
  return drawn;
}

/** The texts from the beginning to a node, in order. */
export function pathTo(nodes: readonly BeamNode[], id: number): BeamNode[] {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const path: BeamNode[] = [];
  for (let at = byId.get(id); at; at = at.parent === null ? undefined : byId.get(at.parent)) path.unshift(at);
  return path;
}

/** Where an arrow key leads from a node: to its parent, its best child, or its neighbour in the same step. */
export function neighbour(drawn: Drawn, id: number, key: string): number | null {
  const here = drawn.nodes.find(({ node }) => node.id === id);
  if (!here) return drawn.nodes[0]?.node.id ?? null;
  if (key === "ArrowLeft") return here.node.parent;
  if (key === "ArrowRight") {
    const children = drawn.nodes.filter(({ node }) => node.parent === id);
    const best = children.find(({ node }) => node.state === "best") ?? children[0];
    return best?.node.id ?? null;
  }
  const level = drawn.nodes.filter(({ node }) => node.step === here.node.step).sort((a, b) => a.y - b.y);
  const at = level.indexOf(here) + (key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0);
  return level[at]?.node.id ?? null;
}
