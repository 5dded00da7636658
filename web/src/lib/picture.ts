/**
 * Pictures as the text that the server reads them by ("picture 1x28x28 00ff…": channels, height, width, bytes), from
 * the dots of a canvas and back.
 */

/** A picture's dots as text; `channels`: 1 is grey (by the weights that Pillow uses), 3 is colour. */
export function pictureText(
  channels: number,
  width: number,
  height: number,
  dots: ArrayLike<number>,
): string {
  const planes = Array.from({ length: channels }, (_, channel) =>
    Array.from({ length: width * height }, (_, i) => {
      const at = (k: number): number => dots[4 * i + k] ?? 0;
      const value =
        channels === 1 ? (at(0) * 19595 + at(1) * 38470 + at(2) * 7471 + 0x8000) >> 16 : at(channel);
      return value.toString(16).padStart(2, "0");
    }).join(""),
  );
  return `picture ${channels}x${height}x${width} ${planes.join("")}`;
}

export interface Dots {
  width: number;
  height: number;
  /** RGBA, row by row. */
  data: Uint8ClampedArray<ArrayBuffer>;
}

/** The dots of such a text; null for any other. */
export function pictureDots(text: string): Dots | null {
  const found = /^picture ([13])x(\d+)x(\d+) ([0-9a-f]*)$/.exec(text);
  if (!found) return null;
  const [channels, height, width] = [Number(found[1]), Number(found[2]), Number(found[3])];
  const bytes = found[4]!;
  const size = width * height;
  if (size === 0 || bytes.length !== 2 * channels * size) return null;
  const data = new Uint8ClampedArray(4 * size);
  for (let i = 0; i < size; i++) {
    for (let k = 0; k < 3; k++) {
      const at = 2 * ((channels === 1 ? 0 : k * size) + i);
      data[4 * i + k] = parseInt(bytes.slice(at, at + 2), 16);
    }
    data[4 * i + 3] = 255;
  }
  return { width, height, data };
}
