import { expect, test } from "vitest";
import { format, parse } from "../../src/lib/address";
import { bodyOf, DIALS, settingsOf, STRATEGIES, turned } from "../../src/run/settings";

test("without anything in the address each dial stands as usual", () => {
  const settings = settingsOf({});
  expect(settings.strategy).toBe("greedy");
  for (const dial of DIALS) expect(settings.values[dial.name]).toBe(dial.usual);
  expect(bodyOf(settings)).toEqual({ strategy: "greedy", frequency: 0, presence: 0 });
});

test("each dial that is turned stands in the address, comes back from it, and reaches the request", () => {
  for (const dial of DIALS)
    for (const strategy of dial.for) {
      const value = dial.usual === dial.high ? dial.low : dial.high;
      const hash = format("run", { strategy, ...turned(dial, value) });
      const settings = settingsOf(parse(hash).params);
      expect(settings.values[dial.name]).toBe(value);
      expect(bodyOf(settings)[dial.name]).toBe(value);
    }
  for (const dial of DIALS) expect(turned(dial, dial.usual)[dial.name]).toBeNull();
});

test("a dial that the strategy does not use is not sent", () => {
  for (const strategy of STRATEGIES) {
    const sent = Object.keys(bodyOf(settingsOf({ strategy, max_length: "5" })));
    const used = DIALS.filter((dial) => dial.for.includes(strategy)).map(({ name }) => name);
    expect(sent.sort()).toEqual(["strategy", ...used].sort());
  }
});

test("nonsense in the address does no harm", () => {
  const settings = settingsOf({ strategy: "magic", temperature: "hot", top_p: "7", beam: "-3" });
  expect(settings.strategy).toBe("greedy");
  expect(settings.values).toMatchObject({ temperature: 1, top_p: 1, beam: 2 });
});
