// Received and sent bytes per second over the last ten minutes, of the cluster or of one node.
import uPlot from "uplot";
import { h, set, write } from "../dom";
import * as format from "../format";
import type { Store } from "../store";
import { color } from "../theme";

/** Distances of grid lines: they are round in binary units. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

export class Bandwidth {
  readonly element: HTMLElement;
  private readonly title = h("h3");
  private readonly box = h("div", { class: "chart", role: "img" });
  private readonly latest = h("p", { class: "legend" });
  private plot: uPlot | null = null;
  private data: [number[], number[], number[]] = [[], [], []];

  constructor() {
    this.element = h("section", { class: "card" }, this.title, this.box, this.latest);
    this.latest.append(
      h("span", {}, h("span", { class: "line in", "aria-hidden": "true" }), " received ", h("b")),
      h("span", {}, h("span", { class: "line out", "aria-hidden": "true" }), " sent ", h("b")),
    );
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  show(store: Store, node: string | null): void {
    this.data = store.history(node);
    const [, received, sent] = this.data;
    const last = received.length - 1;
    const name = node ? store.name(node) : "cluster";
    write(this.title, `Bandwidth of ${node ? name : "the cluster"}`);
    const numbers = this.latest.querySelectorAll("b");
    write(numbers[0], format.rate(received[last] ?? 0));
    write(numbers[1], format.rate(sent[last] ?? 0));
    set(this.box, "aria-label", `Bandwidth of ${name}: received ${numbers[0].textContent}, sent ${numbers[1].textContent}`);
    if (!this.plot) this.draw();
    else this.plot.setData(this.data);
  }

  private draw(): void {
    const width = this.box.clientWidth;
    if (width < 50) return;
    const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false } };
    this.plot = new uPlot(
      {
        width,
        height: 180,
        legend: { show: false },
        cursor: { drag: { setScale: false }, points: { show: false } },
        scales: { y: { range: (_plot, _low, high) => [0, Math.max(1024, 1.1 * (high ?? 0))] } },
        axes: [
          { ...axis, values: (_plot, ticks) => ticks.map(format.clock), space: 80, size: 30 },
          { ...axis, values: (_plot, ticks) => ticks.map((tick) => format.rate(tick)), incrs: POWERS, size: 86 },
        ],
        series: [
          {},
          { stroke: color("blue"), width: 2, fill: color("wash"), points: { show: false } },
          { stroke: color("orange"), width: 2, dash: [6, 4], points: { show: false } },
        ],
      },
      this.data,
      this.box,
    );
  }

  private resize(): void {
    const width = this.box.clientWidth;
    if (!this.plot) this.draw();
    else if (width >= 50 && width !== this.plot.width) this.plot.setSize({ width, height: 180 });
  }

  restyle(): void {
    this.plot?.destroy();
    this.plot = null;
    this.draw();
  }
}
