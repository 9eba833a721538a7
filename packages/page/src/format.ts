// Numbers in words: bytes, rates, durations, times of day.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count: number): string {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit++;
  }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(count >= 10 ? 1 : 2)} ${UNITS[unit]}`;
}

export function rate(bytesPerSecond: number): string {
  return bytesPerSecond > 0 ? `${bytes(bytesPerSecond)}/s` : "0";
}

export function duration(seconds: number): string {
  if (seconds < 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function percent(share: number): string {
  return `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
}

export function clock(time: number): string {
  const date = new Date(time * 1000);
  const two = (value: number) => String(value).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function count(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** A sign for each state of a node, so that it does not depend on color. */
export function sign(state: string): string {
  return { alive: "●", suspected: "▲", dead: "✕", left: "○" }[state] ?? "?";
}

export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
