/**
 * What leaves the page as a file: CSV, SVG and PNG. Everything is made here in the browser.
 */

/** Rows as CSV (RFC 4180): fields with commas, quotes or line ends are quoted. */
export function csv(rows: readonly (readonly (string | number)[])[]): string {
  const field = (value: string | number): string => {
    const text = String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

/** A matrix with its labels as CSV; the first row and column hold the labels. */
export function matrixCsv(
  values: ArrayLike<number>,
  rows: number,
  columns: number,
  rowLabels?: readonly string[],
  columnLabels?: readonly string[],
): string {
  const head = ["", ...Array.from({ length: columns }, (_, c) => columnLabels?.[c] ?? String(c))];
  const body = Array.from({ length: rows }, (_, r) => [
    rowLabels?.[r] ?? String(r),
    ...Array.from({ length: columns }, (_, c) => values[r * columns + c]!),
  ]);
  return csv([head, ...body]);
}

export function escapeXml(text: string): string {
  const names: Record<string, string> = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "'": "&#39;",
  };
  return text.replace(/[&<>"']/g, (sign) => names[sign]!);
}

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  const url = URL.createObjectURL(content);
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const DRAWN = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "letter-spacing",
  "visibility",
  "display",
];

/** A drawn SVG as a document of its own: what the style sheet says is written into each element. */
export function svgText(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const from = [drawing, ...drawing.querySelectorAll<SVGElement>("*")];
  const to = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of DRAWN) {
      const value = style.getPropertyValue(name);
      if (value) to[i]!.setAttribute(name, value);
    }
    to[i]!.removeAttribute("class");
    to[i]!.removeAttribute("tabindex");
  });
  const { width, height } = drawing.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(Math.round(width)));
  copy.setAttribute("height", String(Math.round(height)));
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const box = copy.getAttribute("viewBox")!.split(/[ ,]+/);
  ["x", "y", "width", "height"].forEach((name, i) => ground.setAttribute(name, box[i]!));
  ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor || "#fff");
  copy.prepend(ground);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** An SVG document as a picture, twice as fine as on the screen. */
export async function rasterised(svg: string, fineness = 2): Promise<Blob> {
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    await new Promise((done, failed) => {
      image.onload = done;
      image.onerror = () => failed(new Error("The drawing could not be converted to a picture."));
      image.src = url;
    });
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(image.width * fineness));
    canvas.height = Math.max(1, Math.round(image.height * fineness));
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await canvasPng(canvas);
  } finally {
    URL.revokeObjectURL(url);
  }
}

export function canvasPng(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((done, failed) =>
    canvas.toBlob(
      (blob) => (blob ? done(blob) : failed(new Error("The picture is too large to export."))),
      "image/png",
    ),
  );
}
