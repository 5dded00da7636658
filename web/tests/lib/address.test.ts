import { get } from "svelte/store";
import { beforeEach, expect, test } from "vitest";
import { address, change, format, go, parse, sharedOf, VIEWS, whole } from "../../src/lib/address";

beforeEach(() => history.replaceState(null, "", "#/"));

test("every address reads back as it was written, whatever the text", () => {
  const texts = ["a b", "50 % & more? #1 = ü", "名前 ␣ 🙂", "a+b", '"quoted"', "line\nbreak", "x?y?z"];
  for (const view of VIEWS)
    for (const text of texts) {
      const params = { model: "demo", text, layer: "2" };
      expect(parse(format(view, params))).toEqual({ view, params });
    }
});

test("what is no view is the first one, and empty parameters are left out", () => {
  expect(parse("")).toEqual({ view: "run", params: {} });
  expect(parse("#/nowhere?a=1")).toEqual({ view: "run", params: { a: "1" } });
  expect(format("depth", { target: "", head: null, layer: 0, step: undefined })).toBe("#/depth?layer=0");
  expect(parse(format("depth", { text: "" })).params).toEqual({ text: "" }); // a text may be empty on purpose
});

test("go begins anew, change keeps the rest and makes no history", () => {
  const seen: string[] = [];
  const stop = address.subscribe(({ view, params }) => seen.push(format(view, params)));
  go("attention", { text: "a", head: 1 });
  const length = history.length;
  change({ head: 3, layer: 0 });
  change({ head: null });
  change({ head: null });
  expect(history.length).toBe(length);
  expect(seen.slice(-3)).toEqual([
    "#/attention?text=a&head=1",
    "#/attention?text=a&head=3&layer=0",
    "#/attention?text=a&layer=0",
  ]);
  go("run");
  expect(get(address)).toEqual({ view: "run", params: {} });
  stop();
});

test("only the shared parameters go along to another view", () => {
  expect(sharedOf({ model: "m", text: "t", head: "1", target: "" })).toEqual({ model: "m", text: "t" });
  expect(sharedOf({ text: "", head: "1" })).toEqual({ text: "" });
});

test("numbers from the address are whole and within their bounds", () => {
  expect(whole({ head: "3" }, "head", 0, 0, 3)).toBe(3);
  for (const wrong of ["4", "-1", "1.5", "x", "", "1e9"])
    expect(whole({ head: wrong }, "head", 7, 1, 3)).toBe(7);
  expect(whole({}, "head", 7)).toBe(7);
});
