// Bundles src/ into python/hoplite/tools/http/page, with a hash of all inputs in the first line of each file.
// tests/test_page_bundle.py computes the same hash: it fails if a source changed without `make page`.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "../../python/hoplite/tools/http/page");

function files(folder) {
  return readdirSync(join(here, folder), { withFileTypes: true }).flatMap((entry) =>
    entry.isDirectory() ? files(`${folder}/${entry.name}`) : [`${folder}/${entry.name}`],
  );
}

const inputs = ["build.mjs", "package-lock.json", ...files("src")].sort();
const hash = createHash("sha256");
for (const name of inputs) hash.update(`${name}\n`).update(readFileSync(join(here, name)));
const mark = `sources ${hash.digest("hex").slice(0, 32)}`;

const notices = ["d3-hierarchy", "uplot"]
  .map((name) => `${name}:\n${readFileSync(join(here, "node_modules", name, "LICENSE"), "utf8").trim()}`)
  .join("\n\n");

mkdirSync(out, { recursive: true });
await esbuild.build({
  entryPoints: [join(here, "src/page.ts"), join(here, "src/page.css")],
  outdir: out,
  bundle: true,
  minify: true,
  target: "es2022",
  format: "iife",
  legalComments: "none",
  banner: { js: `/* ${mark}\n\n${notices}\n*/`, css: `/* ${mark} */` },
});
for (const name of ["index.html", "login.html"]) {
  const text = readFileSync(join(here, "src", name), "utf8");
  writeFileSync(join(out, name), text.replace("<!doctype html>", `<!doctype html>\n<!-- ${mark} -->`));
}
copyFileSync(join(here, "src/icon.svg"), join(out, "icon.svg"));
