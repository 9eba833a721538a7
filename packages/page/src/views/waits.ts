// Who waits for whom and why, and how far readers lag behind the newest version of a prefix.
import { h, rows, table } from "../dom";
import * as format from "../format";
import type { Store } from "../store";
import type { View } from "../view";

function process(pid: number | null | undefined): string {
  return pid == null ? "" : ` (process ${pid})`;
}

export class WaitsView implements View {
  readonly element: HTMLElement;
  private readonly waits = table("Requests that wait, longest first", ["Who", "Verb", "Object", "Time", "On", "Why"]);
  private readonly lags = table("Newest version that each process has read, the most behind first", ["Prefix", "Reader", "Has read", "Newest", "Behind", "Since"]);
  private readonly noWaits = h("p", { class: "muted" }, "No request waits.");
  private readonly noLags = h("p", { class: "muted" }, "No process has read a version of a prefix.");

  constructor() {
    this.element = h(
      "div",
      { class: "stack" },
      h("section", { class: "card" }, h("h2", {}, "Waits"), this.noWaits, this.waits.element),
      h("section", { class: "card" }, h("h2", {}, "Version lag"), this.noLags, this.lags.element),
    );
  }

  update(store: Store): void {
    this.noWaits.hidden = store.waits.length > 0;
    this.waits.element.hidden = store.waits.length === 0;
    this.noLags.hidden = store.lags.length > 0;
    this.lags.element.hidden = store.lags.length === 0;
    rows(
      this.waits.body,
      store.waits,
      (wait) => `${wait.node} ${wait.process} ${wait.verb} ${wait.ref}`,
      (wait) => [
        store.name(wait.node) + process(wait.process),
        wait.verb,
        wait.ref,
        format.duration(wait.seconds),
        store.name(wait.on),
        wait.reason ?? "",
      ],
    );
    const most = Math.max(1, ...store.lags.map((lag) => lag.lag));
    rows(
      this.lags.body,
      store.lags,
      (lag) => `${lag.prefix} ${lag.node} ${lag.process}`,
      (lag) => [
        lag.prefix,
        store.name(lag.node) + process(lag.process),
        String(lag.version),
        String(lag.newest),
        { text: format.plural(lag.lag, "version"), share: lag.lag / most },
        format.duration(lag.seconds),
      ],
    );
  }
}
