// What the page knows of the cluster: the latest state, and bounded histories. Knows nothing of elements.
import type { ClusterEvent, Frame, Lag, NodeRow, Pair, Span, Totals, Tree, Wait } from "./frame";
import { Ring } from "./ring";

/** Ten minutes of one frame a second. */
const HISTORY = 600;
const EVENTS = 1000;
const SPANS = 6000;
/** Nodes beyond this number have no chart of their own. */
const CHARTED = 512;

/** Rates of one node or of the cluster, one value per frame; the same index as in `times`. */
interface Rates {
  in: Float32Array;
  out: Float32Array;
}

/** Whether two rows are the same event. */
export function same(one: ClusterEvent, other: ClusterEvent): boolean {
  if (one.node !== other.node || one.time !== other.time) return false;
  return one.serial == null ? one.kind === other.kind && one.ref === other.ref && one.text === other.text : one.serial === other.serial;
}

/** A wait as a span that has not ended. */
function waiting(wait: Wait, now: number): Span {
  const process = wait.process == null ? "a process" : `process ${wait.process}`;
  const text = `${wait.verb} of ${process} waits: ${wait.reason}`;
  return { node: wait.node, kind: "wait", ref: wait.ref, begin: now - wait.seconds, end: now, text };
}

const NOTHING: Totals = { objects: 0, bytes: 0, nodes: 0, dead: 0, transfers: 0, reduces: 0, waits: 0 };

export class Store {
  frame: Frame | null = null;
  nodes = new Map<string, NodeRow>();
  trees: Tree[] = [];
  pairs: Pair[] = [];
  waits: Wait[] = [];
  lags: Lag[] = [];
  totals: Totals = NOTHING;
  readonly events = new Ring<ClusterEvent>(EVENTS);
  readonly spans = new Ring<Span>(SPANS);
  /** Work that has begun and not ended, until now: transfers, folds and waits. */
  open: Span[] = [];
  /** Number of events that the node omitted because too many happened. */
  skipped = 0;
  frames = 0;

  private times = new Float64Array(HISTORY);
  private length = 0;
  private next = 0;
  private total: Rates = { in: new Float32Array(HISTORY), out: new Float32Array(HISTORY) };
  private each = new Map<string, Rates>();

  apply(frame: Frame): void {
    this.frame = frame;
    this.frames++;
    if (frame.full) this.nodes = new Map();
    for (const row of frame.nodes ?? []) this.nodes.set(row.id, row);
    this.trees = frame.trees ?? [];
    this.pairs = frame.pairs ?? [];
    this.waits = frame.waits ?? [];
    this.lags = frame.lags ?? [];
    this.totals = { ...NOTHING, ...frame.totals };
    this.skipped += frame.skipped ?? 0;
    this.merge(frame.events ?? []);
    this.open = [...(frame.open ?? []).map((row) => ({ ...row, end: frame.time })), ...this.waits.map((wait) => waiting(wait, frame.time))];
    for (const span of frame.spans ?? []) this.spans.push(span);
    this.record(frame);
  }

  /** Adds events in order of time, except those that are here. A node may report later what happened earlier. */
  merge(events: ClusterEvent[]): void {
    for (const event of events) if (!this.has(event)) this.events.insert(event, (one) => one.time);
  }

  /** Whether an event is here. */
  has(event: ClusterEvent): boolean {
    for (const other of this.events.newest()) {
      if (other.time < event.time) return false;
      if (same(other, event)) return true;
    }
    return false;
  }

  private record(frame: Frame): void {
    const at = this.next;
    this.next = (this.next + 1) % HISTORY;
    this.length = Math.min(HISTORY, this.length + 1);
    this.times[at] = frame.time;
    this.total.in[at] = frame.rates?.in ?? 0;
    this.total.out[at] = frame.rates?.out ?? 0;
    for (const id of this.each.keys()) if (!this.nodes.has(id)) this.each.delete(id);
    for (const [id, row] of this.nodes) {
      let rates = this.each.get(id);
      if (!rates) {
        if (this.each.size >= CHARTED) continue;
        rates = { in: new Float32Array(HISTORY), out: new Float32Array(HISTORY) };
        this.each.set(id, rates);
      }
      rates.in[at] = row.in ?? 0;
      rates.out[at] = row.out ?? 0;
    }
  }

  /** Times and rates, oldest first, of one node or of the cluster. */
  history(id: string | null): [number[], number[], number[]] {
    const rates = (id && this.each.get(id)) || this.total;
    const result: [number[], number[], number[]] = [[], [], []];
    for (let index = 0; index < this.length; index++) {
      const at = (this.next - this.length + index + HISTORY) % HISTORY;
      result[0].push(this.times[at]);
      result[1].push(rates.in[at]);
      result[2].push(rates.out[at]);
    }
    return result;
  }

  name(id: string | null | undefined): string {
    if (!id) return "–";
    return this.nodes.get(id)?.name || id.slice(0, 8);
  }

  /** Racks in order of their names, each with its nodes in order of theirs. */
  racks(): [string, NodeRow[]][] {
    const groups = new Map<string, NodeRow[]>();
    for (const row of this.nodes.values()) {
      const rack = row.rack || "no rack";
      const group = groups.get(rack);
      if (group) group.push(row);
      else groups.set(rack, [row]);
    }
    const order = new Intl.Collator("en", { numeric: true }).compare;
    for (const group of groups.values()) group.sort((one, other) => order(one.name, other.name));
    return [...groups].sort((one, other) => order(one[0], other[0]));
  }

  /** Sizes of everything that could grow, for the test of memory. */
  sizes(): Record<string, number> {
    return {
      frames: this.frames,
      nodes: this.nodes.size,
      events: this.events.size,
      spans: this.spans.size,
      open: this.open.length,
      history: this.length,
      charted: this.each.size,
    };
  }
}
