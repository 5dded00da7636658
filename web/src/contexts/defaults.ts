/**
 * Which word to look at in which sentences, before anyone has said so.
 * A word of the model's own example sentences is the best default, as the model knows it; the
 * lectures' "apple" serves a model that gives none.
 */

export interface Wish {
  word: string;
  sentences: string[];
}

export const FEWEST = 2;
export const MOST = 12;

/** "It" stands for things of two genders in French and of three in German: a translator must tell them apart. */
const IT: Wish = {
  word: "it",
  sentences: [
    "The cat is sleeping because it is tired.",
    "I am not buying the book because it is too expensive.",
    "He is not drinking the tea because it is too cold.",
    "I am not buying the car because it is too expensive.",
    "She is not opening the window because it is too heavy.",
    "He is not wearing the jacket because it is too old.",
  ],
};

const APPLE: Wish = {
  word: "apple",
  sentences: [
    "my favourite fruit is the apple",
    "she ate a green apple for lunch",
    "the apple fell from the tree",
    "the new phone was made by apple",
    "apple is a brand of computers",
    "shares of apple rose today",
  ],
};

/** The words of a sentence, in small letters. */
export function wordsOf(sentence: string): string[] {
  return sentence.toLowerCase().match(/[\p{L}\p{M}\p{N}'’]+/gu) ?? [];
}

/** The longest word that stands in most of the examples (twice at least), with the sentences it stands in. */
export function fromExamples(examples: string[]): Wish | null {
  const found = new Map<string, Set<string>>();
  for (const sentence of examples) {
    for (const word of wordsOf(sentence)) {
      if ([...word].length < 3) continue; // "a", "is": too common to tell anything
      found.set(word, (found.get(word) ?? new Set()).add(sentence));
    }
  }
  let best: Wish | null = null;
  let bestWorth = 0;
  for (const [word, sentences] of found) {
    // many sentences count, but "the" stands in all of them: a long word is worth more
    const worth = Math.min(sentences.size, 5) * Math.min([...word].length, 8);
    if (sentences.size >= FEWEST && worth > bestWorth) {
      best = { word, sentences: [...sentences].slice(0, MOST) };
      bestWorth = worth;
    }
  }
  return best;
}

export function defaults(examples: string[]): Wish {
  const its = examples.filter((sentence) => wordsOf(sentence).includes(IT.word));
  if (its.length >= FEWEST) return IT;
  return fromExamples(examples) ?? APPLE;
}

/** Sentences as the address keeps them: one in each line. */
export function joined(sentences: string[]): string {
  return sentences.map((sentence) => sentence.replaceAll(/\s+/g, " ").trim()).join("\n");
}

export function split(text: string): string[] {
  return text
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter((line) => line !== "")
    .slice(0, MOST);
}

/** What keeps a choice from being asked, as a sentence; null when nothing does. */
export function problem({ word, sentences }: Wish): string | null {
  if (word.trim() === "") return "Type the word to look at.";
  if (sentences.length < FEWEST) {
    return `Write at least ${FEWEST} sentences that contain “${word}”, one per line.`;
  }
  const without = sentences.find((one) => !one.toLowerCase().includes(word.trim().toLowerCase()));
  if (without !== undefined)
    return `“${word}” does not occur in “${without}”: change the sentence or the word.`;
  return null;
}
