import { describe, expect, it } from "vitest";
import { besideNotes, layRoll, onNotes, rollCsv, rollSvg } from "../../src/attention/roll";

describe("piano roll", () => {
  // five tokens: the start, two events of the first note, one of the second, a rest
  const notes = [
    { pitch: 67, begin: 0, end: 0.5, columns: [1, 2] },
    { pitch: 60, begin: 0.5, end: 2, columns: [3] },
  ];
  const weights = Float32Array.from([1, 0, 0, 0, 0, 0.25, 0.125, 0.25, 0.25, 0.125]);

  it("gives a note what its events get together", () => {
    expect([...onNotes(weights, 5, notes, 1)]).toEqual([0.375, 0.25]);
    expect(besideNotes(weights, 5, 1, onNotes(weights, 5, notes, 1))).toBeCloseTo(0.375);
    expect(besideNotes(weights, 5, 0, onNotes(weights, 5, notes, 0))).toBeCloseTo(1);
  });

  it("draws time to the right and pitch upwards", () => {
    const roll = layRoll(notes, 400);
    const [first, second] = roll.bars;
    expect(second!.y).toBeGreaterThan(first!.y);
    expect(second!.x).toBeCloseTo(first!.x + first!.width);
    expect(second!.width).toBeCloseTo(3 * first!.width);
    expect(second!.x + second!.width).toBeLessThan(roll.width);
    expect(roll.pitches.map(({ pitch }) => pitch)).toEqual([60, 67]);
    expect(roll.seconds.map(({ second }) => second)).toEqual([0, 1, 2]);
    expect(layRoll([{ ...notes[0]!, end: 600 }], 400).width).toBeGreaterThan(10_000);
  });

  it("is saved as a drawing and as a table", () => {
    const svg = rollSvg(layRoll(notes, 400), Float32Array.from([0.5, 1]), (value) => `c${value}`, "A & B");
    expect(svg.match(/<rect /g)).toHaveLength(1 + 2);
    expect(svg).toContain('fill="c0.5"');
    expect(svg).toContain("A &amp; B");
    expect(rollCsv(notes, Float32Array.from([0.5, 1])).split("\r\n")[2]).toBe("60,0.5,2,1");
  });
});
