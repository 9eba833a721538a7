// A view of the page, and the tabs that select one. Only the visible view is updated.
import { set } from "./dom";
import type { Store } from "./store";

export interface View {
  readonly element: HTMLElement;
  /** Shows the store's state; called after each frame while the view is visible. */
  update(store: Store): void;
  /** Called when colors or the size of the window changed. */
  restyle?(): void;
  /** Called when the view becomes visible. */
  enter?(): void;
}

/** Connects tabs and panels by the pattern for tabs of ARIA: arrows move, and the location's hash names the view. */
export function tabs(list: HTMLElement, names: string[], selected: (name: string) => void): (name: string) => void {
  const buttons = names.map((name) => document.getElementById(`tab-${name}`) as HTMLButtonElement);
  const select = (name: string, focus = false) => {
    names.forEach((other, index) => {
      const on = other === name;
      set(buttons[index], "aria-selected", String(on));
      set(buttons[index], "tabindex", on ? 0 : -1);
      document.getElementById(`view-${other}`)!.hidden = !on;
      if (on && focus) buttons[index].focus();
    });
    if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
    selected(name);
  };
  buttons.forEach((button, index) => button.addEventListener("click", () => select(names[index])));
  list.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const moves: Record<string, number> = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 };
    if (at < 0 || !(event.key in moves)) return;
    event.preventDefault();
    select(names[(moves[event.key] + names.length) % names.length], true);
  });
  addEventListener("hashchange", () => {
    const name = location.hash.slice(1);
    if (names.includes(name)) select(name);
  });
  return select;
}

/** Moves focus among the items of a group by arrow keys, with one tab stop. Returns a function that keeps that stop. */
export function roving(group: Element, items: () => Element[], move?: (at: Element, key: string) => Element | null): () => void {
  const stop = (chosen: Element) => {
    for (const item of items()) set(item, "tabindex", item === chosen ? 0 : -1);
  };
  group.addEventListener("focusin", (event) => {
    const item = items().find((one) => one === event.target);
    if (item) stop(item);
  });
  group.addEventListener("keydown", (event) => {
    const { key } = event as KeyboardEvent;
    const all = items();
    const at = all.indexOf(document.activeElement!);
    if (at < 0) return;
    let next = move?.(all[at], key) ?? null;
    if (!next) {
      if (key === "ArrowRight" || key === "ArrowDown") next = all[at + 1] ?? null;
      else if (key === "ArrowLeft" || key === "ArrowUp") next = all[at - 1] ?? null;
      else if (key === "Home") next = all[0];
      else if (key === "End") next = all[all.length - 1];
      else return;
    }
    event.preventDefault();
    if (next) (next as HTMLElement).focus();
  });
  return () => {
    const all = items();
    if (all.length && !all.some((item) => item.getAttribute("tabindex") === "0")) stop(all[0]);
  };
}
