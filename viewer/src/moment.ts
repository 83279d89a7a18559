// The third view: the segments at the moment of the cursor, with their blocks, holes, pins and pending frees. Segments
// are bars in the order of their addresses, wrapped into rows; a byte has the same width everywhere.
import type { App, Track } from "./app";
import { UNIT, WORDS, type Tile } from "./blocks";
import { h } from "./dom";
import { explained } from "./explain";
import { bytes, count, plural, range } from "./format";

interface Placed {
  segment: number;
  x: number;
  y: number;
  width: number;
  from: number; // the units of the segment that this row shows
  to: number;
}

export class MomentView {
  readonly root: HTMLElement;
  readonly area: HTMLElement;
  private title = h("span", { class: "pane-title" });
  private canvas = h("canvas", { "aria-hidden": "true" });
  private density = 1;
  private placed: Placed[] = [];
  private rowHeight = 10;
  private perUnit = 1;
  private last = "";
  track: Track;

  constructor(private readonly app: App) {
    this.track = app.tracks[0]!;
    this.area = h(
      "div",
      {
        class: "canvas moment-area",
        tabindex: 0,
        role: "application",
        "aria-label": "Segments at the cursor",
        "aria-describedby": "weir-status",
      },
      this.canvas,
    );
    this.root = h("div", { class: "pane moment" }, h("div", { class: "pane-head" }, this.title), this.area);
    this.area.addEventListener("pointermove", (e) => {
      const hit = this.hit(e);
      if (hit) this.app.hoverMoment(this.track, e, hit.y);
      else this.app.leave();
    });
    this.area.addEventListener("pointerleave", () => this.app.leave());
    this.area.addEventListener("click", (e) => {
      const hit = this.hit(e);
      if (hit)
        this.app.clickMap(this.track, this.app.axis.fromOwn(this.track.recording, this.entry) + 0.5, hit.y, true);
    });
  }

  get entry(): number {
    return this.app.entryOf(this.track);
  }

  invalidate(): void {
    this.last = "";
  }

  private hit(e: MouseEvent): { y: number } | null {
    const r = this.area.getBoundingClientRect();
    const x = e.clientX - r.left;
    const y = e.clientY - r.top;
    for (const p of this.placed)
      if (x >= p.x && x < p.x + p.width && y >= p.y && y < p.y + this.rowHeight)
        return { y: Math.min(p.to - 1, Math.floor(p.from + (x - p.x) / this.perUnit)) };
    return null;
  }

