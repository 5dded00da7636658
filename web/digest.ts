/**
 * Which sources a build was made of: one line `sha256  path` for each file that can change it.
 *
 * The list is written into the build (sources.txt), where tests/explorer/test_built.py recomputes it without
 * Node: a source that was changed without `make web` is named there. Knows nothing about Vite.
 */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const SINGLE = [
  "digest.ts",
  "index.html",
  "package-lock.json",
  "package.json",
  "svelte.config.js",
  "tsconfig.json",
  "vite.config.ts",
];

/** Every file under a folder, as paths with forward slashes below `prefix`. */
function below(folder: string, prefix: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = `${prefix}/${entry.name}`;
    return entry.isDirectory() ? below(join(folder, entry.name), path) : [path];
  });
}

/** The lines of sources.txt for the sources in `root`, ordered by path. */
export function sourceList(root: string): string {
  const paths = [...SINGLE, ...below(join(root, "src"), "src")];
  paths.sort((a, b) => (a < b ? -1 : 1));
  const lines = paths.map((path) => {
    const hash = createHash("sha256").update(readFileSync(join(root, path)));
    return `${hash.digest("hex")}  ${path}\n`;
  });
  return lines.join("");
}
