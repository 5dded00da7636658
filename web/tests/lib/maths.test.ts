import { describe, expect, it } from "vitest";
import { scripts } from "../../src/lib/maths";

const flat = (text: string): string =>
  scripts(text)
    .map(({ text: part, place }) => (place === "sub" ? `↓${part}|` : place === "sup" ? `↑${part}|` : part))
    .join("");

describe("scripts", () => {
  it.each([
    ["W_Q X", "W↓Q| X"],
    ["softmax(QKᵀ/√d_k) V", "softmax(QKᵀ/√d↓k|) V"],
    ["sin(pos/10000^(2i/d))", "sin(pos/10000↑2i/d|)"],
    ["2^−8", "2↑−8|"],
    ["alpha_2_2", "α↓2\u20092|"],
    ["Σ_{s ∈ class} A", "Σ↓s ∈ class| A"],
    ["plain", "plain"],
    ["", ""],
  ])("%s", (text, set) => {
    expect(flat(text)).toBe(set);
  });

  it("loses nothing but the marks", () => {
    const text = "PE(pos, 2i) = sin(pos / 10000^(2i/d)), W_O";
    const kept = scripts(text).map((part) => part.text).join(""); // prettier-ignore
    expect(kept).toBe(text.replace("^(2i/d)", "2i/d").replace("_", ""));
  });
});