  resize(): void {
    this.density = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.round(this.area.clientWidth * this.density));
    const height = Math.max(1, Math.round(this.area.clientHeight * this.density));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.last = "";
    }
  }

  // The segments that are there at the entry, by address.
  private live(entry: number): number[] {
    const s = this.track.recording.segments!;
    const list: number[] = [];
    for (let i = 0; i < s.count && s.x0[i]! <= entry; i++) if (s.x1[i]! > entry) list.push(i);
    return list.sort((a, b) => s.y[a]! - s.y[b]!);
  }

  // Places the segments into as many rows as are well visible. Long ones continue in the next row.
  private place(list: number[], width: number, height: number): void {
    const s = this.track.recording.segments!;
    let total = 0;
    for (const i of list) total += s.units[i]!;
    const gap = list.length > 400 ? 1 : 3;
    const rows = Math.max(1, Math.floor(height / 17));
    const pitch = height / rows;
    let perUnit = Math.max(width * 0.2, width * rows - list.length * gap) / Math.max(1, total);
    for (let tries = 0; tries < 200 && this.try(list, width, perUnit, gap, pitch) > rows; tries++) perUnit *= 0.97;
  }

  private try(list: number[], width: number, perUnit: number, gap: number, pitch: number): number {
    const s = this.track.recording.segments!;
    this.placed = [];
    this.perUnit = perUnit;
    this.rowHeight = Math.max(4, Math.min(34, pitch - 3));
    let x = 0;
    let row = 0;
    for (const i of list) {
      let from = s.y[i]!;
      const end = from + s.units[i]!;
      while (from < end) {
        const room = Math.floor((width - x) / perUnit);
        if (width - x < 3 || (room < end - from && room * perUnit < 24 && x > 0)) {
          x = 0;
          row++;
          continue;
        }
        const to = Math.min(end, from + Math.max(1, room));
        const w = Math.max(1, (to - from) * perUnit);
        this.placed.push({ segment: i, x, y: row * pitch, width: w, from, to });
        x += w;
        from = to;
        if (from < end) {
          x = 0;
          row++;
        }
      }
      x += gap;
    }
    return row + 1;
  }

  draw(): void {
    const r = this.track.recording;
    const entry = this.entry;
    const key = [
      entry,
      this.app.tracks.indexOf(this.track),
      this.app.by,
      this.app.theme.isDark,
      this.app.colorVersion,
      this.app.filterVersion,
      r.blocks.loaded,
      this.app.selected?.block.id,
      this.app.markedStack?.stack,
      this.app.showsCause,
      this.area.clientHeight,
    ].join("/");
    if (key === this.last || !r.segments) return;
    this.resize();
    this.last = key;
    const c = this.canvas.getContext("2d")!;
    const theme = this.app.theme;
    const width = this.area.clientWidth;
    const height = this.area.clientHeight;
    c.setTransform(this.density, 0, 0, this.density, 0, 0);
    c.fillStyle = theme.background;
    c.fillRect(0, 0, width, height);
    const list = this.live(entry);
    this.place(list, width - 2, height);
    // Blocks by address, to walk both lists together.
    const alive: { tile: Tile; i: number; y: number; units: number }[] = [];
    let used = 0;
    let waiting = 0;
    r.blocks.eachAt(entry, (tile, i) => {
      const v = tile.instances!;
      const k = i * WORDS;
      alive.push({ tile, i, y: v[k + 2]!, units: v[k + 3]! });
      if (entry >= v[k + 1]! - v[k + 7]!) waiting += v[k + 3]!;
      else used += v[k + 3]!;
    });
    alive.sort((a, b) => a.y - b.y);
    const rows = [...this.placed].sort((a, b) => a.from - b.from);
    let next = 0;
    for (const p of rows) {
      c.fillStyle = theme.segment;
      c.fillRect(p.x, p.y, p.width, this.rowHeight);
      while (next < alive.length && alive[next]!.y + alive[next]!.units <= p.from) next++;
      for (let k = next; k < alive.length && alive[k]!.y < p.to; k++) this.block(c, p, alive[k]!, entry);
      c.strokeStyle = theme.segmentEdge;
      c.lineWidth = 1;
      if (p.width > 3) c.strokeRect(p.x + 0.5, p.y + 0.5, p.width - 1, this.rowHeight - 1);
    }
    this.drawCause(c, rows, entry);
    const s = r.segments;
    let reserved = 0;
    for (const i of list) reserved += s.units[i]!;
    const exact = r.blocks.isComplete;
    const isAll = r.info.segments.stored === r.info.segments.total;
    this.title.textContent =
      (r.info.entries === 0 ? "Segments of the snapshot" : `Segments after entry ${count(entry)}`) +
      (this.app.tracks.length > 1 ? ` of ${this.track.label}` : "") +
      `: ${plural(list.length, "segment")}${isAll ? "" : " shown"}, ${bytes(reserved * UNIT)}; ${plural(alive.length, "block")}${exact ? "" : " stored"}, ` +
      (exact ? bytes(used * UNIT) : range(used * UNIT, reserved * UNIT, bytes)) +
      ` in use${waiting ? `, ${bytes(waiting * UNIT)} freed and waiting` : ""}`;
  }

  private block(
    c: CanvasRenderingContext2D,
    p: Placed,
    b: { tile: Tile; i: number; y: number; units: number },
    entry: number,
  ): void {
    const theme = this.app.theme;
    const from = Math.max(p.from, b.y);
    const to = Math.min(p.to, b.y + b.units);
    if (to <= from) return;
    const x = p.x + (from - p.from) * this.perUnit;
    const w = Math.max(0.6, (to - from) * this.perUnit);
    const v = b.tile.instances!;
    const k = b.i * WORDS;
    const marked = this.app.markedStack;
    const dim =
      (this.app.hasFilter && b.tile.match?.[b.i] === 0) || (marked?.track === this.track && marked.stack !== v[k + 4]);
    c.globalAlpha = dim ? 0.15 : 1;
    c.fillStyle = this.track.colorOf(this.track.coloring, b.tile, b.i);
    c.fillRect(x, p.y + 1, w > 3 ? w - 1 : w, this.rowHeight - 2);
    if (entry >= v[k + 1]! - v[k + 7]!) {
      // Freed, and waiting for other streams: hatched.
      c.save();
      c.beginPath();
      c.rect(x, p.y + 1, w, this.rowHeight - 2);
      c.clip();
      c.strokeStyle = theme.background;
      c.lineWidth = 2;
      c.beginPath();
      for (let d = -this.rowHeight; d < w; d += 5) {
        c.moveTo(x + d, p.y + this.rowHeight);
        c.lineTo(x + d + this.rowHeight, p.y);
      }
      c.stroke();
      c.restore();
    }
    c.globalAlpha = 1;
    if (this.app.selected?.track === this.track && this.app.selected.block.id === b.tile.base + b.i) {
      c.strokeStyle = theme.accent;
      c.lineWidth = 2;
      c.strokeRect(x, p.y + 1, Math.max(3, w), this.rowHeight - 2);
    }
  }

  // At the explained moment: the blocks in the way of the request.
  private drawCause(c: CanvasRenderingContext2D, rows: Placed[], entry: number): void {
    const r = this.track.recording;
    const x = explained(r);
    if (!x || !this.app.showsCause || Math.abs(x.entry - entry) > 1) return;
    const theme = this.app.theme;
    for (const pin of x.pins)
      for (const block of pin.blocks) {
        const y = r.yOf(block.address);
        if (y === null) continue;
        for (const p of rows) {
          const from = Math.max(p.from, y);
          const to = Math.min(p.to, y + block.size / UNIT);
          if (to <= from) continue;
          c.strokeStyle = theme.danger;
          c.lineWidth = 2;
          c.strokeRect(
            p.x + (from - p.from) * this.perUnit,
            p.y + 1,
            Math.max(3, (to - from) * this.perUnit),
            this.rowHeight - 2,
          );
        }
      }
  }
}
