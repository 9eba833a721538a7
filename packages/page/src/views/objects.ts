// The objects of the cluster, one page at a time, and the locations and story of one of them.
import { h, keyed, rows, set, table, write } from "../dom";
import * as format from "../format";
import type { ObjectDetail, ObjectPage, ObjectRow } from "../frame";
import type { Store } from "../store";
import { type View, roving } from "../view";

const PAGE = 100;
const COLUMNS: [string, string | null][] = [
  ["Ref", "ref"],
  ["Size", "bytes"],
  ["Age", "age"],
  ["Copies", "copies"],
  ["Arriving", null],
  ["Contents", null],
  ["Job", null],
];

export class ObjectsView implements View {
  readonly element: HTMLElement;
  private readonly prefix = h("input", { type: "search", id: "prefix", autocomplete: "off", spellcheck: "false" });
  private readonly status = h("p", { class: "muted", role: "status" });
  private readonly grid = table("Objects", COLUMNS.map(([name]) => name));
  private readonly back = h("button", { type: "button" }, "Previous page");
  private readonly forward = h("button", { type: "button" }, "Next page");
  private readonly reload = h("button", { type: "button" }, "Refresh");
  private readonly title = h("h2", { tabindex: -1 }, "Object");
  private readonly detail = h("div");
  private sort = "ref";
  /** The `after` of each page up to the current one. */
  private path: string[] = [""];
  private page: ObjectPage = { rows: [], more: false, total: null };
  private request = 0;
  private store: Store | null = null;
  private readonly keepStop = roving(this.grid.body, () => [...this.grid.body.rows]);

  constructor() {
    const heads = this.grid.element.querySelectorAll("th");
    COLUMNS.forEach(([name, sort], index) => {
      if (!sort) return;
      const button = h("button", { type: "button", class: "sort", "data-sort": sort }, name);
      button.addEventListener("click", () => this.open(sort));
      heads[index].replaceChildren(button);
    });
    let timer = 0;
    this.prefix.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => this.open(this.sort), 250);
    });
    this.back.addEventListener("click", () => {
      this.path.pop();
      void this.load();
    });
    this.forward.addEventListener("click", () => {
      this.path.push(this.page.rows[this.page.rows.length - 1].ref);
      void this.load();
    });
    this.reload.addEventListener("click", () => void this.load());
    const pick = (event: Event) => {
      const row = (event.target as Element).closest<HTMLElement>("tbody tr");
      if (row) void this.show(row.dataset.key!);
    };
    this.grid.body.addEventListener("click", pick);
    this.grid.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter") pick(event);
    });
    this.detail.append(h("p", { class: "muted" }, "Select an object to see where it is and what happened to it."));
    const controls = h(
      "div",
      { class: "controls" },
      h("label", { for: "prefix" }, "Prefix "),
      this.prefix,
      this.reload,
      this.back,
      this.forward,
      this.status,
    );
    this.element = h(
      "div",
      { class: "columns" },
      h("section", { class: "card wide" }, h("h2", {}, "Objects"), controls, this.grid.element),
      h("section", { class: "card" }, this.title, this.detail),
    );
  }

  update(store: Store): void {
    this.store = store;
  }

  enter(): void {
    if (!this.page.rows.length) void this.load();
  }

  private open(sort: string): void {
    this.sort = sort;
    this.path = [""];
    void this.load();
  }

  private async load(): Promise<void> {
    const request = ++this.request;
    const query = new URLSearchParams({ prefix: this.prefix.value, sort: this.sort, limit: String(PAGE) });
    const after = this.path[this.path.length - 1];
    if (after) query.set("after", after);
    try {
      const page = await load<ObjectPage>(`/api/objects?${query}`);
      if (request !== this.request) return;
      this.page = page;
      this.fill();
    } catch (error) {
      if (request === this.request) write(this.status, `Cannot list objects: ${(error as Error).message}`);
    }
  }

  private fill(): void {
    const { rows: objects, more, total } = this.page;
    const first = (this.path.length - 1) * PAGE;
    const range = objects.length ? `${format.count(first + 1)} to ${format.count(first + objects.length)}` : "No objects";
    write(this.status, total == null || !objects.length ? range : `${range} of ${format.count(total)}`);
    this.back.disabled = this.path.length < 2;
    this.forward.disabled = !more;
    for (const button of this.grid.element.querySelectorAll<HTMLElement>(".sort")) {
      const on = button.dataset.sort === this.sort;
      set(button.parentElement!, "aria-sort", on ? (this.sort === "ref" ? "ascending" : "descending") : null);
    }
    rows(
      this.grid.body,
      objects,
      (row) => row.ref,
      (row) => [
        row.ref,
        format.bytes(row.bytes),
        format.duration(row.age),
        String(row.copies),
        row.partial ? String(row.partial) : "",
        row.what ?? row.form ?? "",
        row.job ?? "",
      ],
    );
    for (const row of this.grid.body.rows) if (!row.hasAttribute("tabindex")) set(row, "tabindex", -1);
    this.keepStop();
    this.grid.element.scrollTop = 0;
  }

  private async show(ref: string): Promise<void> {
    const request = ++this.request;
    for (const row of this.grid.body.rows) set(row, "aria-current", row.dataset.key === ref ? "true" : null);
    write(this.title, ref);
    try {
      const found = await load<ObjectDetail>(`/api/object?${new URLSearchParams({ ref })}`);
      if (request === this.request) this.describe(found);
    } catch (error) {
      this.detail.replaceChildren(h("p", {}, `Cannot show ${ref}: ${(error as Error).message}`));
    }
  }

  private describe({ row, locations, story }: ObjectDetail): void {
    const name = (id: string) => this.store?.name(id) ?? id.slice(0, 8);
    const steps = h("ol", { class: "story" });
    keyed(
      steps,
      story.map((step, index) => ({ ...step, index })),
      (step) => String(step.index),
      (step) => h("li", {}, h("time", {}, format.clock(step.time)), ` ${name(step.node)}: ${step.text}`),
      () => undefined,
    );
    this.detail.replaceChildren(
      facts(row, name),
      h("h3", {}, `Locations (${locations.length})`),
      h("ul", { class: "places" }, ...locations.map((place) => h("li", {}, `${place.complete ? "●" : "◐"} ${name(place.node)}${place.complete ? "" : " (partial)"}`))),
      h("h3", {}, "Story"),
      story.length ? steps : h("p", { class: "muted" }, "No recorded events."),
    );
  }
}

function facts(row: ObjectRow | null, name: (id: string) => string): HTMLElement {
  if (!row) return h("p", { class: "muted" }, "Not in the directory: deleted, or not created yet.");
  const pairs: [string, string][] = [
    ["Size", `${format.bytes(row.bytes)} (${format.count(row.bytes)} B)`],
    ["Contents", row.what ?? row.form ?? ""],
    ["Age", format.duration(row.age)],
    ["Deleted in", row.ttl == null ? "no time limit" : format.duration(row.ttl)],
    ["Owner", row.owner ? name(row.owner) : ""],
  ];
  return h("dl", { class: "facts" }, ...pairs.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, value))));
}

async function load<T>(path: string): Promise<T> {
  const reply = await fetch(path);
  if (reply.status === 401) location.reload();
  if (!reply.ok) {
    const problem = (await reply.json().catch(() => null)) as { error?: string } | null;
    throw new Error(problem?.error ?? `status ${reply.status}`);
  }
  return (await reply.json()) as T;
}
