import { describe, expect, it } from "vitest";
import { table } from "../../src/charts/csv";

describe("table", () => {
  it("leaves missing values empty and keeps zero", () => {
    expect(table(["a", "b", "c"], [[null, undefined, 0]])).toBe("a,b,c\r\n,,0\r\n");
  });

  it("quotes words that hold a comma or a quote", () => {
    expect(table(["a", "b"], [[",", 'say "no"']])).toBe('a,b\r\n",","say ""no"""\r\n');
  });

  it("refuses a row of another length", () => {
    expect(() => table(["a", "b"], [[1]])).toThrow("1 cells under 2");
  });

  it("writes every digit of a float32", () => {
    const third = Math.fround(1 / 3);
    expect(Number(table(["x"], [[third]]).split("\r\n")[1])).toBe(third);
  });
});
