// What if: replays the opened recording under other settings, by the code of `weir whatif`, and shows the new picture
// below the old one.
import type { App } from "./app";
import { ViewData } from "./data";
import { button, facts, h, type Child } from "./dom";
import { Engine, engineReason, hasRecording, type LoadedFile } from "./engine";
import { bytes, count, duration, parseBytes, percent, range } from "./format";

export class WhatifState {
  engine: Engine | null = null;
  file: LoadedFile | null = null;
  result: unknown = null;
  error: string | null = null;
  isLoading = false;
  isRunning = false;
  // The form.
  expandable = false;
  moving = false;
  split = 0; // MiB, 0 is no limit
  threshold = 0; // 0 is off
  roundup = 0; // 0 is off
  text = "";
  memory = "";

  // The settings as one text, in the syntax of PYTORCH_CUDA_ALLOC_CONF.
  conf(): string {
    const parts: string[] = [];
    if (this.expandable) parts.push("expandable_segments:True");
    if (this.moving) parts.push("moving_pages:True");
    if (this.split) parts.push(`max_split_size_mb:${this.split}`);
    if (this.threshold) parts.push(`garbage_collection_threshold:${this.threshold}`);
    if (this.roundup) parts.push(`roundup_power2_divisions:${this.roundup}`);
    if (this.text.trim()) parts.push(this.text.trim());
    return parts.join(",");
  }
}

const SPLITS = [0, 20, 32, 64, 128, 200, 256, 512, 1024, 2048];
const THRESHOLDS = [0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];
const ROUNDUPS = [0, 1, 2, 4, 8, 16, 32];

export function whatifPanel(app: App): Child[] {
  const state = app.host.whatif;
  const reason = engineReason();
  if (reason !== null)
    return [
      h("p", {}, `What-if is not available here: ${reason}`),
      h(
        "p",
        { class: "muted" },
        "On a command line: ",
        h("code", {}, "weir whatif --conf expandable_segments:True FILE"),
        ".",
      ),
    ];
  if (!state.file && hasRecording() && state.error === null) {
    app.host.loadRecording();
    return [h("p", { class: "muted" }, "Reading the recording…")];
  }
  if (!state.file)
    return [
      state.error ? h("p", { class: "error", role: "alert" }, state.error) : null,
      h(
        "p",
        {},
        "What-if replays the recording itself, which this page does not contain. Drop the recording on this page, or open it:",
      ),
      button("Open a recording…", () => app.openFileDialog()),
      h("p", { class: "muted" }, "It is read by WebAssembly in this page; nothing is sent anywhere."),
    ];
  const conf = h("output", { class: "conf" }, state.conf() || "the defaults");
  let timer = 0;
  // A slider that is dragged and a text that is typed change often, so they wait a little for the next change.
  const changed = (wait: number): void => {
    performance.mark("weir-whatif-changed");
    conf.textContent = state.conf() || "the defaults";
    window.clearTimeout(timer);
    timer = window.setTimeout(() => void runWhatif(app), wait);
  };
  const box = (label: string, value: boolean, set: (v: boolean) => void, note: string): HTMLElement => {
    const input = h("input", { type: "checkbox", checked: value, onchange: () => (set(input.checked), changed(0)) });
    return h("label", { class: "row", title: note }, input, h("span", {}, label));
  };
  const slider = (
    label: string,
    values: number[],
    value: number,
    set: (v: number) => void,
    text: (v: number) => string,
  ): HTMLElement => {
    const shown = h("output", {}, text(value));
    const input = h("input", {
      type: "range",
      min: 0,
      max: values.length - 1,
      value: Math.max(0, values.indexOf(value)),
      "aria-label": label,
      "aria-valuetext": text(value),
      oninput: () => {
        const v = values[Number(input.value)]!;
        set(v);
        shown.textContent = text(v);
        input.setAttribute("aria-valuetext", text(v));
        changed(60);
      },
    });
    return h("label", { class: "slider" }, h("span", {}, label), shown, input);
  };
  const free = h("input", {
    type: "text",
    value: state.text,
    placeholder: "name:value,name:value",
    "aria-label": "Further settings",
    spellcheck: "false",
  });
  free.addEventListener("input", () => {
    state.text = free.value;
    changed(700);
  });
  const memory = h("input", {
    type: "text",
    value: state.memory,
    placeholder: "as the recording shows, or 80GiB",
    "aria-label": "Memory of the device",
    spellcheck: "false",
  });
  memory.addEventListener("input", () => {
    state.memory = memory.value;
    changed(700);
  });
  return [
    h("p", { class: "muted" }, `${state.file.name}: recorded with ${state.file.conf || "the default settings"}.`),
    box(
      "expandable_segments",
      state.expandable,
      (v) => (state.expandable = v),
      "one growing range of addresses per pool and stream",
    ),
    box(
      "moving_pages (Weir only)",
      state.moving,
      (v) => (state.moving = v),
      "free pages are mapped where they are needed",
    ),
    slider(
      "max_split_size_mb",
      SPLITS,
      state.split,
      (v) => (state.split = v),
      (v) => (v ? String(v) : "no limit"),
    ),
    slider(
      "garbage_collection_threshold",
      THRESHOLDS,
      state.threshold,
      (v) => (state.threshold = v),
      (v) => (v ? String(v) : "off"),
    ),
    slider(
      "roundup_power2_divisions",
      ROUNDUPS,
      state.roundup,
      (v) => (state.roundup = v),
      (v) => (v ? String(v) : "off"),
    ),
    h("label", { class: "field" }, h("span", {}, "Further settings"), free),
    h("label", { class: "field" }, h("span", {}, "Memory of the device"), memory),
    h("p", {}, conf),
    h(
      "p",
      {},
      button(state.isRunning ? "Replaying…" : "Replay", () => void runWhatif(app), {
        class: "primary",
        disabled: state.isRunning,
      }),
    ),
    state.error ? h("p", { class: "error", role: "alert" }, state.error) : null,
    state.result ? resultTable(app, state.result) : null,
  ];
}

