// Types of what the node sends: frames of /api/stream, and the replies of the other paths of /api. A node of another
// version can omit a field or a list, so readers use defaults.

export interface NodeRow {
  id: string;
  name: string;
  rack: string | null;
  state: "alive" | "suspected" | "dead" | "left" | "silent";
  used: number;
  capacity: number;
  spilled: number;
  objects: number;
  in: number;
  out: number;
  rtt_us: number | null;
}

export interface Edge {
  from: string;
  to: string;
  /** Share that has arrived, 0 to 1. */
  done: number;
  /** Bytes per second. */
  rate: number;
  choice?: string | null;
  reason?: string | null;
}

export interface Tree {
  ref: string;
  kind: "broadcast" | "reduce" | "ring";
  bytes: number;
  epoch?: number | null;
  root?: string | null;
  degree?: string | null;
  reason?: string | null;
  since: number;
  edges: Edge[];
  omitted?: number;
}

export interface Pair {
  from: string;
  to: string;
  rate: number;
  transfers: number;
}

export interface Wait {
  node: string;
  process: number | null;
  verb: string;
  ref: string;
  seconds: number;
  on: string | null;
  reason: string;
}

export interface Lag {
  prefix: string;
  newest: number;
  node: string;
  process: number | null;
  version: number;
  lag: number;
  seconds: number;
}

export interface ClusterEvent {
  time: number;
  node: string;
  kind: string;
  text: string;
  ref?: string | null;
  /** The number of the event at its node. */
  serial?: number | null;
}

/** Work that has begun and not ended. */
export interface Open {
  node: string;
  kind: string;
  ref: string | null;
  begin: number;
  text: string;
}

export interface Span {
  node: string;
  kind: string;
  ref: string | null;
  begin: number;
  end: number;
  text: string;
}

export interface Totals {
  objects: number;
  bytes: number;
  nodes: number;
  dead: number;
  transfers: number;
  reduces: number;
  waits: number;
}

export interface Frame {
  time: number;
  number: number;
  interval: number;
  cluster: string;
  node: string;
  full: boolean;
  nodes?: NodeRow[];
  trees?: Tree[];
  pairs?: Pair[];
  waits?: Wait[];
  lags?: Lag[];
  events?: ClusterEvent[];
  skipped?: number;
  spans?: Span[];
  open?: Open[];
  rates?: { in: number; out: number };
  totals?: Totals;
}

/** A row of the directory. */
export interface ObjectRow {
  ref: string;
  bytes: number;
  what?: string;
  form?: string;
  job?: string | null;
  ttl?: number | null;
  owner?: string;
  age: number;
  copies: number;
  partial: number;
}

export interface ObjectPage {
  rows: ObjectRow[];
  more: boolean;
  total: number | null;
}

export interface ObjectDetail {
  row: ObjectRow | null;
  locations: { node: string; complete: boolean }[];
  story: { time: number; node: string; text: string }[];
}
