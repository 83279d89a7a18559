// The second view: memory over time, stacked by the same groups that colour the map, and the counters as lines.
import type { App, Track } from "./app";
import { step } from "./axis";
import { h } from "./dom";
import { explained } from "./explain";
import { shortBytes } from "./format";
import { attach } from "./gestures";
import type { Level } from "./recording";

export const COUNTERS = ["allocated", "reserved", "largest_hole", "pending"];
export const COUNTER_NAMES: Record<string, string> = {
  allocated: "allocated",
  reserved: "reserved",
  largest_hole: "largest hole",
  pending: "freed, waiting",
};

export class MemoryView {
  readonly root: HTMLElement;
  readonly area: HTMLElement;
  private canvas = h("canvas", { "aria-hidden": "true" });
  private density = 1;

  constructor(
    private readonly app: App,
    readonly track: Track,
  ) {
    this.area = h(
      "div",
      {
        class: "canvas memory-area",
        tabindex: 0,
        role: "application",
        "aria-label": `Memory over time of ${track.recording.info.name}. Arrow keys pan, plus and minus zoom, comma and period move the cursor.`,
        "aria-describedby": "weir-status",
      },
      this.canvas,
    );
    this.root = h("div", { class: "pane memory" }, this.area);
    attach(this.area, {
      zoom: (x, _y, fx) => {
        this.app.axis.zoom(this.app.axisAt(x), fx);
        this.app.moved();
      },
      pan: (dx) => {
        this.app.axis.pan((-dx / this.app.plotWidth) * this.app.axis.width);
        this.app.moved();
      },
      click: (x) => {
        this.area.focus({ preventScroll: true });
        this.app.setCursor(this.app.axisAt(x), this.track);
      },
      hover: (x, y) => this.app.hoverMemory(this.track, x, y, this.app.axisAt(x)),
      leave: () => this.app.leave(),
      box: (x0, _y0, x1) => {
        this.app.axis.show(this.app.axisAt(Math.min(x0, x1)), this.app.axisAt(Math.max(x0, x1)));
        this.app.moved();
      },
    });
  }

  resize(): void {
    this.density = Math.min(2, window.devicePixelRatio || 1);
    const width = Math.max(1, Math.round(this.area.clientWidth * this.density));
    const height = Math.max(1, Math.round(this.area.clientHeight * this.density));
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
  }

  // The band under a point: the number in the group, or -1.
  bandAt(axis: number, py: number): number {
    const r = this.track.recording;
    const group = r.groups.get(this.app.by);
    const level = group?.levels.level(this.app.axis.width / this.app.plotWidth);
    if (!group || !level) return -1;
    const column = Math.floor(this.app.axis.toOwn(r, axis) / level.span);
    if (column < 0 || column >= level.columns) return -1;
    const value = (1 - py / this.area.clientHeight) * this.app.memoryTop;
    let sum = 0;
    for (let k = 0; k < group.info.names.length; k++) {
      sum += level.values[k * level.columns + column]!;
      if (value <= sum) return k;
    }
    return -1;
  }

  draw(): void {
    const c = this.canvas.getContext("2d")!;
    const app = this.app;
    const theme = app.theme;
    const r = this.track.recording;
    const width = app.plotWidth;
    const height = this.area.clientHeight;
    const left = app.gutter;
    c.setTransform(this.density, 0, 0, this.density, 0, 0);
    c.fillStyle = theme.background;
    c.fillRect(0, 0, this.area.clientWidth, height);
    const top = app.memoryTop;
    const py = (v: number): number => height - (v / top) * height;
    const by = step(top, height / 26, true);
    c.font = "10.5px system-ui, sans-serif";
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (let v = 0; v <= top; v += by) {
      const y = Math.round(py(v)) + 0.5;
      if (y > 8 && y < height - 6) {
        c.fillStyle = theme.muted;
        c.fillText(shortBytes(v), left - 7, y);
      }
      c.fillStyle = theme.line;
      c.fillRect(left, y - 0.5, width, 1);
    }
    c.save();
    c.beginPath();
    c.rect(left, 0, width, height);
    c.clip();
    c.translate(left, 0);
    const { x0, x1 } = app.axis.window(r);
    const perPixel = (x1 - x0) / width;
    const px = (x: number): number => ((x - x0) / (x1 - x0)) * width;
    const group = r.groups.get(app.by);
    const bands = group?.levels.level(perPixel);
    if (group && bands) this.drawBands(c, bands, group.info.names.length, x0, x1, px, py);
    const counters = r.counters.level(perPixel);
    if (counters) this.drawCounters(c, counters, x0, x1, px, py);
    const x = explained(r);
    if (x?.limit && x.isOom && x.limit < top) {
      const y = Math.round(py(x.limit)) + 0.5;
      c.strokeStyle = theme.danger;
      c.setLineDash([6, 4]);
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(0, y);
      c.lineTo(width, y);
      c.stroke();
      c.setLineDash([]);
      c.fillStyle = theme.danger;
      c.textAlign = "left";
      c.textBaseline = y < 16 ? "top" : "bottom";
      const most = x.limitMost !== null && x.limitMost !== x.limit;
      c.fillText(`limit: ${shortBytes(x.limit)}${most ? " or more" : ""}${x.isLimitInferred ? ", inferred" : ""}`, 6, y < 16 ? y + 2 : y - 2);
    }
    for (const mark of r.info.marks) {
      if (mark.kind !== "oom") continue;
      c.fillStyle = theme.danger;
      c.fillRect(Math.round(px(mark.entry)), 0, 1, height);
    }
    c.restore();
  }

