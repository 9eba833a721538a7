// Creates elements, and updates them in place: text changes only where it differs, so that focus, selection and
// scroll position survive each frame.

type Attributes = Record<string, string | number | boolean | null | undefined>;
export type Child = Node | string | null | undefined;

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  for (const child of children) if (child != null) element.append(child);
}

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

export function set(element: Element, name: string, value: string | number | boolean | null | undefined): void {
  if (value == null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

export function write(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Makes the children of `parent` those of `items`, in order; elements with the same key are kept and updated. */
export function keyed<T>(
  parent: Element,
  items: T[],
  key: (item: T) => string,
  create: (item: T) => HTMLElement,
  update: (element: HTMLElement, item: T) => void,
): void {
  const known = new Map<string, HTMLElement>();
  for (const child of [...parent.children] as HTMLElement[]) {
    // Two items can have the same key; without this, their elements would add up.
    known.get(child.dataset.key!)?.remove();
    known.set(child.dataset.key!, child);
  }
  let place: Element | null = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (element) {
      known.delete(name);
    } else {
      element = create(item);
      element.dataset.key = name;
    }
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of known.values()) element.remove();
}

/** A bar whose filled part is `share` of it, with a text that states the same. */
export function bar(name: string): { element: HTMLElement; show: (share: number, extra?: number) => void } {
  const filled = h("span", { class: "filled" });
  const hatched = h("span", { class: "hatched" });
  const element = h("span", { class: `bar ${name}`, "aria-hidden": "true" }, filled, hatched);
  return {
    element,
    show(share, extra = 0) {
      filled.style.width = `${Math.min(100, 100 * share)}%`;
      hatched.style.width = `${Math.min(100, 100 * extra)}%`;
      element.classList.toggle("full", share > 0.9);
    },
  };
}

/** Rows of text cells in a table; the first cell of each row is its header. */
export function rows<T>(
  body: HTMLTableSectionElement,
  items: T[],
  key: (item: T) => string,
  cells: (item: T) => (string | { text: string; share: number })[],
): void {
  keyed(
    body,
    items,
    key,
    (item) => {
      const row = h("tr");
      cells(item).forEach((cell, index) => {
        const box = index === 0 ? h("th", { scope: "row" }) : h("td");
        if (typeof cell !== "string") box.append(h("span", { class: "bar" }, h("span", { class: "filled" })), h("span"));
        row.append(box);
      });
      return row;
    },
    (row, item) => {
      cells(item).forEach((cell, index) => {
        const box = row.children[index];
        if (typeof cell === "string") return write(box, cell);
        const filled = box.firstElementChild?.firstElementChild as HTMLElement;
        filled.style.width = percentWidth(cell.share);
        write(box.lastElementChild!, cell.text);
      });
    },
  );
}

function percentWidth(share: number): string {
  return `${Math.round(1000 * Math.min(1, Math.max(0, share))) / 10}%`;
}

/** A table with a caption and the given columns; those that start with ">" are right-aligned numbers. */
export function table(caption: string, columns: string[]): { element: HTMLElement; body: HTMLTableSectionElement } {
  const body = h("tbody");
  const head = h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)));
  const element = h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), body),
  );
  return { element, body };
}
