// ESLint: its own, typescript-eslint's and Svelte's rules, with types.
import js from "@eslint/js";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";
import svelteConfig from "./svelte.config.js";

export default ts.config(
  { ignores: ["node_modules/", "dist/"] },
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  { languageOptions: { globals: { ...globals.browser, ...globals.node } } },
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: { parserOptions: { parser: ts.parser, extraFileExtensions: [".svelte"], svelteConfig } },
  },
  {
    rules: {
      // TypeScript sees undefined names itself
      "no-undef": "off",
      // addresses are ours (lib/address.ts), not SvelteKit's
      "svelte/no-navigation-without-resolve": "off",
      // a `!` after an index that was just checked is clearer than a branch that cannot happen
      "@typescript-eslint/no-non-null-assertion": "off",
    },
  },
);
