/**
 * Attention drawn as lines between two columns of words: which lines, and where they run.
 * A long text has hundreds of thousands of weights; only the heaviest are drawn, and it is said so.
 */

export interface Link {
  row: number;
  column: number;
  weight: number;
}

export interface Links {
  links: Link[];
  /** Weights above the threshold that are not drawn, because there are too many. */
  left: number;
}

export const MOST_LINES = 1500;
export const FAINT = 0.02;

/** The lines to draw: those of one picked row or column (all of them), or the heaviest of all. */
export function links(
  weights: Float32Array,
  rows: number,
  columns: number,
  picked: { row?: number | null; column?: number | null } = {},
  most = MOST_LINES,
): Links {
  const found: Link[] = [];
  const one = typeof picked.row === "number" || typeof picked.column === "number";
  const least = one ? 0.001 : FAINT;
  for (let row = 0; row < rows; row++) {
    if (typeof picked.row === "number" && row !== picked.row) continue;
    for (let column = 0; column < columns; column++) {
      if (typeof picked.column === "number" && column !== picked.column) continue;
      const weight = weights[row * columns + column] ?? 0;
      if (Math.abs(weight) >= least) found.push({ row, column, weight });
    }
  }
  found.sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight));
  const drawn = found.slice(0, most);
  drawn.reverse(); // the heaviest last, so that they lie on top
  return { links: drawn, left: found.length - drawn.length };
}

export interface Ladder {
  pitch: number;
  height: number;
  left: number;
  right: number;
  width: number;
}

/** Two columns of words, `pitch` apart; the side columns take what words need, the lines the middle. */
export function ladder(width: number, rows: number, columns: number): Ladder {
  const longest = Math.max(rows, columns);
  const pitch = longest > 60 ? 18 : 26;
  const side = Math.min(180, Math.max(84, width * 0.26));
  return { pitch, height: longest * pitch + 8, left: side, right: width - side, width };
}

/** The middle of the n-th word. */
export function rung(shape: Ladder, n: number): number {
  return 4 + shape.pitch * (n + 0.5);
}

/** A gentle S between two words. */
export function curve(shape: Ladder, link: Link): string {
  const [y1, y2] = [rung(shape, link.row), rung(shape, link.column)];
  const middle = (shape.left + shape.right) / 2;
  return `M${shape.left},${y1}C${middle},${y1} ${middle},${y2} ${shape.right},${y2}`;
}
