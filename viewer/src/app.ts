// The page around the views: what is shown, what is selected, and how input changes it.
import { Axis, type Align } from "./axis";
import { columnOf } from "./bands";
import { NO_POOL, UNIT, keyOf, type Block, type Tile } from "./blocks";
import { makeColoring, type Coloring } from "./coloring";
import { DARK, LIGHT, type Theme } from "./colors";
import type { ViewData } from "./data";
import { button, fill, h, save, type Child } from "./dom";
import { explained } from "./explain";
import { address, bytes, bytesWithExact, count, duration, plural, range } from "./format";
import { handleKey, helpOverlay } from "./keys";
import { legend } from "./legend";
import { decodeState, encodeState, fileName, type ViewState } from "./link";
import { MapView } from "./map";
import { COUNTER_NAMES, COUNTERS, MemoryView } from "./memory";
import { MomentView } from "./moment";
import { Recording } from "./recording";
import { Ruler } from "./ruler";
import { parseQuery, QueryError } from "./search";
import { Side } from "./side";
import { splitter } from "./splitter";
import { writeSvg } from "./svg";
import { toolbar } from "./toolbar";

// A recording and the views of it.
export class Track {
  map!: MapView;
  memory!: MemoryView;
  coloring!: Coloring;

  constructor(
    readonly recording: Recording,
    readonly label: string,
    readonly isWhatif: boolean,
  ) {}

  colorOf(coloring: Coloring, tile: Tile, i: number): string {
    const key = keyOf(coloring.by, tile, i);
    return coloring.palette[coloring.places[key] ?? coloring.palette.length - 1] ?? "#888888";
  }
}

export interface Selection {
  track: Track;
  block: Block;
}

export interface Found {
  count: number;
  bytes: number;
  error: string | null;
}

export class App {
  readonly root: HTMLElement;
  readonly recordings: Recording[] = [];
  readonly tracks: Track[] = [];
  axis!: Axis;
  by = "stack";
  cursor = 0;
  active = 0; // the track of the cursor
  selected: Selection | null = null;
  markedStack: { track: Track; stack: number } | null = null;
  pickedBand: { track: Track; band: number } | null = null;
  query = "";
  found: Found[] = [];
  hasFilter = false;
  filterVersion = 0;
  colorVersion = 0;
  tab = "overview";
  showsCause = true;
  counters = new Set(["allocated", "reserved"]);
  themeChoice = ""; // "", "light" or "dark"
  theme: Theme = LIGHT;
  gutter = 64;
  plotWidth = 100;
  memoryTop = 1;
  frames: number[] = []; // how long the last frames took, in ms
  firstPicture = 0; // when the first complete picture was there, in ms since the navigation
  error: string | null = null;

  private stage = h("section", { class: "stage", "aria-label": "Views" });
  private lanes = h("div", { class: "lanes" });
  private hoverLine = h("div", { class: "hairline hover", hidden: true });
  private cursorLine = h("div", { class: "hairline cursor" });
  private tip = h("div", { class: "tip", role: "tooltip", hidden: true });
  private status = h("div", { id: "weir-status", class: "status", role: "status", "aria-live": "polite" });
  private footer = h("footer", { class: "foot" });
  private facts = h("span", { class: "muted" });
  private progressBar = h("div", { class: "progress", hidden: true }, h("div", {}));
  private legendRow = h("div", { class: "legend", role: "group", "aria-label": "Groups and counters" });
  private bar: { root: HTMLElement; update(): void };
  readonly side: Side;
  private ruler!: Ruler;
  private moment!: MomentView;
  private isDirty = false;
  private isSized = false;
  private lastMove = 0;
  private lastFrame = 0;
  private linkTimer = 0;
  private isDestroyed = false;
  private observer: ResizeObserver;
  private systemTheme = window.matchMedia("(prefers-color-scheme: dark)");

