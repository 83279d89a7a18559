// Memory that grows from step to step, as `weir leaks` finds it.
import type { App, Track } from "./app";
import { button, facts, h, type Child } from "./dom";
import { bytes, count, duration, plural, range } from "./format";

interface Leak {
  title: string;
  bytes: number;
  blocks: number;
  bytes_per_step: number;
  first_step: number;
  last_step: number;
  every: number;
  joint: boolean;
  why: string | null;
  stream: string;
  examples: { address: number; size: number; entry: number; step: number }[];
  example_total: number;
}

interface Steps {
  count: number;
  source: string;
  name: string | null;
  confidence: number;
  warm_up: number;
}

interface Leaks {
  verdict: string;
  reason: string | null;
  bytes_per_step: number;
  bytes: number;
  blocks: number;
  first_step: number | null;
  step_seconds: number | null;
  steps?: Steps | null;
  limit?: {
    bytes: number | null;
    is_device: boolean;
    runs_out: string;
    steps_least: number | null;
    steps_most: number | null;
  };
  leaks: Leak[];
  leak_total: number;
  growing?: Leak[];
  growing_total?: number;
  outlive_phase?: { phase: string; title: string; bytes: number; blocks: number; steps: number }[];
  idle_streams?: { stream: string; reserved: number; in_use: number; free: number; last_entry: number }[];
}

const VERDICTS: Record<string, string> = {
  none: "No memory grows from step to step.",
  leak: "Memory grows from step to step.",
  unknown: "Whether memory grows is not known.",
};

// Why memory that grows is no leak.
const REASONS: Record<string, string> = {
  stopped: "stopped growing, as a cache that is full",
  slowing: "slows down, as a cache that fills",
  replaced: "each block is replaced by a larger one, as in a key/value cache",
};

export function leaksPanel(app: App): Child[] {
  return app.tracks.flatMap((track) => {
    const l = track.recording.info.leaks as Leaks | null;
    return l ? one(app, track, l) : [];
  });
}

// The words of `weir leaks`.
function describeSteps(s: Steps): string {
  const warmUp =
    s.warm_up === 0 ? "" : s.warm_up === 1 ? "; the first is warm-up" : `; the first ${count(s.warm_up)} are warm-up`;
  if (s.source === "none") return "none found";
  if (s.source === "windows") return `none found; the history is divided into ${count(s.count)} windows`;
  if (s.source === "inferred")
    return `${count(s.count)}, inferred from the history, confidence ${(100 * s.confidence).toFixed(0)} %${warmUp}`;
  return `${count(s.count)}, from ${s.source === "phases" ? "phase" : "annotation"} '${s.name ?? ""}'${warmUp}`;
}

function describeEnd(l: Leaks, unit: string): string {
  const limit = l.limit;
  if (!limit || limit.steps_least === null || limit.steps_most === null)
    return limit?.bytes === null ? "not known: the recording does not have the memory of the device" : "not known";
  const step = l.step_seconds;
  const time =
    step === null ? "" : ` (${range(limit.steps_least, limit.steps_most, (n) => duration(n * step * 1e6))})`;
  const what = limit.is_device ? "the device's memory" : "a limit";
  const at = limit.bytes === null ? "" : `, at ${what} of ${bytes(limit.bytes)}`;
  return `in ${range(limit.steps_least, limit.steps_most, count)} ${unit}s${time}${at}`;
}

function one(app: App, track: Track, l: Leaks): Child[] {
  const unit = l.steps?.source === "windows" ? "window" : "step";
  const steps: [string, Child] | null = l.steps ? ["steps", describeSteps(l.steps)] : null;
  return [
    app.tracks.length > 1 ? h("h2", {}, track.label) : null,
    h("p", { class: `title${l.verdict === "leak" ? " bad" : ""}` }, VERDICTS[l.verdict] ?? l.verdict),
    l.reason ? h("p", { class: "muted" }, l.reason) : null,
    facts(
      l.verdict !== "leak"
        ? [steps]
        : [
            ["growth", `${bytes(l.bytes_per_step)} a ${unit}`],
            ["not freed", `${bytes(l.bytes)} in ${plural(l.blocks, "block")}`],
            l.first_step === null ? null : [`since ${unit}`, count(l.first_step)],
            steps,
            ["runs out", describeEnd(l, unit)],
          ],
    ),
    list(app, track, unit, "Leaks", l.leaks, l.leak_total),
    l.growing && list(app, track, unit, "Grows, but is no leak", l.growing, l.growing_total ?? l.growing.length),
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
              h(
                "span",
                {},
                o.title,
                h(
                  "small",
                  { class: "muted" },
                  `${plural(o.blocks, "block")} of phase '${o.phase}', by up to ${plural(o.steps, unit)}`,
                ),
              ),
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
            h(
              "li",
              {},
              h("b", {}, bytes(s.free)),
              h(
                "span",
                {},
                `free of ${bytes(s.reserved)} on ${s.stream}`,
                h("small", { class: "muted" }, `last used at entry ${count(s.last_entry)}`),
              ),
            ),
          ),
        ),
      ],
  ];
}

function list(app: App, track: Track, unit: string, title: string, leaks: Leak[], total: number): Child {
  if (leaks.length === 0) return null;
  return [
    h("h3", {}, title),
    leaks.map((leak) =>
      h(
        "section",
        {
          class: leak.why ? "leak" : "leak pin",
          "data-title": leak.title,
          "data-bytes": leak.bytes,
          "data-blocks": leak.blocks,
        },
        h(
          "p",
          {},
          h("b", {}, leak.why ? bytes(leak.bytes) : `${bytes(leak.bytes_per_step)} a ${unit}`),
          ` ${leak.title}`,
        ),
        h("p", { class: "muted" }, describeLeak(leak, unit)),
        leak.examples.length > 0 &&
          h(
            "p",
            {},
            "Allocated at entry ",
            leak.examples.map((e, i) => [
              i > 0 ? ", " : null,
              button(count(e.entry), () => show(app, track, e.entry, e.address), {
                class: "link",
                title: `${bytes(e.size)}, ${unit} ${count(e.step)}: show this block`,
              }),
            ]),
            leak.example_total > leak.examples.length
              ? h("span", { class: "muted" }, ` and ${count(leak.example_total - leak.examples.length)} more`)
              : null,
          ),
      ),
    ),
    total > leaks.length ? h("p", { class: "muted" }, `${count(total - leaks.length)} more are not listed`) : null,
  ];
}

function describeLeak(leak: Leak, unit: string): string {
  const steps = `from ${unit} ${count(leak.first_step)} to ${count(leak.last_step)}`;
  const where = `${plural(leak.blocks, "block")} on ${leak.stream}, ${steps}`;
  if (leak.why) return `${where}: ${REASONS[leak.why] ?? leak.why}`;
  const every = leak.every > 1.5 && !leak.joint ? `, every ${leak.every.toFixed(1)} ${unit}s` : "";
  return `${bytes(leak.bytes)} in ${where}${every}`;
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
