// The main view: time × address. Blocks are drawn by WebGL (gl.ts); text, marks and outlines on a canvas above it.
import type { App, Track } from "./app";
import { step } from "./axis";
import { UNIT, WORDS, type Block, type Tile } from "./blocks";
import { inkOn } from "./colors";
import { h } from "./dom";
import { describeHoles, explained, type Explained } from "./explain";
import { bytes, shortBytes } from "./format";
import { attach } from "./gestures";
import { MapGL } from "./gl";
import { Raster } from "./raster";

// Rectangles in one frame, to begin with. While the window moves, the number follows the time that frames take.
const FRAME = 60000;
const FRAME_MIN = 16384;
const FRAME_MAX = 500000;

// The blocks [from, to) of a tile.
interface Part {
  tile: Tile;
  from: number;
  to: number;
}
const LABEL_WIDTH = 46;
const LABEL_HEIGHT = 12;

export class MapView {
  readonly root: HTMLElement;
  readonly area: HTMLElement;
  private base = h("canvas", { class: "base", "aria-hidden": "true" });
  private overlay = h("canvas", { class: "overlay", "aria-hidden": "true" });
  private box = h("div", { class: "zoombox", hidden: true });
  private gl: MapGL | null = null;
  private plain: CanvasRenderingContext2D | null = null; // without a GPU
  y0 = 0;
  y1 = 1;
  private refined: Part[] = [];
  private settings = "";
  private hasStarted = false;
  private density = 1;
  private budget = FRAME;
  private raster: Raster;

