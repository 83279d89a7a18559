// The bar at the top: what is open, its key figures, search, colours, jumps, and the buttons of the page.
import type { App } from "./app";
import { KINDS } from "./coloring";
import { h } from "./dom";
import { bytes, count, percent } from "./format";

const ICONS: Record<string, string> = {
  link: "M6.5 9.5l3-3M7 4.5l1.2-1.2a2.7 2.7 0 013.8 3.8L10.7 8.4M9 11.5l-1.2 1.2A2.7 2.7 0 014 8.9L5.3 7.6",
  save: "M8 2.5v7M5 7l3 3 3-3M3 12.5h10",
  theme: "M8 2.5a5.5 5.5 0 100 11zM8 2.5a5.5 5.5 0 010 11",
  help: "M6 6.2a2 2 0 113 1.7c-.7.4-1 .8-1 1.6M8 11.8v.2",
  open: "M2.5 12.5v-9h4l1.5 2h5.5v7z",
  all: "M2.5 6v-3.500h3.500M13.5 6v-3.500h-3.500M2.5 10v3.500h3.500M13.5 10v3.500h-3.500",
};

function icon(name: string): SVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[name]!);
  svg.append(path);
  return svg;
}

function iconButton(name: string, label: string, key: string, action: () => void): HTMLButtonElement {
  const element = h("button", {
    type: "button",
    class: "icon",
    "aria-label": label,
    title: `${label} (${key})`,
    onclick: action,
  });
  element.append(icon(name));
  return element;
}

export function toolbar(app: App): { root: HTMLElement; update(): void } {
  const info = app.recordings[0]!.info;
  const select = h(
    "select",
    {
      "aria-label": "Colour and group by",
      title: "Colour the map and group the memory by (C)",
      onchange: () => app.setBy(select.value),
    },
    KINDS.filter((kind) => app.recordings[0]!.groups.has(kind)).map((kind) =>
      h("option", { value: kind }, `by ${kind}`),
    ),
  );
  const search = h("input", {
    type: "search",
    class: "search",
    placeholder: "Search: frame, size>1MiB",
    "aria-label": "Search and filter blocks",
    title: "Search and filter (/)",
    spellcheck: "false",
    autocomplete: "off",
  });
  let timer = 0;
  search.addEventListener("input", () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => {
      app.search(search.value);
      if (search.value) app.setTab("search");
    }, 120);
  });
  search.addEventListener("keydown", (e) => {
    if (e.key === "Enter") {
      window.clearTimeout(timer);
      app.search(search.value);
      app.setTab("search");
      app.side.nextFound(e.shiftKey ? -1 : 1);
    } else if (e.key === "Escape") {
      search.value = "";
      app.search("");
      search.blur();
    } else return;
    e.preventDefault();
    e.stopPropagation();
  });
  const name = app.tracks.map((t) => t.label).join("  ↔  ");
  const { allocated, reserved } = info.peak;
  const fragmentation = reserved && allocated !== null ? 1 - allocated / reserved : null;
  const figure = (label: string, value: string, title: string, action: (() => void) | null, kind = ""): HTMLElement =>
    h(
      action ? "button" : "span",
      { class: `figure ${kind}`, title, ...(action ? { type: "button", onclick: action } : {}) },
      h("small", {}, label),
      h("b", {}, value),
    );
  const first = app.tracks[0]!;
  const ooms = info.marks.filter((m) => m.kind === "oom");
  const root = h(
    "header",
    { class: "bar" },
    h("div", { class: "brand" }, h("span", { class: "logo", "aria-hidden": "true" }), h("h1", { title: name }, name)),
    h(
      "div",
      { class: "figures" },
      figure(
        "peak in use",
        allocated === null ? "not known" : bytes(allocated),
        "Go to the peak of memory in use, as requested (P)",
        () => app.jump(first, info.peak.allocated_entry ?? 0),
      ),
      figure(
        "peak reserved",
        reserved === null ? "not known" : bytes(reserved),
        "Go to the peak of reserved memory",
        () => app.jump(first, info.peak.reserved_entry ?? 0),
      ),
      fragmentation === null
        ? null
        : figure("fragmentation", percent(fragmentation), "1 − peak in use / peak reserved", null),
      app.tracks.length > 1
        ? null
        : figure("entries", count(info.entries), "History entries of this device", null, "wide"),
      info.ooms > 0
        ? figure(
            info.ooms === 1 ? "out of memory" : `${count(info.ooms)} out of memory`,
            ooms[0] ? `entry ${count(ooms[0].entry)}` : "",
            "Go to the next out of memory (O)",
            () => nextMark(app, "oom", 1),
            "bad",
          )
        : null,
    ),
    h(
      "div",
      { class: "tools" },
      search,
      select,
      iconButton("all", "Show all", "0", () => app.showAll()),
      iconButton("open", "Open a recording", "Ctrl+O", () => app.openFileDialog()),
      iconButton("save", "Save the visible part as SVG", "E", () => app.exportSvg()),
      iconButton("link", "Copy a link to this view", "L", () => void app.copyLink()),
      iconButton("theme", "Light or dark", "T", () => app.toggleTheme()),
      iconButton("help", "Help", "?", () => app.help()),
    ),
  );
  return {
    root,
    update(): void {
      if (select.value !== app.by) select.value = app.by;
      if (document.activeElement !== search && search.value !== app.query) search.value = app.query;
    },
  };
}

// Moves the cursor to the next or previous mark of a kind, around the ends.
export function nextMark(app: App, kind: string, direction: number): void {
  const track = app.tracks[app.active] ?? app.tracks[0]!;
  const marks = track.recording.info.marks.filter((m) => m.kind === kind).sort((a, b) => a.entry - b.entry);
  if (marks.length === 0) {
    app.say(kind === "oom" ? "Nothing ran out of memory." : `There is no ${kind}.`);
    return;
  }
  const at = app.entryOf(track);
  const next =
    direction > 0
      ? (marks.find((m) => m.entry > at) ?? marks[0]!)
      : (marks.filter((m) => m.entry < at).pop() ?? marks[marks.length - 1]!);
  app.jump(track, next.entry);
  if (kind === "phase") app.say(`Phase ${next.name || "(none)"} at entry ${count(next.entry)}`);
  if (kind === "oom" && track.recording.info.explain) app.setTab("cause");
}
