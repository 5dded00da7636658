/**
 * Colour scales for numbers, readable with any kind of colour vision and in both themes.
 *
 * Sequential: from the page's own ground (nothing) through green and blue to the far end (most), lightness
 * strictly monotone. Diverging: blue – ground – orange, for numbers with a sign. Pure functions, no DOM.
 */
export type Theme = "light" | "dark";
export type ScaleName = "sequential" | "diverging";
export type Rgb = readonly [number, number, number];

const STOPS: Record<Theme, Record<ScaleName, readonly string[]>> = {
  light: {
    sequential: ["#fafaf5", "#e2f1dc", "#b3dfcb", "#72c3c9", "#3f9dbf", "#2b72ac", "#274a8e", "#1f2560"],
    diverging: [
      "#0a3d73",
      "#2a6cab",
      "#74a9d6",
      "#c3dbee",
      "#f8f8f5",
      "#fad9b6",
      "#eda35c",
      "#c96a14",
      "#7f3c00",
    ],
  },
  dark: {
    sequential: ["#161a21", "#222c56", "#28498a", "#2d70a6", "#3c99b3", "#6fc0b5", "#b4e0b8", "#fbfbdf"],
    diverging: [
      "#b9dcff",
      "#6fb1ee",
      "#3a7dbd",
      "#264868",
      "#181c23",
      "#5c3b1a",
      "#a8621f",
      "#e89543",
      "#ffd6a3",
    ],
  },
};

/** Colours for series that must be told apart (after Okabe and Ito), in the order in which they are given out. */
const SERIES: Record<Theme, readonly string[]> = {
  light: ["#0b5fa5", "#b45309", "#00795a", "#a83a78", "#4d4d4d", "#6a5acd", "#8a6d00", "#007c91"],
  dark: ["#6cb6ff", "#f0a04b", "#4cc9a0", "#e58bbd", "#b8bec8", "#a99bf5", "#e0c341", "#5fd0e3"],
};

/** What stands for a number that is none (a masked score, −∞). */
const NOTHING: Record<Theme, string> = { light: "#d5d7da", dark: "#3a3f47" };

export function rgb(hex: string): Rgb {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

export function css(colour: Rgb): string {
  return `rgb(${colour.map(Math.round).join(",")})`;
}

function between(stops: readonly Rgb[], t: number): Rgb {
  const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(at), stops.length - 2);
  const a = stops[below]!;
  const b = stops[below + 1]!;
  const f = at - below;
  return [a[0] + f * (b[0] - a[0]), a[1] + f * (b[1] - a[1]), a[2] + f * (b[2] - a[2])];
}

/** A value's colour on a scale whose ends lie at `domain`; what is not finite is grey. */
export function scale(
  name: ScaleName,
  theme: Theme,
  domain: readonly [number, number],
): (value: number) => Rgb {
  const stops = STOPS[theme][name].map(rgb);
  const nothing = rgb(NOTHING[theme]);
  const [low, high] = domain;
  const span = high - low || 1;
  return (value) => (Number.isFinite(value) ? between(stops, (value - low) / span) : nothing);
}

/** The colour of series `index`. */
export function series(index: number, theme: Theme): string {
  const colours = SERIES[theme];
  return colours[index % colours.length]!;
}

/** Smallest and largest finite value; diverging scales are symmetric around 0. */
export function domainOf(values: ArrayLike<number>, name: ScaleName): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return name === "diverging" ? [-1, 1] : [0, 1];
  if (name === "diverging") {
    const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return [-size, size];
  }
  return low === high ? [Math.min(0, low), Math.max(low, 1e-12)] : [low, high];
}

/** Relative luminance as WCAG 2 defines it. */
export function luminance([r, g, b]: Rgb): number {
  const linear = (channel: number): number => {
    const c = channel / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
}

/** WCAG 2 contrast ratio, 1 … 21. */
export function contrast(a: Rgb, b: Rgb): number {
  const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

const BLACK: Rgb = [0, 0, 0];
const WHITE: Rgb = [255, 255, 255];

/** The ink that reads best on a ground. */
export function inkOn(ground: Rgb): Rgb {
  return contrast(ground, BLACK) >= contrast(ground, WHITE) ? BLACK : WHITE;
}
