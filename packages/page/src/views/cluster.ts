// The cluster map: nodes grouped by rack, each with its memory and state, the details of one of them, and the latest
// events of it or of all.
import { bar, h, keyed, rows, set, table, write } from "../dom";
import * as format from "../format";
import type { ClusterEvent, NodeRow } from "../frame";
import type { Store } from "../store";
import { type View, roving } from "../view";
import { Bandwidth } from "./bandwidth";

/** Larger clusters have small tiles without numbers; the details show them. */
const COMPACT = 40;

/** Events below the map. */
const LATEST = 12;

type Tile = HTMLElement & { show?: (row: NodeRow, name: string) => void };

export class ClusterView implements View {
  readonly element: HTMLElement;
  private readonly map = h("div", { class: "map", role: "listbox", "aria-label": "Nodes by rack" });
  private readonly detail = h("dl", { class: "facts" });
  private readonly title = h("h3");
  private readonly bandwidth = new Bandwidth();
  private readonly latest = table("Latest events", ["Time", "Node", "Event"]);
  private readonly quiet = h("p", { class: "muted" }, "No event yet.");
  private readonly keepStop: () => void;
  private selected: string | null = null;
  private short = false;
  private store: Store | null = null;

  constructor() {
    const clear = h("button", { type: "button", class: "quiet" }, "Show cluster");
    clear.addEventListener("click", () => this.choose(null));
    this.element = h(
      "div",
      { class: "columns" },
      h(
        "div",
        { class: "stack" },
        h("section", { class: "card" }, h("h2", {}, "Nodes"), legend(), this.map),
        h("section", { class: "card" }, h("h2", {}, "Latest events"), this.quiet, this.latest.element),
      ),
      h(
        "div",
        { class: "stack" },
        h("section", { class: "card" }, h("div", { class: "heading" }, this.title, clear), this.detail),
        this.bandwidth.element,
      ),
    );
    this.keepStop = roving(this.map, () => [...this.map.querySelectorAll("[role=option]")]);
    const pick = (target: EventTarget | null) => {
      const tile = (target as Element).closest<HTMLElement>("[role=option]");
      if (tile) this.choose(tile.dataset.key!);
    };
    this.map.addEventListener("click", (event) => pick(event.target));
    this.map.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick(event.target);
    });
  }

  private choose(id: string | null): void {
    this.selected = id;
    if (this.store) this.update(this.store);
  }

  update(store: Store): void {
    this.store = store;
    if (this.selected && !store.nodes.has(this.selected)) this.selected = null;
    this.map.classList.toggle("compact", store.nodes.size > COMPACT);
    // Without the ports, if the hosts alone are unique.
    const hosts = new Set([...store.nodes.values()].map((row) => host(row.name)));
    this.short = store.nodes.size > COMPACT && hosts.size === store.nodes.size;
    keyed(this.map, store.racks(), ([rack]) => rack, createRack, (element, rack) => this.showRack(element, rack));
    this.keepStop();
    this.showDetail(store);
    this.showLatest(store);
    this.bandwidth.show(store, this.selected);
  }

  private showRack(element: HTMLElement, [rack, rows]: [string, NodeRow[]]): void {
    const here = rows.filter((row) => row.state !== "dead" && row.state !== "left");
    const used = here.reduce((sum, row) => sum + row.used, 0);
    const capacity = here.reduce((sum, row) => sum + row.capacity, 0);
    const failed = rows.filter((row) => row.state === "dead").length;
    const facts = [format.plural(rows.length, "node"), `${format.bytes(used)} of ${format.bytes(capacity)}`];
    if (failed) facts.push(`${failed} dead`);
    write(element.firstElementChild!.lastElementChild!, facts.join(" · "));
    set(element, "aria-label", `Rack ${rack}, ${facts.join(", ")}`);
    keyed(element.lastElementChild!, rows, (row) => row.id, createTile, (tile: Tile, row) => {
      tile.show!(row, this.short ? host(row.name) : row.name);
      set(tile, "aria-selected", String(row.id === this.selected));
    });
  }

  private showDetail(store: Store): void {
    const row = this.selected ? store.nodes.get(this.selected) : null;
    write(this.title, row ? row.name : "Cluster");
    (this.title.nextElementSibling as HTMLElement).hidden = !row;
    const { totals } = store;
    const rates = store.frame?.rates;
    const facts: [string, string][] = row
      ? [
          ["State", `${format.sign(row.state)} ${row.state}`],
          ["Id", row.id.slice(0, 16)],
          ["Rack", row.rack ?? "unknown"],
          ["Memory", `${format.bytes(row.used)} of ${format.bytes(row.capacity)}`],
          ["On disk", format.bytes(row.spilled)],
          ["Objects", format.count(row.objects)],
          ["Receives", format.rate(row.in)],
          ["Sends", format.rate(row.out)],
          ["Round trip", row.rtt_us == null ? "unknown" : format.duration(row.rtt_us / 1e6)],
        ]
      : [
          ["Nodes", `${format.count(totals.nodes)}${totals.dead ? `, ${totals.dead} dead` : ""}`],
          ["Objects", format.count(totals.objects)],
          ["Size", format.bytes(totals.bytes)],
          ["Transfers", format.count(totals.transfers)],
          ["Reduces", format.count(totals.reduces)],
          ["Waits", format.count(totals.waits)],
          ["Transfer rate", format.rate(rates?.in ?? 0)],
        ];
    keyed(
      this.detail,
      facts,
      ([name]) => name,
      ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
      (element, [, value]) => write(element.lastElementChild!, value),
    );
  }

  private showLatest(store: Store): void {
    const shown: [number, ClusterEvent][] = [];
    for (const event of store.events.newest()) {
      if (shown.length === LATEST) break;
      if (!this.selected || event.node === this.selected) shown.push([shown.length, event]);
    }
    this.quiet.hidden = shown.length > 0;
    this.latest.element.hidden = shown.length === 0;
    rows(
      this.latest.body,
      shown,
      ([place]) => String(place),
      ([, event]) => [format.clock(event.time), store.name(event.node), event.text],
    );
  }

  restyle(): void {
    this.bandwidth.restyle();
  }
}

