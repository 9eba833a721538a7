// Running broadcasts and reduces, each drawn as the tree or ring that it is, with bytes flowing along its edges.
import { h, keyed, set, svg, write } from "../dom";
import * as format from "../format";
import type { Edge, Tree } from "../frame";
import type { Store } from "../store";
import { type View, roving } from "../view";
import { BOX, type Layout, type Place, layout } from "./layout";
import { Pairs } from "./pairs";

const CHOICES: Record<string, string> = {
  only_holder: "the only node with a copy",
  idle_complete: "an idle node with a complete copy",
  idle_relay: "an idle node whose copy still arrives",
  least_loaded: "the node predicted to be the fastest",
  insert: "a node that crosses to another rack",
  redirect: "a better source than before",
};

export class TreesView implements View {
  readonly element: HTMLElement;
  private readonly list = h("div", { class: "stack" });
  private readonly empty = h("p", { class: "card muted" }, "No broadcast or reduce is running.");
  private readonly hint = h("p", { class: "hint" }, "Select a node to see where its bytes come from, and why.");
  private readonly pairs = new Pairs();

  constructor() {
    this.element = h("div", { class: "columns" }, h("div", {}, this.empty, this.hint, this.list), this.pairs.element);
  }

  update(store: Store): void {
    this.empty.hidden = store.trees.length > 0;
    this.hint.hidden = store.trees.length === 0;
    const key = (tree: Tree) => `${tree.kind} ${tree.ref} ${tree.epoch ?? 0}`;
    keyed(this.list, store.trees, key, () => new Drawing().element, (element, tree) => drawings.get(element)!.show(tree, store));
    this.pairs.show(store);
  }
}

interface Drawn {
  group: SVGGElement;
  done: SVGPathElement;
  flow: SVGPathElement;
}

const drawings = new WeakMap<HTMLElement, Drawing>();
let made = 0;

/** One tree. Its elements are created again only when edges appear or disappear. */
class Drawing {
  readonly element: HTMLElement;
  private readonly title = h("h2");
  private readonly facts = h("p", { class: "muted" });
  private readonly reason = h("p", { class: "muted" });
  private readonly box = h("div", { class: "scroll" });
  private readonly detail = h("p", { class: "detail", hidden: true });
  private readonly more = h("p", { class: "muted" });
  private shape = "";
  private edges = new Map<string, Drawn>();
  private nodes = new Map<string, SVGGElement>();
  private placed: Layout | null = null;
  private readonly keepStop: () => void;
  private tree!: Tree;
  private store!: Store;
  private shown: string | null = null;

  constructor() {
    this.element = h("section", { class: "card" }, this.title, this.facts, this.reason, this.box, this.more, this.detail);
    drawings.set(this.element, this);
    this.detail.id = `detail-${++made}`;
    // On the box: Chromium gives a tab stop to each element of SVG that listens to focus.
    this.keepStop = roving(this.box, () => [...this.nodes.values()], (at, key) => this.neighbor(at as SVGElement, key));
    const point = (event: Event) => {
      const node = (event.target as Element).closest<SVGElement>(".node");
      const edge = (event.target as Element).closest<SVGElement>(".edge");
      if (node) this.explain(node.dataset.id!);
      else if (edge) this.explain(this.tree.kind === "broadcast" ? edge.dataset.to! : edge.dataset.from!);
    };
    this.box.addEventListener("focusin", point);
    this.box.addEventListener("pointerover", point);
  }

  /** The node to which an arrow key leads. */
  private neighbor(at: SVGElement, key: string): SVGElement | null {
    if (this.tree.kind === "ring" || !this.placed) return null;
    const places = [...this.placed.places.values()];
    const id = at.dataset.id!;
    const go = (other: string | null | undefined) => (other ? (this.nodes.get(other) ?? at) : at);
    if (key === "ArrowLeft") return go(this.placed.places.get(id)?.parent);
    if (key === "ArrowRight") return go(places.find((place) => place.parent === id)?.id);
    const column = places.sort((one, other) => one.y - other.y || one.x - other.x).map((place) => place.id);
    if (key === "ArrowDown") return go(column[column.indexOf(id) + 1]);
    if (key === "ArrowUp") return go(column[column.indexOf(id) - 1]);
    return null;
  }

