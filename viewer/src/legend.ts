// The row above the views: the groups with their colours and their bytes at the cursor, and the counters.
import type { App } from "./app";
import { fill, h } from "./dom";
import { bytes, range } from "./format";
import { COUNTER_NAMES, COUNTERS } from "./memory";

const last = new WeakMap<HTMLElement, string>();

export function legend(app: App, row: HTMLElement): void {
  const track = app.tracks[app.active] ?? app.tracks[0]!;
  const entry = app.entryOf(track);
  const group = track.recording.groups.get(app.by);
  const level = group?.levels.finest();
  const column = level ? Math.min(level.columns - 1, Math.floor(entry / level.span)) : 0;
  const values = (group?.info.names ?? []).map((_, k) => (level ? level.values[k * level.columns + column]! : null));
  const key = JSON.stringify([
    app.by,
    app.active,
    values,
    [...app.counters],
    app.theme.isDark,
    app.pickedBand?.band,
    app.colorVersion,
    entry,
    row.clientWidth,
    row.classList.contains("open"),
    COUNTERS.map((name) => app.counterAt(track, name, entry)),
  ]);
  if (last.get(row) === key) return;
  last.set(row, key);
  const focused = row.contains(document.activeElement)
    ? (document.activeElement as HTMLElement).dataset.key
    : undefined;
  fill(
    row,
    h(
      "div",
      { class: "chips groups" },
      (group?.info.names ?? []).map((name, k) => {
        const value = values[k] ?? null;
        const isDim = app.dimBand(track, k);
        return h(
          "button",
          {
            type: "button",
            class: `chip${isDim ? " dim" : ""}`,
            "data-key": `band${k}`,
            "aria-pressed": app.pickedBand?.band === k ? "true" : "false",
            title: `${shortName(name)}\n${value === null ? "" : `${bytes(value)} at the cursor`}\nClick: only these`,
            onclick: () => app.pickBand(track, k),
          },
          h("i", { class: "swatch", style: `background:${track.coloring.colors[k] ?? ""}` }),
          h("span", { class: "clip" }, shortName(name)),
          value !== null && value > 0 ? h("span", { class: "muted" }, bytes(value)) : null,
        );
      }),
    ),
    h(
      "div",
      { class: "chips counters" },
      COUNTERS.map((name) => {
        const v = app.counterAt(track, name, entry);
        return h(
          "button",
          {
            type: "button",
            class: `chip${app.counters.has(name) ? "" : " off"}`,
            "data-key": name,
            "aria-pressed": app.counters.has(name) ? "true" : "false",
            title: `${COUNTER_NAMES[name]}: ${v ? range(v[0], v[1], bytes) : "loading"} at the cursor\nClick: show or hide the line`,
            onclick: () => app.toggleCounter(name),
          },
          h("i", { class: `dash ${name}`, style: `border-color:${app.counterColor(name)}` }),
          h("span", {}, COUNTER_NAMES[name]),
        );
      }),
    ),
  );
  hideRest(app, row);
  if (focused) row.querySelector<HTMLElement>(`[data-key="${focused}"]`)?.focus();
}

// "64.00 MiB to 128.00 MiB" is longer than it needs to be.
function shortName(name: string): string {
  return name.replaceAll(".00 ", " ") || "(none)";
}

// One row of groups, without those that would not fit, and a button that shows them.
function hideRest(app: App, row: HTMLElement): void {
  const groups = row.querySelector<HTMLElement>(".chips.groups")!;
  const chips = [...groups.children] as HTMLElement[];
  const isOpen = row.classList.contains("open");
  const below = chips.filter((chip) => chip.offsetTop > (chips[0]?.offsetTop ?? 0));
  if (!isOpen) for (const chip of below) chip.style.visibility = "hidden";
  if (below.length === 0) return;
  const toggle = h(
    "button",
    {
      type: "button",
      class: "chip more",
      "data-key": "more",
      "aria-expanded": isOpen ? "true" : "false",
      title: isOpen ? "Show the largest groups only" : "Show all groups",
      onclick: () => {
        row.classList.toggle("open");
        app.resized();
      },
    },
    isOpen ? "fewer" : `${below.length} more`,
  );
  groups.after(toggle);
}
