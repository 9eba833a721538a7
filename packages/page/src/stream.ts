// The connection to /api/stream: reconnects with backoff, and reports how old the newest frame is.
import type { Frame } from "./frame";

export type Link = { state: "connecting" | "live" | "stale" | "closed"; seconds: number };

const RETRY_MAX = 15_000;

export class Stream {
  private source: EventSource | null = null;
  private retry = 1000;
  private opened = performance.now();
  private latest = 0;
  private interval = 1;
  private closed = false;

  constructor(
    private readonly take: (frame: Frame) => void,
    private readonly show: (link: Link) => void,
    private readonly again: () => void,
  ) {
    this.connect();
    setInterval(() => this.check(), 500);
    addEventListener("pagehide", () => this.source?.close());
  }

  private connect(): void {
    this.source?.close();
    this.closed = false;
    let isAgain = this.latest > 0;
    const source = new EventSource("/api/stream");
    this.source = source;
    source.onmessage = (message) => {
      if (source !== this.source) return;
      const isFirst = isAgain;
      isAgain = false;
      const frame = JSON.parse(message.data) as Frame;
      this.latest = performance.now();
      this.interval = frame.interval || 1;
      this.retry = 1000;
      this.take(frame);
      // What happened meanwhile is in no frame.
      if (isFirst) this.again();
      this.check();
    };
    source.onerror = () => {
      if (source === this.source) void this.lost();
    };
  }

  /** The browser retries some failures itself and gives up on others: close it and retry all of them here. */
  private async lost(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    this.source?.close();
    this.check();
    const delay = this.retry;
    this.retry = Math.min(RETRY_MAX, 2 * this.retry);
    // The stream does not report its status: find out whether the session ended.
    const reply = await fetch("/api/events?limit=1").catch(() => null);
    if (reply?.status === 401) location.reload();
    else setTimeout(() => this.connect(), delay);
  }

  private check(): void {
    const seconds = (performance.now() - (this.latest || this.opened)) / 1000;
    const late = seconds > Math.max(3, 3 * this.interval);
    const state = this.closed ? "closed" : late ? "stale" : this.latest ? "live" : "connecting";
    this.show({ state, seconds });
  }
}
