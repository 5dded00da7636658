/** The three kinds of attention a model may have: their names, who looks at whom, and a sentence on each. */

export interface KindText {
  label: string;
  short: string;
  asks: string;
  answers: string;
  sentence: string;
}

const KINDS: Record<string, KindText> = {
  "encoder.self": {
    label: "Encoder self-attention",
    short: "Encoder self",
    asks: "source token that attends",
    answers: "source token looked at",
    sentence: "Each source token looks at all source tokens, before and after it.",
  },
  "decoder.self": {
    label: "Decoder self-attention",
    short: "Decoder self",
    asks: "token just read",
    answers: "earlier token looked at",
    sentence:
      "Each token looks at itself and at the tokens before it; later tokens are masked and get weight 0.",
  },
  "decoder.cross": {
    label: "Cross-attention",
    short: "Cross",
    asks: "target token just read",
    answers: "source token looked at",
    sentence:
      "After reading a target token, the decoder looks at the encoder’s output to choose the next one: this is where the translation meets the source.",
  },
};

/** The decoder's self-attention in a model that has no causal mask. */
const UNMASKED: KindText = {
  ...KINDS["decoder.self"]!,
  answers: "token looked at",
  sentence: "This model has no causal mask: each token looks at all tokens, before and after it.",
};

export function kindText(kind: string, masked = true): KindText {
  if (kind === "decoder.self" && !masked) return UNMASKED;
  return KINDS[kind] ?? { label: kind, short: kind, asks: "query", answers: "key", sentence: "" };
}

/** The kind asked for if the model has it; else cross-attention, the most telling one; else the first. */
export function chosenKind(kinds: string[], asked: string | undefined): string | undefined {
  if (asked !== undefined && kinds.includes(asked)) return asked;
  return kinds.includes("decoder.cross") ? "decoder.cross" : kinds[0];
}