  constructor(
    container: HTMLElement,
    readonly data: ViewData,
    readonly host: {
      openFile(file: File): void;
      loadRecording(): void; // that of the page
      whatif: import("./whatif").WhatifState;
    },
  ) {
    const state = decodeState(location.hash);
    this.applyTheme(state.theme ?? "");
    this.addRecordings(data, false);
    this.axis = new Axis(this.recordings);
    this.by = state.by && this.recordings[0]!.groups.has(state.by) ? state.by : this.bestGrouping();
    this.recolor();
    this.bar = toolbar(this);
    this.side = new Side(this);
    this.root = h(
      "div",
      { class: "app" },
      this.bar.root,
      this.progressBar,
      h(
        "main",
        {},
        this.stage,
        splitter("side", "Width of the panel", () => this.resized()),
        this.side.root,
      ),
      this.footer,
      this.tip,
    );
    fill(this.footer, this.status, this.facts);
    fill(container, this.root);
    this.build();
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.stage);
    this.observer.observe(this.legendRow);
    this.systemTheme.addEventListener("change", this.onSystemTheme);
    document.addEventListener("keydown", this.onKey);
    window.addEventListener("hashchange", this.onHash);
    document.title = `${this.tracks.map((t) => t.label).join(" and ")} – Weir`;
    void this.start(state);
  }

  private onSystemTheme = (): void => {
    if (this.themeChoice === "") this.applyTheme("");
  };
  private onKey = (e: KeyboardEvent): void => handleKey(this, e);
  private onHash = (): void => {
    if (location.hash.slice(1) !== encodeState(this.state())) void this.restore(decodeState(location.hash));
  };

  private addRecordings(data: ViewData, isWhatif: boolean): void {
    for (const info of data.index.recordings) {
      const r = new Recording(
        data,
        info,
        () => this.numbersChanged(),
        (error) => this.fail(error),
      );
      this.recordings.push(r);
      const label = info.setting_label ?? info.name;
      this.tracks.push(new Track(r, label, isWhatif));
    }
  }

  // The first kind of group that tells blocks apart.
  private bestGrouping(): string {
    const groups = this.recordings[0]!.info.groups;
    return (
      (groups.find((g) => g.by === "stack" && g.names.length > 1) ?? groups.find((g) => g.by === "size") ?? groups[0])
        ?.by ?? "size"
    );
  }

  private async start(state: Partial<ViewState>): Promise<void> {
    this.progress(null, "Reading the recording");
    try {
      await Promise.all(this.recordings.map((r) => r.start(this.by)));
    } catch (error) {
      this.fail(error);
      return;
    }
    const x = explained(this.recordings[0]!);
    this.recolor();
    this.cursor = x?.isOom ? x.entry : (this.recordings[0]!.info.peak.allocated_entry ?? 0);
    if (x?.isOom && !state.tab) this.tab = "cause";
    await this.restore(state);
    this.resized();
    this.drawNow();
    this.firstPicture = performance.now();
    document.documentElement.dataset.ready = "true";
    await this.loadRest();
  }

  private async loadRest(): Promise<void> {
    try {
      for (const r of this.recordings) {
        await r.loadRest((tiles) => {
          if (this.isDestroyed) return;
          const map = this.tracks.find((t) => t.recording === r)?.map;
          for (const tile of tiles) map?.add(tile);
          this.scheduleRefine();
          const loaded = this.recordings.reduce((sum, one) => sum + one.blocks.loaded, 0);
          const stored = this.recordings.reduce((sum, one) => sum + one.blocks.stored, 0);
          this.progress(loaded / Math.max(1, stored), `Reading blocks: ${count(loaded)} of ${count(stored)}`);
        });
        if (this.isDestroyed) return;
      }
    } catch (error) {
      this.fail(error);
    }
    this.progress(1, "Press ? for keys and gestures.");
    this.countFound();
    this.side.update();
    document.documentElement.dataset.loaded = "true";
  }

  // Adds the picture of a what-if below the one that is there, in place of the last one.
  async showWhatif(data: ViewData): Promise<void> {
    while (this.tracks.length > 1) {
      const track = this.tracks.pop()!;
      this.recordings.pop();
      track.map.destroy();
      track.memory.destroy();
    }
    const window = [this.axis.x0, this.axis.x1] as const;
    this.addRecordings(data, true);
    this.recolor();
    this.build();
    await Promise.all(this.recordings.slice(1).map((r) => r.start(this.by)));
    this.recolor();
    if (this.recordings.every((r) => r.times)) this.axis.align = "time";
    else this.axis.align = "progress";
    this.axis.show(window[0], window[1]);
    this.search(this.query);
    this.resized();
    this.drawNow();
    performance.mark("weir-whatif-drawn");
    await this.loadRest();
  }

  // Puts the views into the stage. Called again if the number of recordings changes.
  private build(): void {
    fill(this.lanes);
    this.ruler = new Ruler(this);
    for (const track of this.tracks) {
      track.memory ??= new MemoryView(this, track);
      track.map ??= new MapView(this, track);
    }
    const name = (track: Track): Child => this.tracks.length > 1 && h("div", { class: "lane-name" }, track.label);
    this.lanes.append(
      ...this.tracks.map((t) => h("div", { class: "lane memory-lane" }, name(t), t.memory.root)),
      splitter("memory", "Height of memory over time", () => this.resized()),
      this.ruler.root,
      ...this.tracks.map((t) => h("div", { class: "lane map-lane" }, name(t), t.map.root)),
    );
    this.moment = new MomentView(this);
    fill(
      this.stage,
      this.legendRow,
      h("div", { class: "time-views" }, this.lanes, this.hoverLine, this.cursorLine),
      splitter("moment", "Height of the segments at the cursor", () => this.resized()),
      this.moment.root,
    );
    this.stage.classList.toggle("two", this.tracks.length > 1);
  }

  // ---- Drawing ----

  invalidate(): void {
    if (this.isDirty || this.isDestroyed) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      if (!this.isDestroyed) this.drawNow();
    });
  }

  // A level of the counters or groups was loaded, so figures may be more exact.
  private isSideOld = false;
  private numbersChanged(): void {
    this.isSideOld = true;
    this.invalidate();
  }

  // The window moved: draw now, and refine when it stands still. What the pointer is on is another thing then, and is
  // described when the pointer moves.
  moved(): void {
    this.leave();
    this.touch();
    this.invalidate();
    this.saveLink();
  }

  // The window is moving: do not refine yet.
  touch(): void {
    this.lastMove = performance.now();
  }

  resized(): void {
    this.isSized = false;
    this.invalidate();
  }

  private measure(): void {
    this.isSized = true;
    const area = this.tracks[0]!.map.area;
    this.gutter = area.clientWidth < 560 ? 48 : 64;
    this.plotWidth = Math.max(10, area.clientWidth - this.gutter);
    for (const track of this.tracks) {
      track.map.resize();
      track.memory.resize();
    }
    this.ruler.resize();
    this.moment.resize();
  }

  drawNow(): void {
    const began = performance.now();
    if (began - this.lastFrame < 250 && began - this.lastMove < 50)
      for (const track of this.tracks) track.map.adapt(began - this.lastFrame);
    this.lastFrame = began;
    this.isDirty = false;
    if (!this.isSized) this.measure();
    let top = 1;
    for (const r of this.recordings) {
      const x = explained(r);
      top = Math.max(
        top,
        r.info.peak.reserved ?? 0,
        r.info.peak.allocated ?? 0,
        r.info.peak.reserved === null ? r.info.height * UNIT : 0,
      );
      if (x?.isOom && x.limit && x.limit < top * 1.5) top = Math.max(top, x.limit);
    }
    this.memoryTop = top * 1.06;
    for (const track of this.tracks) {
      track.memory.draw();
      track.map.draw();
    }
    this.ruler.draw();
    this.moment.track = this.tracks[this.active] ?? this.tracks[0]!;
    this.moment.draw();
    this.placeCursor();
    this.bar.update();
    legend(this, this.legendRow);
    this.updateFacts();
    if (this.isSideOld) {
      this.isSideOld = false;
      this.side.update();
    }
    this.frames.push(performance.now() - began);
    if (this.frames.length > 2000) this.frames.splice(0, 1000);
    this.scheduleRefine();
  }

  private isRefining = false;

  private scheduleRefine(): void {
    if (this.isRefining || this.tracks.every((t) => t.map.isRefined)) return;
    this.isRefining = true;
    requestAnimationFrame(() => {
      this.isRefining = false;
      if (this.isDestroyed || this.isDirty) return;
      if (performance.now() - this.lastMove < 150) {
        this.scheduleRefine();
        return;
      }
      for (const track of this.tracks) track.map.refine();
      this.updateFacts();
      this.scheduleRefine();
    });
  }

  private updateFacts(): void {
    const parts: string[] = [];
    const one = this.tracks[this.active] ?? this.tracks[0]!;
    const b = one.recording.blocks;
    const hidden = b.total - b.stored;
    if (hidden > 0)
      parts.push(
        `${plural(hidden, "small block")} of at most ${bytes(one.recording.info.blocks.hidden_bytes_max)} each ${hidden === 1 ? "is" : "are"} hidden (grey shade)`,
      );
    if (one.recording.info.dropped > 0)
      parts.push(`${plural(one.recording.info.dropped, "older entry", "older entries")} dropped`);
    this.facts.textContent = parts.join(" · ");
  }

  private placeCursor(): void {
    const x = ((Math.floor(this.cursor) + 0.5 - this.axis.x0) / this.axis.width) * this.plotWidth;
    this.cursorLine.hidden = x < 0 || x > this.plotWidth;
    this.cursorLine.style.transform = `translateX(${this.gutter + x}px)`;
  }

  progress(fraction: number | null, what: string): void {
    this.progressBar.hidden = fraction === 1;
    this.progressBar.classList.toggle("unknown", fraction === null);
    const inner = this.progressBar.firstElementChild as HTMLElement;
    inner.style.width = `${Math.round((fraction ?? 0.3) * 100)}%`;
    if (what || fraction === 1) this.say(what);
  }

  say(text: string): void {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // A message that the reader closes.
  notice(text: string): void {
    this.progress(1, text);
    const box = h("div", { class: "error", role: "alert" }, text, " ");
    box.append(button("Close", () => (box.remove(), this.resized())));
    this.root.insertBefore(box, this.root.children[1] ?? null);
    this.resized();
  }

  // The figures of each recording, as they are shown.
  figures(): unknown {
    return this.tracks.map((t) => ({
      label: t.label,
      entries: t.recording.info.entries,
      peak: t.recording.info.peak,
      ooms: t.recording.info.ooms,
      blocks: { total: t.recording.blocks.total, stored: t.recording.blocks.stored, loaded: t.recording.blocks.loaded },
      allocated: this.counterAt(t, "allocated", this.entryOf(t)),
      reserved: this.counterAt(t, "reserved", this.entryOf(t)),
      entry: this.entryOf(t),
      drawn: t.map.drawn,
      usesWebGL: t.map.usesWebGL,
      isRefined: t.map.isRefined,
    }));
  }

  // Where an entry and an address are on the screen, or null if they are outside.
  pixelOf(entry: number, at: number, number: number): { x: number; y: number } | null {
    const track = this.tracks[number];
    const unit = track?.recording.yOf(at);
    if (!track || unit === null || unit === undefined) return null;
    const r = track.map.area.getBoundingClientRect();
    const x = ((this.axis.fromOwn(track.recording, entry) - this.axis.x0) / this.axis.width) * this.plotWidth;
    return { x: r.left + this.gutter + x, y: r.top + track.map.pixelY(unit) };
  }

  fail(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    if (this.error === null) {
      this.error = text;
      this.root.prepend(h("div", { class: "error", role: "alert" }, h("b", {}, "The data is damaged. "), text));
    }
    this.progressBar.hidden = true;
    this.say(text);
    document.documentElement.dataset.ready = "true";
  }

  // ---- Positions ----

  // The position on the axis of a pixel in a view.
  axisAt(px: number): number {
    return this.axis.x0 + ((px - this.gutter) / this.plotWidth) * this.axis.width;
  }

  // The cursor as an entry of a recording.
  entryOf(track: Track): number {
    const own = Math.floor(
      this.axis.toOwn(track.recording, Math.floor(this.cursor) + (track === this.tracks[0] ? 0 : 0.5)),
    );
    return Math.max(0, Math.min(track.recording.info.entries - 1, own));
  }

  // The values of a counter after an entry: a range where a column has several entries. Null while they load.
  counterAt(track: Track, name: string, entry: number): [number, number] | null {
    const k = track.recording.info.counters.names.indexOf(name);
    const level = track.recording.counters.finest();
    if (!level || k < 0) return null;
    const column = Math.min(level.columns - 1, Math.floor(entry / level.span));
    return [level.values[2 * k * level.columns + column]!, level.values[(2 * k + 1) * level.columns + column]!];
  }

  timeText(track: Track, entry: number): string {
    const t = track.recording.timeOf(entry);
    return t ? range(t[0], t[1], duration) : "not recorded";
  }

  counterColor(name: string): string {
    const t = this.theme;
    return name === "allocated"
      ? t.allocated
      : name === "reserved"
        ? t.reserved
        : name === "largest_hole"
          ? t.hole
          : t.pending;
  }

  // ---- Input ----

  setCursor(axis: number, track: Track): void {
    this.cursor = Math.max(0, Math.min(this.axis.length - 1, axis));
    this.active = Math.max(0, this.tracks.indexOf(track));
    this.describeCursor();
    this.side.update();
    this.invalidate();
    this.saveLink();
  }

  private describeCursor(): void {
    const track = this.tracks[this.active]!;
    const entry = this.entryOf(track);
    const a = this.counterAt(track, "allocated", entry);
    const r = this.counterAt(track, "reserved", entry);
    this.say(
      `After entry ${count(entry)} (${this.timeText(track, entry)}): ` +
        (a && r ? `${range(a[0], a[1], bytes)} in use, ${range(r[0], r[1], bytes)} reserved` : "loading"),
    );
  }

  clickMap(track: Track, axis: number, y: number, keepsCursor = false): void {
    const own = keepsCursor ? this.entryOf(track) : Math.floor(this.axis.toOwn(track.recording, axis));
    const block = track.recording.blocks.pick(own, Math.floor(y));
    if (!keepsCursor) this.cursor = Math.max(0, Math.min(this.axis.length - 1, axis));
    this.active = this.tracks.indexOf(track);
    this.select(block ? { track, block } : null, !!block);
    if (!block) this.describeCursor();
  }

  select(selection: Selection | null, opensTab = true): void {
    this.selected = selection;
    this.markedStack = null;
    if (selection) {
      if (opensTab) this.tab = "block";
      const b = selection.block;
      this.say(
        `Selected: ${bytes(b.requested)}, ${selection.track.recording.title(b.stack) || "no stack recorded"}, entries ${count(b.x0)} to ${count(b.x1)}`,
      );
    } else if (this.tab === "block") this.tab = "overview";
    this.side.update();
    this.invalidate();
    this.saveLink();
  }

  // Selects a block and brings it into the window if it is outside or too small to see.
  reveal(track: Track, block: Block): void {
    const from = this.axis.fromOwn(track.recording, block.x0);
    const to = this.axis.fromOwn(track.recording, block.x1);
    const map = track.map;
    const pixels = ((to - from) / this.axis.width) * this.plotWidth;
    if (to < this.axis.x0 || from > this.axis.x1 || pixels < 8) {
      const width = Math.max(8, Math.min(this.axis.length, pixels < 8 ? (to - from) * 12 : this.axis.width));
      this.axis.show((from + to - width) / 2, (from + to + width) / 2);
    }
    const tall = (block.units / (map.y1 - map.y0)) * map.area.clientHeight;
    if (block.y + block.units < map.y0 || block.y > map.y1 || tall < 4) {
      const size = tall < 4 ? block.units * 24 : map.y1 - map.y0;
      map.showY(block.y + block.units / 2 - size / 2, block.y + block.units / 2 + size / 2);
    }
    const own = this.entryOf(track);
    if (own < block.x0 || own >= block.x1) this.cursor = from;
    this.active = this.tracks.indexOf(track);
    this.select({ track, block });
    this.moved();
  }

  // Moves the cursor to an entry of a recording, and the window if it is outside.
  jump(track: Track, entry: number): void {
    const x = this.axis.fromOwn(track.recording, entry);
    if (x < this.axis.x0 || x >= this.axis.x1) this.axis.show(x - this.axis.width / 2, x + this.axis.width / 2);
    this.setCursor(x, track);
    this.moved();
  }

  showAll(): void {
    this.axis.reset();
    for (const track of this.tracks) track.map.resetY();
    this.moved();
  }

  setBy(by: string): void {
    this.by = by;
    this.pickedBand = null;
    this.recolor();
    this.search(this.query);
    this.side.update();
    this.saveLink();
  }

  setTab(tab: string, focus = false): void {
    this.tab = tab;
    this.side.update();
    if (focus) this.side.focus();
    this.invalidate();
    this.saveLink();
  }

  setAlign(align: Align): void {
    const share = [this.axis.x0 / this.axis.length, this.axis.x1 / this.axis.length] as const;
    this.axis.align = align;
    this.axis.show(share[0] * this.axis.length, share[1] * this.axis.length);
    this.moved();
  }

  toggleCounter(name: string): void {
    if (!this.counters.delete(name)) this.counters.add(name);
    this.invalidate();
    this.saveLink();
  }

  recolor(): void {
    const colorings = makeColoring(this.recordings, this.by, this.theme);
    this.tracks.forEach((track, i) => (track.coloring = colorings[i]!));
    this.colorVersion++;
  }

  applyTheme(choice: string): void {
    this.themeChoice = choice === "light" || choice === "dark" ? choice : "";
    const isDark = this.themeChoice ? this.themeChoice === "dark" : this.systemTheme.matches;
    this.theme = isDark ? DARK : LIGHT;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    if (this.tracks.length > 0) {
      this.recolor();
      this.moment.invalidate();
      this.side.update();
      this.invalidate();
      this.saveLink();
    }
  }

  toggleTheme(): void {
    this.applyTheme(this.theme.isDark ? "light" : "dark");
  }

  // Shows only the blocks of a band of the legend, or all again.
  pickBand(track: Track, band: number): void {
    const same = this.pickedBand?.track === track && this.pickedBand.band === band;
    this.pickedBand = same ? null : { track, band };
    this.search(this.query);
    this.say(same ? "All groups" : `Only ${track.coloring.names[band] ?? ""}`);
  }

  dimBand(track: Track, band: number): boolean {
    const picked = this.pickedBand;
    if (!picked) return false;
    return picked.track.coloring.names[picked.band] !== track.coloring.names[band];
  }

  search(query: string): void {
    this.query = query;
    this.filterVersion++;
    const picked = this.pickedBand;
    const name = picked ? picked.track.coloring.names[picked.band] : null;
    this.hasFilter = false;
    this.found = this.tracks.map((track) => {
      let error: string | null = null;
      let filter = null;
      try {
        filter = parseQuery(query, track.recording);
      } catch (e) {
        if (!(e instanceof QueryError)) throw e;
        error = e.message;
      }
      if (name !== null) {
        const words = filter;
        const { by, bands, names } = track.coloring;
        const band = names.indexOf(name ?? "");
        filter = {
          matches: (tile: Tile, i: number) =>
            (bands[keyOf(by, tile, i)] ?? 255) === band && (!words || words.matches(tile, i)),
        };
      }
      if (filter) this.hasFilter = true;
      track.recording.blocks.setFilter(filter);
      return { count: 0, bytes: 0, error };
    });
    this.countFound();
    this.side.update();
    this.invalidate();
    this.saveLink();
  }

  private countFound(): void {
    this.tracks.forEach((track, k) => {
      const found = this.found[k];
      if (!found) return;
      found.count = 0;
      found.bytes = 0;
      if (!this.hasFilter) return;
      for (const tile of track.recording.blocks.tiles)
        if (tile.match)
          for (let i = 0; i < tile.info.count; i++)
            if (tile.match[i]) {
              found.count++;
              found.bytes += tile.instances![i * 8 + 3]! * UNIT - tile.slack![i]!;
            }
    });
  }

  // ---- Hover ----

  leave(): void {
    this.tip.hidden = true;
    this.hoverLine.hidden = true;
  }

  private showTip(area: HTMLElement, x: number, y: number, ...content: Child[]): void {
    fill(this.tip, ...content);
    this.tip.hidden = false;
    const r = area.getBoundingClientRect();
    const w = this.tip.offsetWidth;
    const tall = this.tip.offsetHeight;
    let left = r.left + x + 14;
    let top = r.top + y + 14;
    if (left + w > window.innerWidth - 6) left = Math.max(4, r.left + x - w - 12);
    if (top + tall > window.innerHeight - 6) top = Math.max(4, r.top + y - tall - 12);
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }

  private hoverAt(x: number): boolean {
    this.hoverLine.hidden = x < this.gutter;
    this.hoverLine.style.transform = `translateX(${Math.round(x)}px)`;
    if (x < this.gutter) this.tip.hidden = true;
    return x >= this.gutter;
  }

  hoverMap(track: Track, x: number, y: number, axis: number, unit: number): void {
    if (!this.hoverAt(x)) return;
    const entry = Math.floor(this.axis.toOwn(track.recording, axis));
    this.showTip(track.map.area, x, y, ...this.describeAt(track, entry, Math.floor(unit)));
  }

  hoverMoment(track: Track, e: MouseEvent, unit: number): void {
    const r = this.moment.area.getBoundingClientRect();
    this.showTip(
      this.moment.area,
      e.clientX - r.left,
      e.clientY - r.top,
      ...this.describeAt(track, this.moment.entry, unit),
    );
  }

  // What lies at a point: a block, a hole, or nothing.
  private describeAt(track: Track, entry: number, y: number): Child[] {
    const r = track.recording;
    const at = h(
      "div",
      { class: "muted" },
      `entry ${count(Math.max(0, entry))} · ${this.timeText(track, entry)} · ${address(r.addressOf(Math.max(0, y)))}`,
    );
    const block = r.blocks.pick(entry, y);
    if (block) {
      const title = r.title(block.stack);
      return [
        h("b", {}, bytesWithExact(block.requested)),
        block.stack !== 0 && title ? h("div", { class: "clip" }, title) : null,
        h(
          "div",
          {},
          `${this.streamName(track, block)} · ${this.poolName(track, block.pool)}${this.phaseName(track, block)}`,
        ),
        h("div", {}, `alive ${plural(block.x1 - block.x0, "entry", "entries")}${block.isAlive ? ", to the end" : ""}`),
        entry >= block.x1 - block.pending ? h("div", {}, "freed, and waiting for other streams") : null,
        at,
      ];
    }
    const segment = r.segmentAt(entry, y);
    if (segment < 0) return [h("b", {}, "Not reserved"), at];
    const s = r.segments!;
    return [
      h(
        "b",
        {},
        r.blocks.isComplete && r.blocks.isLoaded
          ? "No block: free memory, or the rest of a block that was not split"
          : "Free, or a hidden block",
      ),
      h("div", {}, `in a segment of ${bytes(s.units[segment]! * UNIT)}, ${this.poolName(track, s.pool[segment]!)}`),
      at,
    ];
  }

  streamName(track: Track, block: Block): string {
    return track.recording.info.streams[block.stream]?.name ?? "stream not known";
  }

  poolName(track: Track, pool: number): string {
    return pool === NO_POOL ? "pool not known" : (track.recording.info.pools[pool]?.name ?? "pool not known");
  }

  private phaseName(track: Track, block: Block): string {
    const phase = track.recording.info.phases[block.phase];
    return phase ? ` · ${phase}` : "";
  }

  hoverMemory(track: Track, x: number, y: number, axis: number): void {
    if (!this.hoverAt(x)) return;
    const entry = Math.max(
      0,
      Math.min(track.recording.info.entries - 1, Math.floor(this.axis.toOwn(track.recording, axis))),
    );
    const band = track.memory.bandAt(axis, y);
    const group = track.recording.groups.get(this.by);
    const bands = track.memory.bands();
    const rows: Child[] = [];
    if (band >= 0 && group && bands) {
      const column = columnOf(bands, entry);
      const value = bands.values[band * bands.columns + column] ?? 0;
      rows.push(
        h("b", {}, h("i", { class: "swatch", style: `background:${track.coloring.colors[band]}` }), ` ${bytes(value)}`),
        h("div", { class: "clip" }, group.info.names[band] || "(none)"),
        bands.span > 1
          ? h(
              "div",
              { class: "muted" },
              `when the most was in use among entries ${count(column * bands.span)} to ${count(Math.min(track.recording.info.entries, (column + 1) * bands.span) - 1)}`,
            )
          : null,
      );
    }
    for (const name of COUNTERS) {
      const v = this.counterAt(track, name, entry);
      if (v && (this.counters.has(name) || v[1] > 0))
        rows.push(h("div", {}, `${range(v[0], v[1], bytes)} ${COUNTER_NAMES[name]}`));
    }
    rows.push(h("div", { class: "muted" }, `entry ${count(entry)} · ${this.timeText(track, entry)}`));
    this.showTip(track.memory.area, x, y, ...rows);
  }

  hoverRuler(x: number, y: number, axis: number): void {
    if (!this.hoverAt(x)) return;
    const track = this.tracks[0]!;
    const phase = this.ruler.phaseAt(axis);
    const near = track.recording.info.marks.find(
      (m) => m.kind !== "phase" && Math.abs(((m.entry - axis) / this.axis.width) * this.plotWidth) < 5,
    );
    this.showTip(
      this.ruler.root,
      x,
      y,
      near
        ? h(
            "b",
            {},
            `${near.kind === "oom" ? "Out of memory" : near.name}${near.bytes ? `: ${bytesWithExact(near.bytes)}` : ""}`,
          )
        : null,
      phase ? h("div", {}, phase.name || "(no phase)") : null,
      h(
        "div",
        { class: "muted" },
        `entry ${count(Math.max(0, Math.floor(axis)))} · ${this.timeText(track, Math.floor(axis))}`,
      ),
    );
  }

  // ---- Links and files ----

  state(): ViewState {
    const selected = this.selected;
    return {
      x0: this.axis.x0,
      x1: this.axis.x1,
      y: this.tracks.map((t) => [t.map.y0, t.map.y1] as [number, number]),
      cursor: this.cursor,
      by: this.by,
      query: this.query,
      tab: this.tab,
      align: this.axis.align,
      selected: selected
        ? { track: this.tracks.indexOf(selected.track), x0: selected.block.x0, y: selected.block.y }
        : null,
      theme: this.themeChoice,
      counters: [...this.counters],
    };
  }

  private async restore(s: Partial<ViewState>): Promise<void> {
    if (s.align === "time" || s.align === "progress" || s.align === "entries") this.axis.align = s.align;
    if (s.by && this.recordings[0]!.groups.has(s.by) && s.by !== this.by) {
      this.by = s.by;
      this.recolor();
    }
    if (s.x0 !== undefined && s.x1 !== undefined) this.axis.show(s.x0, s.x1);
    else this.axis.reset();
    s.y?.forEach((pair, i) => {
      if (pair) this.tracks[i]?.map.showY(pair[0], pair[1]);
    });
    if (s.cursor !== undefined) this.cursor = Math.max(0, Math.min(this.axis.length - 1, s.cursor));
    if (s.counters) this.counters = new Set(s.counters.filter((c) => COUNTERS.includes(c)));
    if (s.theme !== undefined && s.theme !== this.themeChoice) this.applyTheme(s.theme);
    if (s.query !== undefined || this.query !== "") this.search(s.query ?? "");
    if (s.selected) {
      const track = this.tracks[s.selected.track];
      const { x0, y } = s.selected;
      if (track) {
        for (const tile of track.recording.blocks.tiles)
          if (x0 >= tile.from && x0 < tile.to) await track.recording.blocks.load(tile);
        const block = track.recording.blocks.pick(x0, y);
        if (block) this.selected = { track, block };
      }
    }
    if (s.tab) this.tab = s.tab;
    this.side.update();
    this.moved();
  }

  // Writes the view into the address of the page, a moment after the last change.
  private saveLink(): void {
    window.clearTimeout(this.linkTimer);
    this.linkTimer = window.setTimeout(() => {
      if (this.isDestroyed) return;
      try {
        history.replaceState(null, "", `#${encodeState(this.state())}`);
      } catch {
        // Some browsers limit how often, and some do not allow it for files.
      }
    }, 250);
  }

  link(): string {
    return `${location.href.split("#")[0]}#${encodeState(this.state())}`;
  }

  async copyLink(): Promise<void> {
    const link = this.link();
    history.replaceState(null, "", `#${encodeState(this.state())}`);
    try {
      await navigator.clipboard.writeText(link);
      this.say("The link to this view is copied.");
    } catch {
      this.say("The address of this page is now the link to this view.");
    }
  }

  exportSvg(): string {
    const svg = writeSvg(this);
    const name = fileName(
      this.tracks.map((t) => t.label),
      this.state(),
      "svg",
    );
    save(name, svg, "image/svg+xml");
    this.say(`Saved as ${name}`);
    return svg;
  }

  help(): void {
    helpOverlay(this.root);
  }

  finish(): void {
    for (const track of this.tracks) track.map.finish();
  }

  openFileDialog(): void {
    const input = h("input", { type: "file" });
    input.addEventListener("change", () => {
      const file = input.files?.[0];
      if (file) this.host.openFile(file);
    });
    input.click();
  }

  destroy(): void {
    this.isDestroyed = true;
    this.observer.disconnect();
    this.systemTheme.removeEventListener("change", this.onSystemTheme);
    document.removeEventListener("keydown", this.onKey);
    window.removeEventListener("hashchange", this.onHash);
    window.clearTimeout(this.linkTimer);
    for (const track of this.tracks) track.map.destroy();
    this.root.remove();
  }
}
