// Places the nodes of a tree or ring of transfers. Pure: edges in, coordinates out.
import { type HierarchyPointNode, hierarchy, tree } from "d3-hierarchy";
import type { Edge, Tree } from "../frame";

export interface Place {
  id: string;
  x: number;
  y: number;
  level: number;
  /** Neighbor towards the root; null for a root. */
  parent: string | null;
}

export interface Layout {
  places: Map<string, Place>;
  width: number;
  height: number;
}

/** Size of the box of a node, whose center is its place. */
export const BOX = { width: 154, height: 24 };
const ROW = 34;
const STEP = 58;
const COLUMN = BOX.width + 54;
const MARGIN = 6;

/** Edges point the way that bytes flow: away from the root in a broadcast, towards it in a reduce. */
function links(tree: Tree): [string, string][] {
  return tree.edges.map((edge: Edge) => (tree.kind === "broadcast" ? [edge.from, edge.to] : [edge.to, edge.from]));
}

export function layout(drawn: Tree): Layout {
  return drawn.kind === "ring" ? ring(drawn) : levels(drawn);
}

function levels(drawn: Tree): Layout {
  const parents = new Map<string, string>();
  const ids = new Set<string>();
  if (drawn.root && drawn.edges.length === 0) ids.add(drawn.root);
  const reaches = (from: string, to: string) => {
    for (let at: string | undefined = from; at; at = parents.get(at)) if (at === to) return true;
    return false;
  };
  for (const [parent, child] of links(drawn)) {
    ids.add(parent).add(child);
    // A node that received from two sources stays under the first; the other edge is drawn across. No cycles.
    if (!parents.has(child) && !reaches(parent, child)) parents.set(child, parent);
  }
  const children = new Map<string, string[]>();
  const roots: string[] = [];
  for (const id of ids) {
    const parent = parents.get(id);
    if (parent === undefined) roots.push(id);
    else children.set(parent, [...(children.get(parent) ?? []), id]);
  }
  roots.sort((one, other) => Number(other === drawn.root) - Number(one === drawn.root));
  // Several roots, such as several pinned copies, hang from one that is not drawn.
  const top = hierarchy<string>("", (id) => (id === "" ? roots : children.get(id)));
  const placed = tree<string>().nodeSize([ROW, COLUMN]).separation(() => 1)(top);
  const nodes = placed.descendants().filter((node) => node.data !== "");
  const low = Math.min(...nodes.map((node) => node.x));
  const places = new Map(nodes.map((node) => [node.data, place(node, low)]));
  const all = [...places.values()];
  return {
    places,
    width: Math.max(...all.map((one) => one.x), 0) + BOX.width / 2 + MARGIN,
    height: Math.max(...all.map((one) => one.y), 0) + BOX.height / 2 + MARGIN,
  };
}

function place(node: HierarchyPointNode<string>, low: number): Place {
  const parent = node.parent?.data || null;
  const x = MARGIN + BOX.width / 2 + node.y - COLUMN;
  return { id: node.data, x, y: MARGIN + BOX.height / 2 + node.x - low, level: node.depth, parent };
}

function ring(drawn: Tree): Layout {
  const next = new Map(drawn.edges.map((edge) => [edge.from, edge.to]));
  const order: string[] = [];
  for (let at: string | undefined = drawn.edges[0]?.from; at && !order.includes(at); at = next.get(at)) order.push(at);
  for (const edge of drawn.edges) for (const id of [edge.from, edge.to]) if (!order.includes(id)) order.push(id);
  // Down on the right and up on the left.
  const half = Math.ceil(order.length / 2);
  const places = new Map<string, Place>();
  order.forEach((id, index) => {
    const x = MARGIN + BOX.width / 2 + (index < half ? COLUMN : 0);
    const row = index < half ? index : order.length - 1 - index;
    places.set(id, { id, x, y: MARGIN + BOX.height / 2 + row * STEP, level: 1, parent: null });
  });
  return { places, width: COLUMN + BOX.width + 2 * MARGIN, height: (half - 1) * STEP + BOX.height + 2 * MARGIN };
}