let wanted = 0;

export async function runWhatif(app: App): Promise<void> {
  const state = app.host.whatif;
  if (!state.engine || !state.file) return;
  const memory = state.memory.trim() === "" ? null : parseBytes(state.memory);
  if (memory === null && state.memory.trim() !== "") {
    state.error = `"${state.memory}" is not a size, such as 80GiB.`;
    app.side.update();
    return;
  }
  // Only the newest request is answered; the Worker finishes the one that it has begun.
  const number = ++wanted;
  if (state.isRunning) return;
  state.isRunning = true;
  state.error = null;
  const conf = state.conf();
  app.progress(null, `Replaying under ${conf || "the defaults"}`);
  try {
    const answer = await state.engine.whatif(conf, state.file.device, memory, (fraction, what) =>
      app.progress(fraction, what),
    );
    performance.mark("weir-whatif-answered");
    state.result = answer.result;
    await app.showWhatif(ViewData.fromBytes(answer.view));
    app.say(`Replayed under ${conf || "the defaults"}`);
  } catch (error) {
    state.error = error instanceof Error ? error.message : String(error);
    app.say(state.error);
  }
  app.progress(1, "");
  state.isRunning = false;
  app.side.update();
  if (number !== wanted) void runWhatif(app);
}

// The figures of the prediction beside those of the recording, whatever the result has of them.
function resultTable(app: App, result: unknown): Child {
  const before = app.recordings[0]!.info;
  const after = app.recordings[1]?.info;
  if (!after) return null;
  const row = (name: string, a: number | null, b: number | null): [string, Child] => {
    if (a === null || b === null) return [name, "not known"];
    const change = b - a;
    const text = change === 0 ? "equal" : `${change > 0 ? "+" : ""}${bytes(change)}`;
    return [
      name,
      h(
        "span",
        {},
        `${bytes(b)} `,
        h("span", { class: change > 0 ? "bad" : change < 0 ? "good" : "muted" }, `(${text})`),
      ),
    ];
  };
  const rows = predictions(result);
  return [
    h("h3", {}, after.setting_label ?? "Predicted"),
    facts([
      row("peak reserved", before.peak.reserved, after.peak.reserved),
      row("peak in use", before.peak.allocated, after.peak.allocated),
      row("peak allocated", allocated(result, true), allocated(result, false)),
      ["out of memory", `${count(after.ooms)} (recorded: ${count(before.ooms)})`],
      ...rows,
    ]),
  ];
}

// With rounding, as `weir whatif` says it.
function allocated(result: unknown, isRecorded: boolean): number | null {
  const all = (result as { predictions?: Prediction[] }).predictions ?? [];
  return all.find((p) => (p.recorded === true) === isRecorded)?.peak_allocated ?? null;
}

interface Prediction {
  conf: string;
  peak_allocated?: number;
  retries?: number;
  failures?: number;
  fragmentation?: number;
  cost_ns?: number;
  calls?: Record<string, { calls: number }>;
  moving?: Record<string, number> | null;
  streams_busy?: Prediction | null;
  recorded?: boolean;
  is_recording?: boolean;
}

// The rows of `weir whatif` for the setting. Where the outcome depends on how far streams were, which is not recorded,
// it is a range.
function predictions(result: unknown): [string, Child][] {
  const object = result as { predictions?: Prediction[] } & Prediction;
  const all = object.predictions;
  const one = all ? (all[all.length - 1] ?? null) : object;
  if (!one) return [];
  const busy = one.streams_busy ?? null;
  const rows: [string, Child][] = [];
  const add = (name: string, value: (p: Prediction) => number | undefined, text: (n: number) => string): void => {
    const v = value(one);
    if (v === undefined) return;
    const w = (busy ? value(busy) : undefined) ?? v;
    rows.push([name, range(Math.min(v, w), Math.max(v, w), text)]);
  };
  add("fragmentation", (p) => p.fragmentation, percent);
  add("retries", (p) => p.retries, count);
  add("failures", (p) => p.failures, count);
  add(
    "driver calls",
    (p) => (p.calls ? Object.values(p.calls).reduce((sum, c) => sum + c.calls, 0) : undefined),
    count,
  );
  add("time in the driver", (p) => (p.cost_ns === undefined ? undefined : p.cost_ns / 1000), duration);
  if (one.moving && (one.moving["pages_moved"] ?? 0) > 0) {
    add("pages moved", (p) => p.moving?.["pages_moved"], count);
    add("bytes moved", (p) => p.moving?.["moved_bytes"], bytes);
  }
  return rows;
}
