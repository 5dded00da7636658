/**
 * A table with a header as CSV, for the download buttons of the views.
 * Numbers are written with all their digits: a download is for computing with, not for looking at.
 */
import { csv } from "../lib/exports";

export type Cell = string | number | null | undefined;

/** A header and its rows; a cell that is not there stays empty. Every row must be as long as the header. */
export function table(header: string[], rows: Iterable<Cell[]>): string {
  const lines: (string | number)[][] = [header];
  for (const row of rows) {
    if (row.length !== header.length) {
      throw new Error(`A row has ${row.length} cells under ${header.length} column names.`);
    }
    lines.push(row.map((cell) => cell ?? ""));
  }
  return csv(lines);
}
