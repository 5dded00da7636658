/** Plain-text formulas cut into what stands on the line, below it and above it. */

export interface Script {
  text: string;
  place: "line" | "sub" | "sup";
}

const GREEK: Record<string, string> = { alpha: "α", beta: "β", gamma: "γ", theta: "θ", sigma: "σ" };
const MARK = /_\{([^}]*)\}|_([\p{L}\p{N}]+(?:_[\p{L}\p{N}]+)*)|\^\(([^)]*)\)|\^([−-]?[\p{L}\p{N}]+)/gu;

/** "W_Q X" → W, Q (below), " X"; "10^(2i/d)" → 10, 2i/d (above); "alpha_2_2" → α, 2 2 (below). */
export function scripts(text: string): Script[] {
  const out: Script[] = [];
  const line = (part: string): void => {
    if (part !== "")
      out.push({ text: part.replace(/\b[a-z]+\b/g, (word) => GREEK[word] ?? word), place: "line" });
  };
  let from = 0;
  for (const found of text.matchAll(MARK)) {
    line(text.slice(from, found.index));
    const [whole, braced, below, bracketed, above] = found;
    const isBelow = braced !== undefined || below !== undefined;
    const script = braced ?? below?.replaceAll("_", "\u2009") ?? bracketed ?? above ?? "";
    out.push({ text: script, place: isBelow ? "sub" : "sup" });
    from = found.index + whole.length;
  }
  line(text.slice(from));
  return out;
}