  private drawBands(
    c: CanvasRenderingContext2D,
    level: Level,
    names: number,
    x0: number,
    x1: number,
    px: (x: number) => number,
    py: (v: number) => number,
  ): void {
    const first = Math.max(0, Math.floor(x0 / level.span));
    const last = Math.min(level.columns - 1, Math.floor(x1 / level.span));
    if (last < first) return;
    const n = last - first + 1;
    const low = new Float64Array(n);
    const edges = new Float64Array(n + 1);
    const end = this.track.recording.info.entries;
    for (let i = 0; i <= n; i++) edges[i] = px(Math.min(end, (first + i) * level.span));
    const high = new Float64Array(n);
    for (let k = 0; k < names; k++) {
      const row = k * level.columns + first;
      let any = false;
      for (let i = 0; i < n; i++) {
        const v = level.values[row + i]!;
        high[i] = low[i]! + v;
        if (v > 0) any = true;
      }
      if (!any) continue;
      c.fillStyle = this.track.coloring.colors[k] ?? this.app.theme.hidden;
      c.globalAlpha = this.app.dimBand(this.track, k) ? 0.15 : 1;
      c.beginPath();
      c.moveTo(edges[0]!, py(low[0]!));
      for (let i = 0; i < n; i++) {
        const y = py(high[i]!);
        c.lineTo(edges[i]!, y);
        c.lineTo(edges[i + 1]!, y);
      }
      for (let i = n - 1; i >= 0; i--) {
        const y = py(low[i]!);
        c.lineTo(edges[i + 1]!, y);
        c.lineTo(edges[i]!, y);
      }
      c.fill();
      low.set(high);
    }
    c.globalAlpha = 1;
  }

  private drawCounters(
    c: CanvasRenderingContext2D,
    level: Level,
    x0: number,
    x1: number,
    px: (x: number) => number,
    py: (v: number) => number,
  ): void {
    const names = this.track.recording.info.counters.names;
    const first = Math.max(0, Math.floor(x0 / level.span));
    const last = Math.min(level.columns - 1, Math.floor(x1 / level.span));
    const end = this.track.recording.info.entries;
    names.forEach((name, k) => {
      if (!this.app.counters.has(name)) return;
      const color = this.app.counterColor(name);
      const min = 2 * k * level.columns;
      const max = min + level.columns;
      c.strokeStyle = color;
      c.fillStyle = color;
      c.lineWidth = name === "reserved" || name === "allocated" ? 1.4 : 1;
      c.setLineDash(name === "largest_hole" ? [3, 2] : name === "pending" ? [1, 2] : []);
      // The upper end as a line; how far the value falls within the column as a thin shade.
      if (level.span > 1) {
        c.globalAlpha = 0.12;
        c.beginPath();
        for (let i = first; i <= last; i++) {
          const a = px(i * level.span);
          const b = px(Math.min(end, (i + 1) * level.span));
          const y = py(level.values[max + i]!);
          c.rect(a, y, b - a, py(level.values[min + i]!) - y);
        }
        c.fill();
        c.globalAlpha = 1;
      }
      c.beginPath();
      for (let i = first; i <= last; i++) {
        const y = py(level.values[max + i]!);
        c.lineTo(px(i * level.span), y);
        c.lineTo(px(Math.min(end, (i + 1) * level.span)), y);
      }
      c.stroke();
    });
    c.setLineDash([]);
  }

  destroy(): void {
    this.root.remove();
  }
}
