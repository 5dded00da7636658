/**
 * How the page is built (into the Python package, `make web`) and tested (Vitest).
 *
 * The build is deterministic: the same sources and the same lock file give the same bytes.
 */
import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { sourceList } from "./digest.ts";

const root = fileURLToPath(new URL(".", import.meta.url));

/** Writes sources.txt, and takes links to outside pages out of the code (they stand in Svelte's messages). */
function shipped(): Plugin {
  return {
    name: "clearhead-shipped",
    apply: "build",
    renderChunk: (code) => ({ code: code.replaceAll("https://svelte.dev/e/", "svelte: "), map: null }),
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "sources.txt", source: sourceList(root) });
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [svelte(), shipped()],
  build: {
    outDir: "../src/clearhead/explorer/built",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // icons stay files: the page's security policy then need not allow them inline
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rolldownOptions: { checks: { pluginTimings: false } },
  },
  // `npm run dev` beside a running `clearhead explore`
  server: { proxy: { "/api": "http://127.0.0.1:8765" } },
  // Vitest must load Svelte's browser half
  resolve: process.env["VITEST"] ? { conditions: ["browser"] } : {},
  test: { environment: "happy-dom", include: ["tests/**/*.test.ts"] },
});
