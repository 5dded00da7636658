import { afterEach, expect, test, vi } from "vitest";
import { get as store } from "svelte/store";
import { ApiError, get, pauseOf, post, superseded, unpack, waiting } from "../../src/lib/api";
import { Asked } from "../../src/lib/asked.svelte";
import { pack, serve } from "../fake";

afterEach(() => vi.unstubAllGlobals());

test("numbers come out as float32 has them", () => {
  const values = [0, -0, 1 / 3, -1e-40, 3.4e38, Infinity, -Infinity, NaN, Math.PI];
  const got = unpack(pack(values, [3, 3]));
  expect([...got]).toEqual(values.map(Math.fround));
  expect(Object.is(got[1], -0)).toBe(true);
  expect(() => unpack({ shape: [2, 2], data: pack([1], [1]).data })).toThrow(/2 × 2 came with 4 bytes/);
});

test("a refusal is the server's sentence", async () => {
  serve({
    "/api/run": () => {
      throw new Error("The text is too long: shorten it.");
    },
  });
  const failure = await post("/api/run", {}).catch((reason: unknown) => reason);
  expect(failure).toBeInstanceOf(ApiError);
  expect((failure as ApiError).message).toBe("The text is too long: shorten it.");
  expect((failure as ApiError).status).toBe(400);
});

test("a server that is gone or answers nonsense is a sentence too", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
  await expect(get("/api/models")).rejects.toThrow(/does not respond/);
  vi.stubGlobal("fetch", () => Promise.resolve(new Response("<html>", { status: 502 })));
  await expect(get("/api/models")).rejects.toThrow(/could not be read \(status 502\)/);
  vi.stubGlobal("fetch", () => Promise.resolve(new Response("[]", { status: 500 })));
  await expect(get("/api/models")).rejects.toThrow(/status 500/);
});

/** A server that is busy so many times, with these headers, and then answers. */
function busy(times: number, headers: Record<string, string>): { asked: number } {
  const seen = { asked: 0 };
  vi.stubGlobal("fetch", () => {
    seen.asked += 1;
    const refusal = { status: 429, headers };
    return Promise.resolve(
      seen.asked <= times
        ? new Response(JSON.stringify({ error: "The model is busy." }), refusal)
        : new Response('"done"'),
    );
  });
  return seen;
}

test("a busy server is asked again after the pause it names, visibly, and not for ever", async () => {
  vi.useFakeTimers();
  let seen = busy(2, { "Retry-After": "3" });
  const answer = get<string>("/api/models");
  await vi.advanceTimersByTimeAsync(2900);
  expect(seen.asked).toBe(1);
  expect(store(waiting)).toEqual(["The model is busy. Trying again in 3 s (2 of 5)."]);
  await vi.advanceTimersByTimeAsync(200);
  expect(seen.asked).toBe(2);
  await vi.advanceTimersByTimeAsync(3000);
  expect(await answer).toBe("done");
  expect(store(waiting)).toEqual([]);

  seen = busy(99, {}); // no pause named: 1, 2, 4, 8 s
  const failure = post("/api/run", {}).catch((reason: unknown) => reason);
  await vi.advanceTimersByTimeAsync(15_100);
  expect(((await failure) as ApiError).status).toBe(429);
  expect(seen.asked).toBe(5);

  seen = busy(1, { "Retry-After": "3600" }); // longer than a page should wait by itself
  await expect(get("/api/models")).rejects.toThrow("The model is busy.");
  expect(seen.asked).toBe(1);

  seen = busy(99, { "Retry-After": "5" });
  const asked = new Asked<string>();
  void asked.ask("/api/run", {});
  await vi.advanceTimersByTimeAsync(100);
  asked.clear(); // the reader went elsewhere: nothing is asked any more
  await vi.advanceTimersByTimeAsync(60_000);
  expect(seen.asked).toBe(1);
  expect(store(waiting)).toEqual([]);
  vi.useRealTimers();
});

test("a pause is given in seconds or as a date, or grows by itself", () => {
  const now = Date.parse("Wed, 21 Oct 2015 07:28:00 GMT");
  expect(pauseOf("7", 1, now)).toBe(7);
  expect(pauseOf("Wed, 21 Oct 2015 07:28:04 GMT", 1, now)).toBe(4);
  expect(pauseOf("Wed, 21 Oct 2015 07:27:00 GMT", 1, now)).toBe(0);
  expect([pauseOf(null, 1, now), pauseOf("soon", 3, now), pauseOf("", 4, now)]).toEqual([1, 4, 8]);
  expect(pauseOf("-5", 1, now)).toBe(0);
});

/** A server that answers each request only when it is told to. */
function slow(): { path: string; answer: (value: unknown) => void }[] {
  const waiting: { path: string; answer: (value: unknown) => void }[] = [];
  vi.stubGlobal(
    "fetch",
    (path: string, init: RequestInit) =>
      new Promise((done, failed) => {
        init.signal?.addEventListener("abort", () => failed(new DOMException("gone", "AbortError")));
        waiting.push({ path, answer: (value) => done(new Response(JSON.stringify(value))) });
      }),
  );
  return waiting;
}

test("the newest request to a path wins, and others go on", async () => {
  const waiting = slow();
  const first = post("/api/run", { text: "a" }).catch((reason: unknown) => reason);
  const other = post("/api/depth", {});
  const second = post("/api/run", { text: "b" });
  waiting[1]!.answer("other");
  waiting[2]!.answer("second");
  expect(superseded(await first)).toBe(true);
  expect(await other).toBe("other");
  expect(await second).toBe("second");
});

test("Asked shows the newest answer only, and keeps the last one while it waits", async () => {
  const waiting = slow();
  const asked = new Asked<string>();
  const first = asked.ask("/api/run", { text: "a" });
  const second = asked.ask("/api/run", { text: "b" });
  expect(asked.busy).toBe(true);
  waiting[1]!.answer("new");
  waiting[0]!.answer("old");
  expect([await first, await second]).toEqual([null, "new"]);
  expect([asked.value, asked.busy, asked.problem]).toEqual(["new", false, null]);
  void asked.ask("/api/run", { text: "c" });
  expect([asked.value, asked.busy]).toEqual(["new", true]);
  asked.clear();
  expect([asked.value, asked.busy]).toEqual([null, false]);
});

test("Asked turns a refusal into its sentence", async () => {
  serve({});
  const asked = new Asked<string>();
  await asked.ask("/api/nowhere", {});
  expect([asked.value, asked.problem, asked.busy]).toEqual([null, "There is no such address.", false]);
  expect(asked.again).toBeUndefined(); // it would be refused again
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
  await asked.ask("/api/run", { text: "a" });
  vi.stubGlobal("fetch", () => Promise.resolve(new Response('"back"')));
  asked.again?.();
  await vi.waitFor(() => expect(asked.value).toBe("back"));
  expect(asked.of).toBe('{"text":"a"}');
});
