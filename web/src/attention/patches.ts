/** Rows of a map of patches as squares over the picture. */
import type { PictureAnswer } from "../lib/api";
import { escapeXml } from "../lib/exports";

/**
 * What a row of weights (rows × columns) gives each patch, row by row of the picture. Without a row, that of the tokens
 * that the class is read off: the class token, the last patch, or all of them on average.
 */
export function onPatches(
  weights: Float32Array,
  columns: number,
  picture: PictureAnswer,
  row: number | null,
): Float32Array {
  const rows = weights.length / columns;
  const read = row ?? { first: 0, last: rows - 1 }[picture.pooling as "first" | "last"] ?? null;
  return Float32Array.from({ length: picture.side ** 2 }, (_, patch) => {
    const column = picture.first + patch;
    if (read !== null) return weights[read * columns + column] ?? 0;
    let sum = 0;
    for (let r = 0; r < rows; r++) sum += weights[r * columns + column] ?? 0;
    return sum / rows;
  });
}

/** The same as a drawing of its own, with the picture inside. */
export function patchesSvg(
  picture: PictureAnswer,
  values: Float32Array,
  paint: (value: number) => string,
  title: string,
): string {
  const cell = 24;
  const size = picture.side * cell;
  const cells = [...values].map((value, patch) => {
    const [x, y] = [(patch % picture.side) * cell, Math.floor(patch / picture.side) * cell];
    return `<rect x="${x}" y="${y}" width="${cell}" height="${cell}" fill="${paint(value)}" fill-opacity="0.6"/>`;
  });
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${size}" height="${size}" viewBox="0 0 ${size} ${size}">` +
    `<title>${escapeXml(title)}</title><image href="${picture.source}" width="${size}" height="${size}" ` +
    `style="image-rendering:pixelated"/>${cells.join("")}</svg>`
  );
}
