/**
 * Is what is shipped what the sources give? Builds into a temporary folder and compares file by file.
 *
 * Says in one sentence what differs; `make web` puts it right. Run by `make web-check`.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "vite";

const shipped = fileURLToPath(new URL("../src/clearhead/explorer/built", import.meta.url));

/** Every file under a folder with the hash of its content. */
function hashes(folder, prefix = "") {
  if (!existsSync(folder)) return new Map();
  return new Map(
    readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
      const path = join(folder, entry.name);
      const name = prefix + entry.name;
      if (entry.isDirectory()) return [...hashes(path, `${name}/`)];
      return [[name, createHash("sha256").update(readFileSync(path)).digest("hex")]];
    }),
  );
}

const folder = mkdtempSync(join(tmpdir(), "clearhead-web-"));
try {
  await build({ logLevel: "warn", build: { outDir: folder, emptyOutDir: true } });
  const [made, there] = [hashes(folder), hashes(shipped)];
  const differing = [...new Set([...made.keys(), ...there.keys()])]
    .filter((name) => made.get(name) !== there.get(name))
    .sort();
  if (differing.length) {
    console.error(
      `The shipped page is not what web/ gives: ${differing.join(", ")} ${differing.length > 1 ? "differ" : "differs"}; run 'make web'.`,
    );
    process.exitCode = 1;
  } else console.log(`The shipped page is what web/ gives (${made.size} files).`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
