// The keyboard, and the overlay that explains it.
import type { App } from "./app";
import { KINDS } from "./coloring";
import { button, h } from "./dom";
import { nextMark } from "./toolbar";

const HELP: [string, [string, string][]][] = [
  [
    "Move",
    [
      ["wheel, + −, W S", "zoom time"],
      ["Alt + wheel, Shift + ↑ ↓", "zoom addresses"],
      ["drag, arrows, A D", "pan"],
      ["Shift + drag", "zoom into a box"],
      ["0, Home", "show all"],
      ["F", "zoom to the selected block"],
    ],
  ],
  [
    "Go to",
    [
      [", .", "previous, next entry (with Shift: 100)"],
      ["P", "peak of memory in use"],
      ["O, Shift + O", "next, previous out of memory"],
      ["H, Shift + H", "next, previous phase"],
    ],
  ],
  [
    "Blocks",
    [
      ["click, Enter", "select the block at the pointer or cursor"],
      ["J K", "next block below, above, at the cursor"],
      ["[ ]", "previous, next block of the same stack"],
      ["M", "show only the selected block's stack"],
      ["/", "search: frame, size>=10MiB, life<100, stream:1, pool:, phase:, class:, at:1000, alive, pending, -word"],
      ["N, Shift + N", "next, previous match"],
      ["Esc", "clear the selection, then the search"],
    ],
  ],
  [
    "Page",
    [
      ["C", "colour and group by the next property"],
      ["X", "draw the cause of the out of memory, or not"],
      ["1 … 7", "panels"],
      ["E", "save the visible part as SVG"],
      ["L", "copy a link to this view"],
      ["T", "light or dark"],
      ["?", "this help"],
    ],
  ],
];

export function helpOverlay(root: HTMLElement): void {
  const old = root.querySelector<HTMLDialogElement>("dialog.help");
  if (old) {
    old.close();
    return;
  }
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Help" },
    h("h2", {}, "Keys and gestures"),
    h(
      "div",
      { class: "help-columns" },
      HELP.map(([title, rows]) =>
        h(
          "section",
          {},
          h("h3", {}, title),
          h(
            "dl",
            {},
            rows.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]),
          ),
        ),
      ),
    ),
    h(
      "p",
      { class: "muted" },
      "The map shows time from left to right and addresses from bottom to top; addresses that were never reserved are left out. ",
      "Grey behind the blocks is reserved memory: what shows through is a hole. Hatched ends of blocks are frees that wait for other streams.",
    ),
    button("Close", () => dialog.close(), { autofocus: true }),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (e) => {
    if (e.target === dialog) dialog.close();
  });
  root.append(dialog);
  dialog.showModal();
}

// The neighbour of the selected block by address at the cursor.
function neighbour(app: App, direction: number): void {
  const track = app.selected?.track ?? app.tracks[app.active]!;
  const entry = app.entryOf(track);
  const from = app.selected?.track === track ? app.selected.block.y : direction > 0 ? -1 : Infinity;
  let best: { tile: import("./blocks").Tile; i: number; y: number } | null = null;
  track.recording.blocks.eachAt(entry, (tile, i) => {
    const y = tile.instances![i * 8 + 2]!;
    if (direction > 0 ? y > from && (!best || y < best.y) : y < from && (!best || y > best.y)) best = { tile, i, y };
  });
  const found = best as { tile: import("./blocks").Tile; i: number } | null;
  if (found) app.reveal(track, track.recording.blocks.at(found.tile, found.i));
  else app.say(direction > 0 ? "There is no block above." : "There is no block below.");
}