  show(tree: Tree, store: Store): void {
    this.tree = tree;
    this.store = store;
    write(this.title, `${tree.kind === "broadcast" ? "Broadcast" : tree.kind === "ring" ? "Ring reduce" : "Reduce"} of ${tree.ref}`);
    const facts = tree.bytes ? [format.bytes(tree.bytes)] : [];
    if (tree.degree) facts.push(tree.degree);
    if (tree.epoch) facts.push(`epoch ${tree.epoch}`);
    if (store.frame) facts.push(`for ${format.duration(store.frame.time - tree.since)}`);
    const rate = tree.edges.reduce((sum, edge) => sum + edge.rate, 0);
    if (rate > 0) facts.push(format.rate(rate));
    write(this.facts, facts.join(" · "));
    write(this.reason, tree.reason ?? "");
    this.reason.hidden = !tree.reason;
    write(this.more, tree.omitted ? `${format.plural(tree.omitted, "more transfer")} not drawn` : "");
    this.more.hidden = !tree.omitted;
    const shape = tree.edges.map((edge) => `${edge.from} ${edge.to}`).sort().join() + (tree.root ?? "");
    if (shape !== this.shape) this.build(layout(tree));
    this.shape = shape;
    this.refresh();
  }

  private build(placed: Layout): void {
    const focused = this.box.contains(document.activeElement) ? (document.activeElement as SVGElement).dataset.id : null;
    this.placed = placed;
    this.edges.clear();
    this.nodes.clear();
    const drawing = svg("svg", { width: placed.width, height: placed.height, viewBox: `0 0 ${placed.width} ${placed.height}` });
    const lines = svg("g", { "aria-hidden": "true" });
    const label = `Nodes of the ${this.tree.kind} of ${this.tree.ref}`;
    const group = svg("g", { role: "tree", "aria-label": label });
    for (const edge of this.tree.edges) {
      const [from, to] = [placed.places.get(edge.from)!, placed.places.get(edge.to)!];
      const d = curve(from, to);
      const done = svg("path", { d, class: "done", pathLength: 100 });
      const flow = svg("path", { d, class: "flow" });
      const one = svg("g", { class: "edge", "data-from": edge.from, "data-to": edge.to }, svg("path", { d, class: "base" }), done, flow);
      lines.append(one);
      this.edges.set(`${edge.from} ${edge.to}`, { group: one, done, flow });
    }
    for (const place of placed.places.values()) {
      const node = svg(
        "g",
        {
          class: "node",
          role: "treeitem",
          tabindex: -1,
          "aria-level": place.level,
          "aria-describedby": this.detail.id,
          "data-id": place.id,
          transform: `translate(${place.x},${place.y})`,
        },
        svg("rect", { class: "box", x: -BOX.width / 2, y: -BOX.height / 2, width: BOX.width, height: BOX.height, rx: 5 }),
        svg("rect", { class: "share", x: 2 - BOX.width / 2, y: BOX.height / 2 - 5, width: 0, height: 3 }),
        svg("text", { x: 8 - BOX.width / 2, y: 3 }),
        svg("text", { class: "percent", x: BOX.width / 2 - 8, y: 3, "text-anchor": "end" }),
      );
      this.nodes.set(place.id, node);
      group.append(node);
    }
    drawing.append(lines, group);
    this.box.replaceChildren(drawing);
    this.keepStop();
    if (focused) this.nodes.get(focused)?.focus();
  }