  constructor(
    private readonly app: App,
    readonly track: Track,
  ) {
    this.area = h(
      "div",
      {
        class: "canvas map-area",
        tabindex: 0,
        role: "application",
        "aria-label": `Map of ${track.recording.info.name}: time from left to right, addresses from bottom to top. Arrow keys pan, plus and minus zoom, J and K move between blocks, Enter selects.`,
        "aria-describedby": "weir-status",
      },
      this.base,
      this.overlay,
      this.box,
    );
    this.root = h("div", { class: "pane map" }, this.area);
    // "draw" in the address chooses how to draw, for tests.
    const choice = /[#&]draw=(webgl|plain)/.exec(location.hash)?.[1];
    if (choice === "webgl" || (choice !== "plain" && MapGL.isFast())) this.gl = MapGL.create(this.base);
    if (!this.gl) this.plain = this.base.getContext("2d", { alpha: false });
    this.raster = new Raster(this.gl === null);
    this.base.addEventListener("webglcontextlost", (e) => {
      e.preventDefault();
      this.gl = null;
    });
    this.base.addEventListener("webglcontextrestored", () => {
      this.gl = MapGL.create(this.base);
      this.hasStarted = false;
      this.settings = "";
      this.app.invalidate();
    });
    this.resetY();
    attach(this.area, {
      zoom: (x, y, fx, fy) => {
        this.app.axis.zoom(this.app.axisAt(x), fx);
        if (fy !== 1) this.zoomY(this.yAt(y), fy);
        this.app.moved();
      },
      pan: (dx, dy) => {
        this.app.axis.pan((-dx / this.app.plotWidth) * this.app.axis.width);
        this.panY((dy / this.area.clientHeight) * (this.y1 - this.y0));
        this.app.moved();
      },
      click: (x, y) => {
        this.area.focus({ preventScroll: true });
        this.app.clickMap(this.track, this.app.axisAt(x), this.yAt(y));
      },
      hover: (x, y) => this.app.hoverMap(this.track, x, y, this.app.axisAt(x), this.yAt(y)),
      leave: () => this.app.leave(),
      dragBox: (x0, y0, x1, y1) => {
        this.box.hidden = false;
        this.box.style.left = `${Math.min(x0, x1)}px`;
        this.box.style.top = `${Math.min(y0, y1)}px`;
        this.box.style.width = `${Math.abs(x1 - x0)}px`;
        this.box.style.height = `${Math.abs(y1 - y0)}px`;
      },
      box: (x0, y0, x1, y1) => {
        this.box.hidden = true;
        const [a, b] = [this.app.axisAt(Math.min(x0, x1)), this.app.axisAt(Math.max(x0, x1))];
        const [low, high] = [this.yAt(Math.max(y0, y1)), this.yAt(Math.min(y0, y1))];
        this.app.axis.show(a, b);
        if (Math.abs(y1 - y0) > 8) this.showY(low, high);
        this.app.moved();
      },
    });
  }

  get usesWebGL(): boolean {
    return this.gl !== null;
  }

  get canDraw(): boolean {
    return this.gl !== null || this.plain !== null;
  }

  get drawn(): number {
    return this.raster.rectangles;
  }

  get isRefined(): boolean {
    return this.refined.length === 0;
  }

  resetY(): void {
    this.y0 = 0;
    this.y1 = Math.max(1, this.track.recording.info.height);
  }

  showY(low: number, high: number): void {
    const most = Math.max(1, this.track.recording.info.height);
    const size = Math.max(Math.min(4, most), Math.min(most, high - low));
    let from = (low + high - size) / 2;
    if (!Number.isFinite(from)) from = 0;
    from = Math.max(0, Math.min(most - size, from));
    this.y0 = from;
    this.y1 = from + size;
  }

  zoomY(at: number, factor: number): void {
    const size = (this.y1 - this.y0) * factor;
    const share = (at - this.y0) / (this.y1 - this.y0);
    this.showY(at - share * size, at - share * size + size);
  }

  panY(dy: number): void {
    this.showY(this.y0 + dy, this.y1 + dy);
  }

  // The unit at a pixel of the area; it may lie outside of the axis.
  yAt(py: number): number {
    return this.y1 - (py / Math.max(1, this.area.clientHeight)) * (this.y1 - this.y0);
  }

  pixelY(y: number): number {
    return ((this.y1 - y) / (this.y1 - this.y0)) * this.area.clientHeight;
  }

  // Levels of detail: what the format asks for at this zoom, within the budget of a frame; the rest refines the picture
  // once it stands still.
  private choose(x0: number, x1: number): { now: Part[]; later: Part[] } {
    const blocks = this.track.recording.blocks;
    const level = Math.ceil(Math.log2(Math.max(1, this.track.recording.info.entries / (x1 - x0)))) + 1;
    const now: Part[] = [];
    const later: Part[] = [];
    let sum = 0;
    for (const tile of blocks.tiles) {
      if (tile.to <= x0 || tile.from >= x1) continue;
      if (!tile.instances) {
        if (tile.info.level <= level)
          void blocks.load(tile).then(() => this.app.invalidate(), this.track.recording.failed);
        continue;
      }
      const [from, to] = blocks.range(tile, x0, x1);
      if (to <= from) continue;
      if (sum + to - from <= this.budget || tile.info.level === 0) {
        now.push({ tile, from, to });
        sum += to - from;
      } else later.push({ tile, from, to });
    }
    return { now, later };
  }

  // Adapts the number of rectangles in a frame to the time since the last one, in ms.
  adapt(time: number): void {
    if (time > 26) this.budget = Math.max(FRAME_MIN, Math.round(this.budget * 0.85));
    else if (time < 18) this.budget = Math.min(FRAME_MAX, Math.round(this.budget * 1.03));
  }

  // A tile was loaded in the background: it refines the picture that is there.
  add(tile: Tile): void {
    const { x0, x1 } = this.app.axis.window(this.track.recording);
    if (!this.canDraw || tile.to <= x0 || tile.from >= x1) return;
    const [from, to] = this.track.recording.blocks.range(tile, x0, x1);
    if (to > from) this.refined.push({ tile, from, to });
  }

  resize(): void {
    const density = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.round(this.app.plotWidth * density));
    const height = Math.max(1, Math.round(this.area.clientHeight * density));
    this.density = density;
    if (this.base.width !== width || this.base.height !== height) {
      this.base.width = width;
      this.base.height = height;
    }
    this.base.style.left = `${this.app.gutter}px`;
    this.base.style.width = `${this.app.plotWidth}px`;
    const full = Math.max(1, Math.round(this.area.clientWidth * density));
    if (this.overlay.width !== full || this.overlay.height !== height) {
      this.overlay.width = full;
      this.overlay.height = height;
    }
  }

