// Memory that grows from step to step, as `weir leaks` finds it.
import type { App, Track } from "./app";
import { button, facts, h, type Child } from "./dom";
import { bytes, count, plural, range } from "./format";

interface Leak {
  title: string;
  bytes: number;
  blocks: number;
  bytes_per_step: number;
  first_step: number;
  every: number;
  why: string | null;
  stream: string;
  examples: { address: number; size: number; entry: number; step: number }[];
  example_total: number;
}

interface Leaks {
  verdict: string;
  reason: string | null;
  bytes_per_step: number;
  bytes: number;
  blocks: number;
  first_step: number | null;
  steps?: { count?: number; source?: string; confidence?: string | number } | null;
  limit?: {
    runs_out: string;
    steps_least: number | null;
    steps_most: number | null;
    seconds_least: number | null;
    seconds_most: number | null;
  };
  leaks: Leak[];
  leak_total: number;
  growing?: Leak[];
  outlive_phase?: { phase: string; title: string; bytes: number; blocks: number; steps: number }[];
  idle_streams?: { stream: string; reserved: number; in_use: number; free: number; idle_steps: number | null }[];
}

const VERDICTS: Record<string, string> = {
  none: "No memory grows from step to step.",
  leak: "Memory grows from step to step.",
  unknown: "Whether memory grows is not known.",
};

export function leaksPanel(app: App): Child[] {
  return app.tracks.flatMap((track) => {
    const l = track.recording.info.leaks as Leaks | null;
    return l ? one(app, track, l) : [];
  });
}

function one(app: App, track: Track, l: Leaks): Child[] {
  const limit = l.limit;
  const ends =
    limit && limit.steps_least !== null && limit.steps_most !== null
      ? `in ${range(limit.steps_least, limit.steps_most, count)} steps`
      : limit?.runs_out === "never"
        ? "never"
        : "not known";
  return [
    app.tracks.length > 1 ? h("h2", {}, track.label) : null,
    h("p", { class: `title${l.verdict === "leak" ? " bad" : ""}` }, VERDICTS[l.verdict] ?? l.verdict),
    l.reason ? h("p", { class: "muted" }, l.reason) : null,
    l.verdict !== "leak" && l.steps?.count !== undefined ? facts([["steps", count(l.steps.count)]]) : null,
    l.verdict === "leak" &&
      facts([
        ["growth", `${bytes(l.bytes_per_step)} a step`],
        ["so far", `${bytes(l.bytes)} in ${plural(l.blocks, "block")}`],
        l.first_step === null ? null : ["since step", count(l.first_step)],
        l.steps?.count === undefined ? null : ["steps", count(l.steps.count)],
        ["runs out", ends],
      ]),
    list(app, track, "Leaks", l.leaks, l.leak_total),
    l.growing && l.growing.length > 0 ? list(app, track, "Growing, but not a leak", l.growing, l.growing.length) : null,
    l.outlive_phase &&
      l.outlive_phase.length > 0 && [
        h("h3", {}, "Outlives its phase"),
        h(
          "ul",
          { class: "plain" },
          l.outlive_phase.map((o) =>
            h(
              "li",
              {},
              h("b", {}, bytes(o.bytes)),
              h("span", {}, `${o.title} `, h("span", { class: "muted" }, `${plural(o.blocks, "block")} of ${o.phase}`)),
            ),
          ),
        ),
      ],
    l.idle_streams &&
      l.idle_streams.length > 0 && [
        h("h3", {}, "Stranded on idle streams"),
        h(
          "ul",
          { class: "plain" },
          l.idle_streams.map((s) =>
            h("li", {}, h("b", {}, bytes(s.free)), ` free of ${bytes(s.reserved)} on ${s.stream}`),
          ),
        ),
      ],
  ];
}

function list(app: App, track: Track, title: string, leaks: Leak[], total: number): Child {
  if (leaks.length === 0) return null;
  return [
    h("h3", {}, title),
    leaks.map((leak) =>
      h(
        "section",
        { class: "pin" },
        h("p", {}, h("b", {}, `${bytes(leak.bytes_per_step)} a step`), ` ${leak.title}`),
        h(
          "p",
          { class: "muted" },
          `${bytes(leak.bytes)} in ${plural(leak.blocks, "block")} since step ${count(leak.first_step)}, on ${leak.stream}${leak.why ? `; ${leak.why}` : ""}`,
        ),
        h(
          "p",
          {},
          leak.examples
            .slice(0, 8)
            .map((e) => [
              button(`entry ${count(e.entry)}`, () => show(app, track, e.entry, e.address), {
                class: "link",
                title: `${bytes(e.size)}: show this block`,
              }),
              " ",
            ]),
          leak.example_total > leak.examples.length
            ? h("span", { class: "muted" }, `and ${count(leak.example_total - leak.examples.length)} more`)
            : null,
        ),
      ),
    ),
    total > leaks.length ? h("p", { class: "muted" }, `${count(total - leaks.length)} more are not listed`) : null,
  ];
}

function show(app: App, track: Track, entry: number, address: number): void {
  const y = track.recording.yOf(address);
  const block = y === null ? null : track.recording.blocks.pick(entry, y);
  if (block) app.reveal(track, block);
  else {
    app.jump(track, entry);
    app.say("This block is among the hidden ones.");
  }
}
