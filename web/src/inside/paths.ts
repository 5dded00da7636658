/** Lines with rounded corners, as SVG paths. */

export type Point = [number, number];

/** A line through the points whose corners are rounded by at most `radius`. */
export function rounded(points: readonly Point[], radius: number): string {
  const [start, ...rest] = points;
  if (!start) return "";
  let path = `M${start[0]},${start[1]}`;
  let before = start;
  rest.forEach((corner, i) => {
    const after = rest[i + 1];
    if (!after) {
      path += `L${corner[0]},${corner[1]}`;
      return;
    }
    const r = Math.min(radius, distance(before, corner) / 2, distance(corner, after) / 2);
    const into = toward(corner, before, r);
    const out = toward(corner, after, r);
    path += `L${into[0]},${into[1]}Q${corner[0]},${corner[1]} ${out[0]},${out[1]}`;
    before = corner;
  });
  return path;
}

function distance(a: Point, b: Point): number {
  return Math.hypot(a[0] - b[0], a[1] - b[1]);
}

/** The point `length` away from `from` in the direction of `to`. */
function toward(from: Point, to: Point, length: number): Point {
  const whole = distance(from, to) || 1;
  return [from[0] + ((to[0] - from[0]) * length) / whole, from[1] + ((to[1] - from[1]) * length) / whole];
}