  draw(): void {
    const r = this.track.recording;
    const theme = this.app.theme;
    const { x0, x1 } = this.app.axis.window(r);
    const { now, later } = this.choose(x0, x1);
    const gl = this.gl;
    if (gl && !this.hasStarted && r.segments) {
      this.hasStarted = true;
      gl.setSegments(r.segments);
      if (r.coverage && r.info.coverage) gl.setCoverage(r.info.coverage.columns, r.info.coverage.rows, r.coverage);
    }
    const coloring = this.track.coloring;
    const key = `${coloring.by}/${theme.isDark}/${this.app.colorVersion}`;
    if (this.settings !== key) {
      this.settings = key;
      this.raster.setColors(coloring);
      gl?.setColors(coloring.by, coloring.places, coloring.palette, theme.background);
    }
    this.raster.begin(this.base.width, this.base.height);
    this.paint(now, true);
    this.refined = later;
    this.drawOverlay(now, x0, x1);
  }

  // Adds parts to the picture, and draws it.
  private paint(parts: Part[], isNew: boolean): void {
    const r = this.track.recording;
    const theme = this.app.theme;
    const w = { ...this.app.axis.window(r), y0: this.y0, y1: this.y1 };
    const marked = this.markedStack();
    const look = {
      density: this.density,
      background: theme.background,
      segment: theme.segment,
      hidden: theme.hidden,
      height: r.info.height,
      entries: r.info.entries,
      isFiltered: this.app.hasFilter,
      marked,
    };
    const cover = r.info.coverage && r.coverage ? { ...r.info.coverage, bytes: r.coverage } : null;
    if (isNew && !this.gl) this.raster.background(w, look, r.segments, cover);
    for (const { tile, from, to } of parts) this.raster.add(tile, from, to, w, this.app.hasFilter, marked);
    if (this.gl) this.gl.draw(w, this.raster, look);
    else if (this.plain) this.raster.show(this.plain);
  }

  private markedStack(): number {
    return this.app.markedStack && this.app.markedStack.track === this.track ? this.app.markedStack.stack : 0xffffffff;
  }

  // Draws a part of what the first picture left out. Returns false if there is nothing left.
  refine(): boolean {
    if (!this.canDraw || this.refined.length === 0) return false;
    let sum = 0;
    const parts: Part[] = [];
    while (this.refined.length > 0 && sum < this.budget) {
      const next = this.refined[0]!;
      const to = Math.min(next.to, next.from + this.budget - sum);
      parts.push({ tile: next.tile, from: next.from, to });
      sum += to - next.from;
      next.from = to;
      if (next.from >= next.to) this.refined.shift();
    }
    this.paint(parts, false);
    return this.refined.length > 0;
  }

  finish(): void {
    this.gl?.finish();
  }

  private drawOverlay(parts: Part[], x0: number, x1: number): void {
    const c = this.overlay.getContext("2d")!;
    const app = this.app;
    const theme = app.theme;
    const width = app.plotWidth;
    const height = this.area.clientHeight;
    const left = app.gutter;
    c.setTransform(this.density, 0, 0, this.density, 0, 0);
    c.clearRect(0, 0, this.area.clientWidth, height);
    c.fillStyle = theme.background;
    c.fillRect(0, 0, left, height);
    this.drawScale(c, left, height);
    c.save();
    c.beginPath();
    c.rect(left, 0, width, height);
    c.clip();
    c.translate(left, 0);
    const px = (x: number): number => ((x - x0) / (x1 - x0)) * width;
    this.drawSpans(c, width);
    this.drawLabels(c, parts, x0, x1, width, height);
    this.drawMarks(c, px, height);
    const x = explained(this.track.recording);
    if (x && app.showsCause) this.drawCause(c, x, px, width);
    const selected = app.selected;
    if (selected && selected.track === this.track) this.outline(c, selected.block, px);
    c.restore();
  }

  private drawScale(c: CanvasRenderingContext2D, left: number, height: number): void {
    const theme = this.app.theme;
    c.font = "10.5px system-ui, sans-serif";
    c.textAlign = "right";
    c.textBaseline = "middle";
    const size = (this.y1 - this.y0) * UNIT;
    const by = Math.max(UNIT, step(size, height / 34, true));
    for (let v = Math.ceil((this.y0 * UNIT) / by) * by; v <= this.y1 * UNIT; v += by) {
      const y = this.pixelY(v / UNIT);
      if (y < 7 || y > height - 5) continue;
      c.fillStyle = theme.muted;
      c.fillText(shortBytes(v), left - 7, y);
      c.fillStyle = theme.line;
      c.fillRect(left - 4, Math.round(y), 4, 1);
    }
  }

