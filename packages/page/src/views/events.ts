// The log of events, newest first, with filters. Older ones than the page holds come from /api/events.
import { h, rows, set, table, write } from "../dom";
import * as format from "../format";
import type { ClusterEvent } from "../frame";
import { type Store, same } from "../store";
import type { View } from "../view";

/** Rows in the document; the filters search all events that the page holds. */
const ROWS = 200;
const OLDER = 500;

export class EventsView implements View {
  readonly element: HTMLElement;
  private readonly kind = h("select", { id: "event-kind" }, h("option", { value: "" }, "all kinds"));
  private readonly text = h("input", { type: "search", id: "event-text", autocomplete: "off", spellcheck: "false" });
  private readonly pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  private readonly older = h("button", { type: "button" }, "Load older");
  private readonly status = h("p", { class: "muted" });
  private readonly grid = table("Events, newest first", ["Time", "Node", "Kind", "Object", "Event"]);
  private readonly kinds = new Set<string>();
  private past: ClusterEvent[] = [];
  private paused = false;
  private store: Store | null = null;

  constructor() {
    const again = () => this.store && this.fill(this.store);
    this.kind.addEventListener("change", again);
    this.text.addEventListener("input", again);
    this.pause.addEventListener("click", () => {
      this.paused = !this.paused;
      set(this.pause, "aria-pressed", String(this.paused));
      if (!this.paused) again();
    });
    this.older.addEventListener("click", () => void this.loadOlder());
    const controls = h(
      "div",
      { class: "controls" },
      h("label", { for: "event-kind" }, "Kind "),
      this.kind,
      h("label", { for: "event-text" }, "Contains "),
      this.text,
      this.pause,
      this.older,
      this.status,
    );
    this.element = h("section", { class: "card" }, h("h2", {}, "Events"), controls, this.grid.element);
  }

  update(store: Store): void {
    this.store = store;
    if (!this.paused) this.fill(store);
  }

  private fill(store: Store): void {
    const words = this.text.value.toLowerCase();
    const shown: ClusterEvent[] = [];
    let held = 0;
    let matching = 0;
    const look = (event: ClusterEvent) => {
      held++;
      if (!this.kinds.has(event.kind) && this.kinds.size < 100) {
        this.kinds.add(event.kind);
        this.kind.append(h("option", { value: event.kind }, event.kind.replaceAll("_", " ")));
      }
      if (this.kind.value && event.kind !== this.kind.value) return;
      if (words && !`${store.name(event.node)} ${event.text} ${event.ref ?? ""}`.toLowerCase().includes(words)) return;
      matching++;
      if (shown.length < ROWS) shown.push(event);
    };
    for (const event of store.events.newest()) look(event);
    for (const event of this.past) look(event);
    const omitted = store.skipped ? `, ${format.count(store.skipped)} more not sent` : "";
    write(this.status, `${format.count(matching)} of ${format.count(held)} events${omitted}`);
    const seen = new Map<string, number>();
    rows(
      this.grid.body,
      shown,
      (event) => {
        const key = `${event.time} ${event.node} ${event.kind} ${event.ref} ${event.text}`;
        const number = (seen.get(key) ?? 0) + 1;
        seen.set(key, number);
        return `${key} ${number}`;
      },
      (event) => [
        format.clock(event.time),
        store.name(event.node),
        event.kind.replaceAll("_", " "),
        event.ref ?? "",
        event.text,
      ],
    );
  }

  private async loadOlder(): Promise<void> {
    if (!this.store) return;
    const oldest = this.past[this.past.length - 1] ?? (this.store.events.size ? this.store.events.at(0) : null);
    // Events of the same millisecond as the oldest may be missing here.
    let older: ClusterEvent[] = [];
    for (let before = oldest ? oldest.time + 0.0005 : null, more = true; more && !older.length; ) {
      const query = new URLSearchParams({ limit: "100" });
      if (before !== null) query.set("before", String(before));
      if (this.kind.value) query.set("kind", this.kind.value);
      const reply = await fetch(`/api/events?${query}`).catch(() => null);
      if (!reply?.ok) return write(this.status, "Cannot load older events");
      const { events } = (await reply.json()) as { events: ClusterEvent[] };
      const held = (event: ClusterEvent) => this.store!.has(event) || this.past.some((other) => same(other, event));
      older = events.filter((event) => !held(event)).sort((one, other) => other.time - one.time);
      const first = Math.min(...events.map((event) => event.time));
      more = first < (before ?? Infinity);
      before = first;
    }
    this.past = [...this.past, ...older].slice(0, OLDER);
    this.fill(this.store);
    if (!older.length) write(this.status, "No older events");
  }
}
