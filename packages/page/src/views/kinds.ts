// How each kind of activity looks: a color of the palette, a pattern and a letter, so that color alone never carries meaning.
import { h } from "../dom";
import { color } from "../theme";

type Pattern = "solid" | "diagonal" | "back" | "dots" | "lines" | "cross";

export const KINDS: Record<string, { letter: string; color: string; pattern: Pattern }> = {
  receive: { letter: "R", color: "blue", pattern: "solid" },
  send: { letter: "S", color: "orange", pattern: "diagonal" },
  fold: { letter: "F", color: "green", pattern: "dots" },
  reduce: { letter: "Σ", color: "purple", pattern: "cross" },
  wait: { letter: "W", color: "muted", pattern: "lines" },
  spill: { letter: "D", color: "red", pattern: "back" },
};

export type Patterns = Record<string, CanvasPattern | string>;

const SIZE = 8;

function tile(kind: string): HTMLCanvasElement {
  const canvas = h("canvas", { width: SIZE, height: SIZE });
  const context = canvas.getContext("2d")!;
  const { color: name, pattern } = KINDS[kind];
  context.fillStyle = color(name);
  context.strokeStyle = color(name);
  if (pattern === "solid") {
    context.fillRect(0, 0, SIZE, SIZE);
    return canvas;
  }
  context.globalAlpha = 0.3;
  context.fillRect(0, 0, SIZE, SIZE);
  context.globalAlpha = 1;
  context.lineWidth = 2;
  context.beginPath();
  const diagonal = (up: boolean) => {
    for (const shift of [-SIZE, 0, SIZE]) {
      context.moveTo(shift, up ? SIZE : 0);
      context.lineTo(shift + SIZE, up ? 0 : SIZE);
    }
  };
  if (pattern === "diagonal" || pattern === "cross") diagonal(true);
  if (pattern === "back" || pattern === "cross") diagonal(false);
  if (pattern === "lines") {
    context.moveTo(0, SIZE / 2);
    context.lineTo(SIZE, SIZE / 2);
  }
  if (pattern === "dots") context.arc(SIZE / 2, SIZE / 2, 1, 0, 2 * Math.PI);
  context.stroke();
  return canvas;
}

export function patterns(context: CanvasRenderingContext2D): Patterns {
  return Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, context.createPattern(tile(kind), "repeat")!]));
}

/** A sample for the legend. Its pattern is that of page.css, which needs no canvas. */
export function swatch(kind: string): HTMLElement {
  return h("span", { class: `swatch ${KINDS[kind].pattern} kind-${kind}`, "aria-hidden": "true" });
}