  // Where addresses were left out: a fine dotted line between spans.
  private drawSpans(c: CanvasRenderingContext2D, width: number): void {
    const spans = this.track.recording.info.spans;
    c.strokeStyle = this.app.theme.segmentEdge;
    c.lineWidth = 1;
    c.setLineDash([1, 3]);
    let last = -10;
    for (const span of spans) {
      if (span.y <= this.y0 || span.y >= this.y1) continue;
      const y = Math.round(this.pixelY(span.y)) + 0.5;
      if (Math.abs(y - last) < 24) continue;
      last = y;
      c.beginPath();
      c.moveTo(0, y);
      c.lineTo(width, y);
      c.stroke();
    }
    c.setLineDash([]);
  }

  private drawLabels(
    c: CanvasRenderingContext2D,
    parts: Part[],
    x0: number,
    x1: number,
    width: number,
    height: number,
  ): void {
    const r = this.track.recording;
    const sx = width / (x1 - x0);
    const sy = height / (this.y1 - this.y0);
    const leastX = LABEL_WIDTH / sx;
    const leastY = LABEL_HEIGHT / sy;
    const marked = this.markedStack();
    let labels = 0;
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "left";
    c.textBaseline = "middle";
    for (const { tile, from, to } of parts) {
      const v = tile.instances!;
      for (let i = from, k = from * WORDS; i < to; i++, k += WORDS) {
        if (v[k + 3]! < leastY || v[k + 1]! - v[k]! < leastX) continue;
        if (v[k]! >= x1 || v[k + 1]! <= x0 || v[k + 2]! >= this.y1 || v[k + 2]! + v[k + 3]! <= this.y0) continue;
        if (tile.match?.[i] === 0 || (marked !== 0xffffffff && v[k + 4] !== marked)) continue;
        const a = Math.max(0, (v[k]! - x0) * sx);
        const b = Math.min(width, (v[k + 1]! - x0) * sx);
        const top = Math.max(0, (this.y1 - v[k + 2]! - v[k + 3]!) * sy);
        const bottom = Math.min(height, (this.y1 - v[k + 2]!) * sy);
        if (b - a < LABEL_WIDTH || bottom - top < LABEL_HEIGHT || ++labels > 400) continue;
        c.fillStyle = inkOn(this.track.colorOf(this.track.coloring, tile, i));
        const stack = v[k + 4]!;
        const size = bytes(v[k + 3]! * UNIT - tile.slack![i]!);
        const title = stack === 0 ? "" : r.title(stack);
        this.text(c, title ? `${size}  ${title}` : size, a + 5, (top + bottom) / 2 + 0.5, b - a - 9);
      }
    }
  }

  // Text that ends with an ellipsis where it does not fit. Widths are estimated; measuring each is too slow.
  private text(c: CanvasRenderingContext2D, text: string, x: number, y: number, room: number): void {
    const most = Math.floor(room / 5.9);
    if (text.length <= most) c.fillText(text, x, y);
    else if (most >= 6) c.fillText(`${text.slice(0, most - 1)}…`, x, y);
  }

  private drawMarks(c: CanvasRenderingContext2D, px: (x: number) => number, height: number): void {
    const theme = this.app.theme;
    for (const mark of this.track.recording.info.marks) {
      if (mark.kind !== "oom" && mark.kind !== "peak") continue;
      const x = Math.round(px(mark.entry)) + 0.5;
      c.strokeStyle = mark.kind === "oom" ? theme.danger : theme.muted;
      c.lineWidth = 1;
      c.setLineDash(mark.kind === "oom" ? [] : [4, 3]);
      c.globalAlpha = mark.kind === "oom" ? 0.9 : 0.7;
      c.beginPath();
      c.moveTo(x, 0);
      c.lineTo(x, height);
      c.stroke();
    }
    c.globalAlpha = 1;
    c.setLineDash([]);
  }

  private outline(c: CanvasRenderingContext2D, b: Block, px: (x: number) => number): void {
    const theme = this.app.theme;
    const a = Math.round(px(b.x0));
    const e = Math.max(a + 3, Math.round(px(b.x1)));
    const top = Math.round(this.pixelY(b.y + b.units));
    const bottom = Math.max(top + 3, Math.round(this.pixelY(b.y)));
    c.lineWidth = 4;
    c.strokeStyle = theme.isDark ? "rgba(0,0,0,.7)" : "rgba(255,255,255,.85)";
    c.strokeRect(a, top, e - a, bottom - top);
    c.lineWidth = 2;
    c.strokeStyle = theme.accent;
    c.strokeRect(a, top, e - a, bottom - top);
  }

