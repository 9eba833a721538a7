// Light and dark: follows the system until the button selects one, which the browser remembers.

const KEY = "hoplite-theme";
const ORDER = ["auto", "light", "dark"] as const;
type Theme = (typeof ORDER)[number];

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY) as Theme;
    return ORDER.includes(value) ? value : "auto";
  } catch {
    return "auto";
  }
}

export function startTheme(button: HTMLButtonElement, changed: () => void): void {
  let theme = stored();
  const system = matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    const dark = theme === "dark" || (theme === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = `Theme: ${theme}`;
    changed();
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    show();
  });
  system.addEventListener("change", show);
  show();
}

/** The current value of a color of page.css, for canvases. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
