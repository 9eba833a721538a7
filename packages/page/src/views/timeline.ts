// Activity over time: one lane per node, spans with a color, a pattern and a letter for each kind.
import { h, keyed, set, write } from "../dom";
import * as format from "../format";
import type { Span } from "../frame";
import type { Store } from "../store";
import { color } from "../theme";
import type { View } from "../view";
import { KINDS, type Patterns, patterns, swatch } from "./kinds";

/** Height of one row. Lanes have a row for each group of kinds, or one row if there are many lanes. */
const ROW = 16;
const GROUPS = [["receive"], ["send"], ["fold", "reduce", "spill"], ["wait"]];
const MANY = 24;
const AXIS = 22;
const NAMES = 150;
const WINDOWS = [15, 30, 60, 120, 300, 600];

interface Lane {
  id: string;
  name: string;
}

export class TimelineView implements View {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": "Timeline of activity" });
  private readonly spacer = h("div", { class: "spacer" });
  private readonly scroller = h("div", { class: "lanes" }, h("div", { class: "fixed" }, this.canvas), this.spacer);
  private readonly detail = h("p", { class: "detail", "aria-live": "polite" }, "Point at a span, or use the arrow keys.");
  private readonly span = h("select", { id: "window" }, ...WINDOWS.map((seconds) => h("option", { value: seconds, selected: seconds === 30 }, format.duration(seconds))));
  private readonly idle = h("input", { type: "checkbox", id: "idle" });
  private readonly pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  private lanes: Lane[] = [];
  private lane = ROW;
  private byLane = new Map<string, Span[]>();
  private chosen: Span | null = null;
  private end = 0;
  private paused = false;
  private patterns: Patterns | null = null;
  private store: Store | null = null;