  // The cause of the failure: the request to scale beside the free memory of that moment, and the blocks in the way.
  private drawCause(c: CanvasRenderingContext2D, x: Explained, px: (x: number) => number, width: number): void {
    const theme = this.app.theme;
    const r = this.track.recording;
    const at = Math.round(px(x.entry));
    if (at < -200 || at > width + 50) return;
    c.font = "600 11px system-ui, sans-serif";
    c.textBaseline = "middle";
    const holes = describeHoles(r, x);
    const bar = 9;
    // Free memory at that moment, as bars left of the line.
    for (const hole of holes.list) {
      const top = this.pixelY(hole.y + hole.units);
      const size = Math.max(1, this.pixelY(hole.y) - top);
      const color = hole.elsewhere ? theme.hole : theme.good;
      c.fillStyle = color;
      c.globalAlpha = 0.85;
      c.fillRect(at - bar, top, bar - 2, size);
      c.globalAlpha = 1;
      const text = `${bytes(hole.units * UNIT)} free${hole.elsewhere ? `, ${hole.elsewhere}` : ""}`;
      if (size > 13) this.tag(c, text, at - bar - 4, top + size / 2, color, "right");
    }
    // Blocks in the way, and their segments.
    for (const pin of x.pins) {
      const segment = r.yOf(pin.address);
      if (segment !== null) {
        const top = this.pixelY(segment + pin.size / UNIT);
        const bottom = this.pixelY(segment);
        c.strokeStyle = theme.danger;
        c.lineWidth = 1.5;
        c.strokeRect(at - bar - 3, top, bar + 3, bottom - top);
      }
      for (const block of pin.blocks) {
        const y = r.yOf(block.address);
        if (y === null) continue;
        const top = this.pixelY(y + block.size / UNIT);
        const size = Math.max(2, this.pixelY(y) - top);
        c.fillStyle = theme.danger;
        c.fillRect(at - bar, top, bar - 2, size);
        if (block.event !== null) {
          const from = px(block.event);
          c.globalAlpha = 0.9;
          c.lineWidth = 1.5;
          c.strokeStyle = theme.danger;
          c.strokeRect(from, top, at - from, size);
          c.globalAlpha = 1;
        }
      }
    }
    // The segment that the request needed, to scale, over the largest hole that it could use.
    if (x.wanted !== null) {
      const largest = holes.list.find((hole) => !hole.elsewhere) ?? holes.list[0];
      const from = largest ? largest.y : this.y0 + (this.y1 - this.y0) * 0.05;
      const top = this.pixelY(from + x.wanted / UNIT);
      const size = this.pixelY(from) - top;
      c.fillStyle = theme.danger;
      c.globalAlpha = 0.16;
      c.fillRect(at + 1, top, 46, size);
      c.globalAlpha = 1;
      c.strokeStyle = theme.danger;
      c.setLineDash([4, 3]);
      c.lineWidth = 1.5;
      c.strokeRect(at + 1, top, 46, size);
      c.setLineDash([]);
      // The text goes above the box, or into it at the top of the view.
      const above = Math.max(10, Math.min(this.area.clientHeight - 10, top - 10));
      const isRight = at + 170 < width;
      this.tag(
        c,
        `request ${bytes(x.request ?? x.wanted)}`,
        isRight ? at + 1 : Math.min(width - 2, at + 48),
        above,
        theme.danger,
        isRight ? "left" : "right",
      );
    }
  }

  private tag(
    c: CanvasRenderingContext2D,
    text: string,
    x: number,
    y: number,
    color: string,
    align: "left" | "right",
  ): void {
    const w = c.measureText(text).width + 8;
    const a = align === "left" ? x : x - w;
    c.fillStyle = this.app.theme.background;
    c.globalAlpha = 0.88;
    c.fillRect(a, y - 8, w, 16);
    c.globalAlpha = 1;
    c.fillStyle = color;
    c.textAlign = "left";
    c.fillText(text, a + 4, y + 0.5);
  }

  destroy(): void {
    this.gl?.lose();
    this.root.remove();
  }
}
