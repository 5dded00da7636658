/** What the attention view says about each of its four pages. */

export const PAGES = ["heads", "summary", "classes", "evidence"] as const;
export type Page = (typeof PAGES)[number];

export interface PageText {
  label: string;
  text: string;
  formula: string;
}

export const PAGE_TEXTS: Record<Page, PageText> = {
  heads: {
    label: "Heads",
    text:
      "Every head compares each token’s query with all keys and spreads a total weight of 1 over the tokens it may look " +
      "at. Each thumbnail is one head: a row for each token that looks, a column for each token looked at, " +
      "darker (in the dark theme, brighter) for more. Pick one to see its weights exactly.",
    formula: "A = softmax(QKᵀ / √d_k),  every row of A sums to 1",
  },
  summary: {
    label: "Summary",
    text:
      "Dozens of maps combined into one. The mean shows where heads look on average; the rollout follows attention through the " +
      "layers, residual connections included; the alignment shows which source words a translated word came from.",
    formula: "rollout = Â_L ⋯ Â₂ Â₁,  Â = ½ (mean over heads of A) + ½ I",
  },
  classes: {
    label: "By token class",
    text:
      "Much attention goes to tokens that carry little meaning. Each bar is one head, divided by what it looks at: special " +
      "tokens, punctuation, the token itself and its neighbours, and all other words.",
    formula: "mass(class) = mean over rows t of Σ_{s ∈ class} A[t, s]",
  },
  evidence: {
    label: "Is it an explanation?",
    text:
      "A large weight is not yet a reason. Next to a head’s weights are two measures of what the prediction really " +
      "depends on: how it changes with each token’s vector (gradient × input), and how it changes when the weight " +
      "on a token is removed. Where the orders disagree, the attention map does not explain the prediction.",
    formula: "attention A[t, s]   ·   |∂ log p ∕ ∂x_s · x_s|   ·   log p − log p without A[t, s]",
  },
};

/** Of all heads where some attention is cheaper than the exact one, and its weights are something else. */
export const CHEAPER: PageText = {
  label: PAGE_TEXTS.heads.label,
  text:
    "Each thumbnail is one head: a row for each token that looks, a column for each token looked at. The weights are " +
    "those with which the layer mixes its values; below stands what they are in this model. Pick one to see its " +
    "weights exactly.",
  formula: "head = A V",
};

/** Of the summary of a model without residual connections. */
export const ATTENTION_ALONE: PageText = {
  label: PAGE_TEXTS.summary.label,
  text: PAGE_TEXTS.summary.text.replace("layers, residual connections included;", "layers;"),
  formula: "rollout = A_L ⋯ A₂ A₁,  A = mean over heads",
};

export function chosenPage(asked: string | undefined): Page {
  return (PAGES as readonly string[]).includes(asked ?? "") ? (asked as Page) : "heads";
}