export function handleKey(app: App, e: KeyboardEvent): void {
  const target = e.target as HTMLElement;
  if (e.defaultPrevented || e.altKey) return;
  if (document.querySelector("dialog[open]")) {
    if (e.key === "?") app.help();
    return;
  }
  if ((e.ctrlKey || e.metaKey) && e.key.toLowerCase() === "o") {
    e.preventDefault();
    app.openFileDialog();
    return;
  }
  if (e.ctrlKey || e.metaKey) return;
  const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
  if (isField) return;
  const isButton = /^(BUTTON|A|SUMMARY)$/.test(target.tagName) || target.getAttribute("role") === "tab";
  const isView = target === document.body || target.classList.contains("canvas") || target.tagName === "HTML";
  const map = (app.tracks[app.active] ?? app.tracks[0]!).map;
  const pan = (share: number): void => {
    app.axis.pan(share * app.axis.width);
    app.moved();
  };
  const zoom = (factor: number): void => {
    const inside = app.cursor >= app.axis.x0 && app.cursor <= app.axis.x1;
    app.axis.zoom(inside ? app.cursor : (app.axis.x0 + app.axis.x1) / 2, factor);
    app.moved();
  };
  const zoomY = (factor: number): void => {
    const b = app.selected?.block;
    map.zoomY(b && b.y >= map.y0 && b.y <= map.y1 ? b.y : (map.y0 + map.y1) / 2, factor);
    app.moved();
  };
  const step = (n: number): void => app.jump(app.tracks[0]!, Math.max(0, Math.floor(app.cursor) + n));
  switch (e.key) {
    case "ArrowLeft":
    case "a":
      if (!isView && e.key !== "a") return;
      pan(-0.1);
      break;
    case "ArrowRight":
    case "d":
      if (!isView && e.key !== "d") return;
      pan(0.1);
      break;
    case "ArrowUp":
      if (!isView) return;
      if (e.shiftKey) zoomY(0.8);
      else {
        map.panY(0.1 * (map.y1 - map.y0));
        app.moved();
      }
      break;
    case "ArrowDown":
      if (!isView) return;
      if (e.shiftKey) zoomY(1.25);
      else {
        map.panY(-0.1 * (map.y1 - map.y0));
        app.moved();
      }
      break;
    case "+":
    case "=":
    case "w":
      zoom(0.7);
      break;
    case "-":
    case "_":
    case "s":
      zoom(1 / 0.7);
      break;
    case "0":
    case "Home":
      app.showAll();
      break;
    case "f":
      if (app.selected) {
        const { track, block } = app.selected;
        const from = app.axis.fromOwn(track.recording, block.x0);
        const to = app.axis.fromOwn(track.recording, block.x1);
        app.axis.show(from - (to - from) * 0.5, to + (to - from) * 0.5);
        track.map.showY(block.y - block.units * 2, block.y + block.units * 3);
        app.moved();
      }
      break;
    case ",":
      step(-1);
      break;
    case ".":
      step(1);
      break;
    case "<":
      step(-100);
      break;
    case ">":
      step(100);
      break;
    case "p": {
      const track = app.tracks[app.active] ?? app.tracks[0]!;
      app.jump(track, track.recording.info.peak.allocated_entry ?? 0);
      break;
    }
    case "o":
      nextMark(app, "oom", 1);
      break;
    case "O":
      nextMark(app, "oom", -1);
      break;
    case "h":
      nextMark(app, "phase", 1);
      break;
    case "H":
      nextMark(app, "phase", -1);
      break;
    case "j":
      neighbour(app, -1);
      break;
    case "k":
      neighbour(app, 1);
      break;
    case "Enter":
      if (isButton || !isView) return;
      if (app.selected) app.setTab("block", true);
      else neighbour(app, 1);
      break;
    case "[":
      app.side.sameStack(-1);
      break;
    case "]":
      app.side.sameStack(1);
      break;
    case "m":
      if (app.selected) {
        const { track, block } = app.selected;
        app.markedStack = app.markedStack ? null : { track, stack: block.stack };
        app.side.update();
        app.invalidate();
      }
      break;
    case "n":
      app.side.nextFound(1);
      break;
    case "N":
      app.side.nextFound(-1);
      break;
    case "/":
      document.querySelector<HTMLElement>(".search")?.focus();
      break;
    case "Escape":
      if (app.markedStack) {
        app.markedStack = null;
        app.side.update();
        app.invalidate();
      } else if (app.selected) app.select(null);
      else {
        app.pickedBand = null;
        app.search("");
      }
      break;
    case "c": {
      const kinds = KINDS.filter((kind) => app.recordings[0]!.groups.has(kind));
      app.setBy(kinds[(kinds.indexOf(app.by) + 1) % kinds.length]!);
      app.say(`By ${app.by}`);
      break;
    }
    case "x":
      app.showsCause = !app.showsCause;
      app.invalidate();
      break;
    case "e":
      app.exportSvg();
      break;
    case "l":
      void app.copyLink();
      break;
    case "t":
      app.toggleTheme();
      break;
    case "?":
      app.help();
      break;
    default: {
      const tab = /^[1-9]$/.test(e.key) ? app.side.tabs()[Number(e.key) - 1] : undefined;
      if (!tab) return;
      app.setTab(tab.name, true);
    }
  }
  e.preventDefault();
}