  constructor() {
    const again = () => this.store && this.collect(this.store);
    this.span.addEventListener("change", again);
    this.idle.addEventListener("change", again);
    this.pause.addEventListener("click", () => {
      this.paused = !this.paused;
      set(this.pause, "aria-pressed", String(this.paused));
    });
    this.scroller.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.find(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("keydown", (event) => this.step(event));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    const legend = h("p", { class: "legend" });
    keyed(legend, Object.keys(KINDS), String, (kind) => h("span", {}, swatch(kind), ` ${KINDS[kind].letter} ${kind}`), () => undefined);
    const controls = h("div", { class: "controls" }, h("label", { for: "window" }, "Last "), this.span, h("label", { for: "idle" }, this.idle, " idle nodes too"), this.pause);
    this.element = h("section", { class: "card" }, h("h2", {}, "Timeline"), controls, legend, this.scroller, this.detail);
  }

  update(store: Store): void {
    this.store = store;
    if (!this.paused) this.collect(store);
  }

  restyle(): void {
    this.patterns = null;
    this.draw();
  }

  private seconds(): number {
    return Number(this.span.value);
  }

  private collect(store: Store): void {
    this.end = store.frame?.time ?? 0;
    const begin = this.end - this.seconds();
    this.byLane = new Map();
    for (const span of [...store.spans.newest(), ...store.open]) {
      if (span.end < begin) continue;
      const lane = this.byLane.get(span.node);
      if (lane) lane.push(span);
      else this.byLane.set(span.node, [span]);
    }
    for (const spans of this.byLane.values()) spans.sort((one, other) => one.begin - other.begin);
    const all = store.racks().flatMap(([, rows]) => rows);
    const shown = this.idle.checked ? all : all.filter((row) => this.byLane.has(row.id));
    this.lanes = shown.map((row) => ({ id: row.id, name: row.name + (row.state === "alive" ? "" : ` (${row.state})`) }));
    this.lane = this.lanes.length > MANY ? ROW + 4 : GROUPS.length * ROW + 4;
    const height = `${AXIS + Math.max(1, this.lanes.length) * this.lane}px`;
    if (this.spacer.style.height !== height) this.spacer.style.height = height;
    const spans = [...this.byLane.values()].reduce((sum, lane) => sum + lane.length, 0);
    const words = `Timeline of the last ${format.duration(this.seconds())}: ${format.plural(spans, "span")} of ${format.plural(this.lanes.length, "node")}`;
    set(this.canvas, "aria-label", words);
    this.draw();
  }

  private x(time: number, width: number): number {
    return NAMES + ((time - this.end + this.seconds()) / this.seconds()) * (width - NAMES);
  }

  /** Where the row of a span begins in its lane. */
  private offset(span: Span): number {
    if (this.lanes.length > MANY) return 3;
    return 3 + ROW * Math.max(0, GROUPS.findIndex((group) => group.includes(span.kind)));
  }

  /** Draws the lanes that are in sight. */
  private draw(): void {
    const [width, height] = [this.scroller.clientWidth, this.scroller.clientHeight];
    if (width < NAMES + 50 || !this.end) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d")!;
    this.patterns ??= patterns(context);
    const [ink, muted, line] = [color("ink"), color("muted"), color("line")];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const top = this.scroller.scrollTop;
    const first = Math.max(0, Math.floor(top / this.lane));
    const last = Math.min(this.lanes.length, Math.ceil((top + height) / this.lane));
    for (let index = first; index < last; index++) {
      const lane = this.lanes[index];
      const y = AXIS + index * this.lane - top;
      if (y < AXIS - this.lane) continue;
      context.strokeStyle = line;
      context.lineWidth = 1;
      context.strokeRect(NAMES, y + this.lane - 0.5, width - NAMES, 0);
      for (const span of this.byLane.get(lane.id) ?? []) this.drawSpan(context, span, y + this.offset(span), width, ink);
      context.fillStyle = color("card");
      context.fillRect(0, y, NAMES - 4, this.lane);
      context.fillStyle = ink;
      context.fillText(lane.name, 4, y + this.lane / 2, NAMES - 12);
    }
    context.fillStyle = color("card");
    context.fillRect(0, 0, width, AXIS);
    context.fillStyle = muted;
    for (let part = 0; part < 5; part++) {
      const time = this.end - this.seconds() + (part / 5) * this.seconds();
      context.fillText(format.clock(time), this.x(time, width), AXIS / 2);
    }
    if (!this.lanes.length) context.fillText("No activity in this time.", NAMES, AXIS + this.lane / 2);
  }

  private drawSpan(context: CanvasRenderingContext2D, span: Span, y: number, width: number, ink: string): void {
    const kind = KINDS[span.kind];
    const begin = Math.max(NAMES, this.x(span.begin, width));
    const size = Math.max(2, this.x(span.end, width) - begin);
    context.fillStyle = this.patterns![span.kind] ?? ink;
    context.fillRect(begin, y, size, ROW - 2);
    context.lineWidth = span === this.chosen ? 2 : 1;
    context.strokeStyle = span === this.chosen ? ink : color(kind?.color ?? "muted");
    if (size > 3 || span === this.chosen) context.strokeRect(begin + 0.5, y + 0.5, size - 1, ROW - 3);
    if (kind && size > 16) {
      context.fillStyle = color("card");
      context.fillRect(begin + 3, y + 1, 11, ROW - 4);
      context.fillStyle = ink;
      context.fillText(kind.letter, begin + 4.5, y + ROW / 2 - 0.5);
    }
  }

  private find(x: number, y: number): Span | null {
    const down = y - AXIS + this.scroller.scrollTop;
    const lane = this.lanes[Math.floor(down / this.lane)];
    if (!lane || y < AXIS) return null;
    const width = this.scroller.clientWidth;
    const spans = this.byLane.get(lane.id) ?? [];
    const inside = down % this.lane;
    return (
      spans.findLast((span) => {
        const top = this.offset(span);
        return inside >= top && inside < top + ROW && x >= this.x(span.begin, width) - 2 && x <= this.x(span.end, width) + 2;
      }) ?? null
    );
  }

  private choose(span: Span | null): void {
    if (!span || span === this.chosen) return;
    this.chosen = span;
    const name = this.store?.name(span.node) ?? "";
    write(this.detail, `${name}, ${format.clock(span.begin)}, ${format.duration(span.end - span.begin)}, ${span.kind}: ${span.text}`);
    this.draw();
  }

  /** Arrows: left and right to the neighbor in time, up and down to the next node. */
  private step(event: KeyboardEvent): void {
    const at = this.lanes.findIndex((lane) => lane.id === this.chosen?.node);
    const spans = (this.chosen && this.byLane.get(this.chosen.node)) || [];
    const index = this.chosen ? spans.indexOf(this.chosen) : -1;
    let next: Span | undefined;
    if (event.key === "ArrowRight") next = spans[index + 1];
    else if (event.key === "ArrowLeft") next = spans[index - 1];
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const move = event.key === "ArrowDown" ? 1 : -1;
      for (let lane = at + move; lane >= 0 && lane < this.lanes.length && !next; lane += move) {
        next = this.byLane.get(this.lanes[lane].id)?.at(-1);
      }
    } else return;
    event.preventDefault();
    if (at < 0) next = this.lanes.map((lane) => this.byLane.get(lane.id)?.at(-1)).find(Boolean);
    if (!next) return;
    this.choose(next);
    const y = this.lanes.findIndex((lane) => lane.id === next.node) * this.lane;
    if (y < this.scroller.scrollTop || y + 2 * this.lane > this.scroller.scrollTop + this.scroller.clientHeight - AXIS) {
      this.scroller.scrollTop = Math.max(0, y - this.scroller.clientHeight / 2);
    }
  }
}
