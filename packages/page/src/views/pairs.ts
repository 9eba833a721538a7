// Transfers grouped by pair of hosts, or by pair of racks.
import { h, rows, table } from "../dom";
import * as format from "../format";
import type { Pair } from "../frame";
import type { Store } from "../store";

export class Pairs {
  readonly element: HTMLElement;
  private readonly grid = table("Transfers by pair of hosts, fastest first", ["From", "To", "Rate", "Transfers"]);
  private readonly empty = h("p", { class: "muted" }, "No transfers.");
  private readonly racks = h("input", { type: "checkbox", id: "by-rack" });
  private store: Store | null = null;

  constructor() {
    this.racks.addEventListener("change", () => this.store && this.show(this.store));
    const title = h("div", { class: "heading" }, h("h2", {}, "Pairs of hosts"), h("label", { for: "by-rack" }, this.racks, " by rack"));
    this.element = h("section", { class: "card" }, title, this.empty, this.grid.element);
  }

  show(store: Store): void {
    this.store = store;
    const pairs = (this.racks.checked ? grouped(store) : [...store.pairs]).sort((one, other) => other.rate - one.rate);
    const most = Math.max(1, ...pairs.map((pair) => pair.rate));
    const name = (id: string) => (this.racks.checked ? id : store.name(id));
    this.empty.hidden = pairs.length > 0;
    this.grid.element.hidden = pairs.length === 0;
    rows(
      this.grid.body,
      pairs,
      (pair) => `${pair.from} ${pair.to}`,
      (pair) => [name(pair.from), name(pair.to), { text: format.rate(pair.rate), share: pair.rate / most }, format.count(pair.transfers)],
    );
  }
}

function grouped(store: Store): Pair[] {
  const sums = new Map<string, Pair>();
  const rack = (id: string) => store.nodes.get(id)?.rack || "no rack";
  for (const pair of store.pairs) {
    const [from, to] = [rack(pair.from), rack(pair.to)];
    const key = `${from}\n${to}`;
    const sum = sums.get(key) ?? { from, to, rate: 0, transfers: 0 };
    sums.set(key, { ...sum, rate: sum.rate + pair.rate, transfers: sum.transfers + pair.transfers });
  }
  return [...sums.values()];
}