function host(name: string): string {
  return name.replace(/:\d+$/, "");
}

function legend(): HTMLElement {
  const states = ["alive", "suspected", "dead", "left", "silent"];
  return h(
    "p",
    { class: "legend" },
    ...states.map((state) => h("span", {}, h("span", { class: `sign ${state}`, "aria-hidden": "true" }, format.sign(state)), ` ${state}`)),
    h("span", {}, h("span", { class: "swatch filled" }), " memory in use"),
    h("span", {}, h("span", { class: "swatch hatched" }), " on disk"),
  );
}

function createRack([rack]: [string, NodeRow[]]): HTMLElement {
  const title = h("div", { class: "heading" }, h("strong", {}, rack), h("span", { class: "muted" }));
  return h("div", { class: "rack", role: "group" }, title, h("div", { class: "tiles" }));
}

function createTile(): HTMLElement {
  const sign = h("span", { class: "sign", "aria-hidden": "true" });
  const name = h("span", { class: "name" });
  const state = h("span", { class: "state" });
  const memory = bar("memory");
  const received = h("span");
  const sent = h("span");
  const numbers = h("span", { class: "numbers" }, received, sent);
  const tile: Tile = h("div", { class: "tile", role: "option", tabindex: -1 });
  tile.append(h("span", { class: "heading" }, sign, name, state), memory.element, numbers);
  tile.show = (row, shown) => {
    set(tile, "class", `tile ${row.state}`);
    set(sign, "class", `sign ${row.state}`);
    write(sign, format.sign(row.state));
    write(name, shown);
    const capacity = Math.max(1, row.capacity);
    write(state, row.state === "alive" ? format.percent(row.used / capacity) : row.state);
    memory.show(row.used / capacity, row.spilled / capacity);
    const moves = row.state === "alive";
    write(received, moves ? `↓ ${format.rate(row.in)}` : "");
    write(sent, moves ? `↑ ${format.rate(row.out)}` : "");
    set(tile, "title", row.name);
  };
  return tile;
}
