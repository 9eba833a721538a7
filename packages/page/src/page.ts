// Starts the page: connects the stream, the store, the views and the header.
import { set, write } from "./dom";
import * as format from "./format";
import type { ClusterEvent } from "./frame";
import { Store } from "./store";
import { type Link, Stream } from "./stream";
import { startTheme } from "./theme";
import { type View, tabs } from "./view";
import { ClusterView } from "./views/cluster";
import { EventsView } from "./views/events";
import { ObjectsView } from "./views/objects";
import { TimelineView } from "./views/timeline";
import { TreesView } from "./views/trees";
import { WaitsView } from "./views/waits";

const store = new Store();
const views: Record<string, View> = {
  cluster: new ClusterView(),
  transfers: new TreesView(),
  waits: new WaitsView(),
  objects: new ObjectsView(),
  events: new EventsView(),
  timeline: new TimelineView(),
};
const by = (id: string) => document.getElementById(id)!;
let visible = "cluster";
let drawn = false;

/** Draws at most once per frame of the screen, and not while the page is hidden. */
function redraw(): void {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    if (!store.frame) return;
    header();
    views[visible].update(store);
  });
}

function header(): void {
  const { frame, totals } = store;
  write(by("cluster-name"), frame!.cluster);
  document.title = `${frame!.cluster} – Hoplite`;
  const dead = totals.dead ? `, ✕ ${totals.dead} dead` : "";
  write(by("totals"), [
    format.plural(totals.nodes, "node") + dead,
    `${format.plural(totals.objects, "object")}, ${format.bytes(totals.bytes)}`,
    `↓ ${format.rate(frame!.rates?.in ?? 0)}`,
    format.plural(totals.waits, "wait"),
  ].join(" · "));
}

const WORDS = { connecting: "Connecting", live: "Live", stale: "No data", closed: "Disconnected" };

/** The visible text counts seconds; the announced text changes only with the state. */
function link({ state, seconds }: Link): void {
  const since = state === "live" ? "" : ` since ${Math.round(seconds)} s`;
  set(by("link"), "class", state);
  write(by("link-text"), state === "stale" || state === "connecting" ? `No data${since}` : WORDS[state] + (state === "closed" ? `, no data${since}` : ""));
  write(by("announce"), state === "live" ? "Live" : WORDS[state]);
  document.body.classList.toggle("old", state === "stale" || state === "closed");
}

for (const [name, view] of Object.entries(views)) by(`view-${name}`).append(view.element);
startTheme(by("theme") as HTMLButtonElement, () => {
  for (const view of Object.values(views)) view.restyle?.();
});
const select = tabs(by("tabs"), Object.keys(views), (name) => {
  visible = name;
  views[name].enter?.();
  redraw();
});
const wanted = location.hash.slice(1);
select(wanted in views ? wanted : "cluster");
addEventListener("visibilitychange", redraw);
async function loadMissed(): Promise<void> {
  const reply = await fetch("/api/events?limit=1000").catch(() => null);
  if (reply?.ok) store.merge(((await reply.json()) as { events: ClusterEvent[] }).events.reverse());
  redraw();
}

new Stream((frame) => {
  store.apply(frame);
  redraw();
}, link, () => void loadMissed());
// For tests and for reports of bugs: sizes of everything that the page holds.
Object.assign(window, { hopliteSizes: () => ({ ...store.sizes(), elements: document.querySelectorAll("*").length }) });