  private refresh(): void {
    for (const edge of this.tree.edges) {
      const drawn = this.edges.get(`${edge.from} ${edge.to}`)!;
      const share = Math.round(100 * Math.min(1, Math.max(0, edge.done)));
      set(drawn.done, "stroke-dasharray", `${share} ${200}`);
      drawn.group.classList.toggle("moving", edge.rate > 0);
      // Faster bytes move faster: 1 MB/s takes 4 s for one pattern, 1 GB/s 0.5 s.
      const seconds = edge.rate > 0 ? Math.min(4, Math.max(0.5, 4 - 1.17 * (Math.log10(edge.rate) - 6))) : 0;
      const duration = `${seconds.toFixed(1)}s`;
      if (drawn.flow.style.animationDuration !== duration) drawn.flow.style.animationDuration = duration;
    }
    for (const [id, node] of this.nodes) {
      const row = this.store.nodes.get(id);
      set(node, "class", `node ${row?.state ?? ""}${id === this.tree.root ? " root" : ""}`);
      const own = this.incoming(id);
      const name = this.store.name(id);
      const done = own.length ? Math.max(...own.map((edge) => edge.done)) : 1;
      const state = row && row.state !== "alive" ? format.sign(row.state) : !own.length ? "" : done < 1 ? this.share(done) : "✓";
      set(node.children[1], "width", Math.round((BOX.width - 4) * Math.min(1, Math.max(0, done))));
      write(node.children[2], name.length > 16 ? `${name.slice(0, 6)}…${name.slice(-9)}` : name);
      write(node.children[3], state);
      set(node, "aria-selected", String(id === this.shown));
    }
    if (this.shown) write(this.detail, this.words(this.shown));
  }

  /** Edges that explain a node: of a broadcast, its sources; of a reduce, where its partial sum goes. */
  private incoming(id: string): Edge[] {
    return this.tree.edges.filter((edge) => (this.tree.kind === "broadcast" ? edge.to : edge.from) === id);
  }

  /** Empty while the size is unknown: nodes do not report the size of a partial sum. */
  private share(done: number): string {
    return this.tree.bytes || done >= 1 ? format.percent(done) : "";
  }

  private explain(id: string): void {
    this.shown = id;
    this.detail.hidden = false;
    write(this.detail, this.words(id));
    for (const [other, node] of this.nodes) set(node, "aria-selected", String(other === id));
    for (const { group } of this.edges.values()) {
      group.classList.toggle("selected", group.dataset.from === id || group.dataset.to === id);
    }
  }

  private words(id: string): string {
    const { store, tree } = this;
    const state = store.nodes.get(id)?.state ?? "alive";
    const name = store.name(id) + (state === "alive" ? "" : ` (${state})`);
    const edges = this.incoming(id);
    if (!edges.length) return `${name}: ${tree.kind === "broadcast" ? "source of the broadcast" : "receives the result"}`;
    return edges
      .map((edge) => {
        const facts = [this.share(edge.done), edge.rate > 0 ? `at ${format.rate(edge.rate)}` : ""].filter(Boolean).join(" ");
        const why = edge.reason || (edge.choice && (CHOICES[edge.choice] ?? edge.choice));
        const verb = tree.kind === "broadcast" ? `receives from ${store.name(edge.from)}` : `sends to ${store.name(edge.to)}`;
        return `${name} ${verb}${facts ? `, ${facts}` : ""}${why ? `. Why: ${why}` : ""}`;
      })
      .join(". ");
  }
}

/** From the side of one box to the facing side of the other. */
function curve(from: Place, to: Place): string {
  if (from.x === to.x) {
    const edge = (BOX.height / 2) * Math.sign(to.y - from.y);
    return `M${from.x},${from.y + edge} L${to.x},${to.y - edge}`;
  }
  const side = (BOX.width / 2) * Math.sign(to.x - from.x);
  const [begin, end] = [from.x + side, to.x - side];
  const middle = (begin + end) / 2;
  return `M${begin},${from.y} C${middle},${from.y} ${middle},${to.y} ${end},${to.y}`;
}
