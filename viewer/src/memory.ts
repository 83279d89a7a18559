// The second view: memory over time, stacked by the same groups that colour the map, and the counters as lines.
import type { App, Track } from "./app";
import { step } from "./axis";
import { bandsIn, columnOf, type Bands } from "./bands";
import { rgb } from "./colors";
import { h } from "./dom";
import { explained } from "./explain";
import { shortBytes } from "./format";
import { attach } from "./gestures";
import type { Level } from "./recording";

export const COUNTERS = ["allocated", "reserved", "largest_hole", "pending"];
// "allocated" counts what the program requested, which the other reports call "in use"; rounding is not in it.
export const COUNTER_NAMES: Record<string, string> = {
  allocated: "in use",
  reserved: "reserved",
  largest_hole: "largest hole",
  pending: "freed, waiting",
};

export class MemoryView {
  readonly root: HTMLElement;
  readonly area: HTMLElement;
  private canvas = h("canvas", { "aria-hidden": "true" });
  private density = 1;
  private image: ImageData | null = null;

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

  // The bands of the window.
  bands(): Bands | null {
    const { x0, x1 } = this.app.axis.window(this.track.recording);
    return bandsIn(this.app, this.track, x0, x1, Math.max(1, Math.round(this.app.plotWidth * this.density)));
  }

  // The band under a point: the number in the group, or -1.
  bandAt(axis: number, py: number): number {
    const r = this.track.recording;
    const bands = this.bands();
    const column = bands ? columnOf(bands, this.app.axis.toOwn(r, axis)) : -1;
    if (!bands || column < 0) return -1;
    const value = (1 - py / this.area.clientHeight) * this.app.memoryTop;
    let sum = 0;
    for (let k = 0; k < (r.groups.get(this.app.by)?.info.names.length ?? 0); k++) {
      sum += bands.values[k * bands.columns + column]!;
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
    const { x0, x1 } = app.axis.window(r);
    const perPixel = (x1 - x0) / width;
    const px = (x: number): number => ((x - x0) / (x1 - x0)) * width;
    this.drawColumns(c, x0, x1, left, width, height, top);
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
      c.fillStyle = theme.isDark ? "rgba(255,255,255,.09)" : "rgba(20,30,40,.1)";
      c.fillRect(left, y - 0.5, width, 1);
    }
    c.save();
    c.beginPath();
    c.rect(left, 0, width, height);
    c.clip();
    c.translate(left, 0);
    const counters = r.counters.level(perPixel);
    if (counters) this.drawLines(c, counters, x0, x1, px, py);
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
      c.fillText(
        `limit: ${shortBytes(x.limit)}${most ? " or more" : ""}${x.isLimitInferred ? ", inferred" : ""}`,
        6,
        y < 16 ? y + 2 : y - 2,
      );
    }
    for (const mark of r.info.marks) {
      if (mark.kind !== "oom") continue;
      c.fillStyle = theme.danger;
      c.fillRect(Math.round(px(mark.entry)), 0, 1, height);
    }
    c.restore();
  }

  // The bands, pixel by pixel: much faster than filling paths with thousands of corners.
  private drawColumns(
    c: CanvasRenderingContext2D,
    x0: number,
    x1: number,
    left: number,
    width: number,
    height: number,
    top: number,
  ): void {
    const r = this.track.recording;
    const group = r.groups.get(this.app.by);
    const w = Math.max(1, Math.round(width * this.density));
    const tall = Math.max(1, Math.round(height * this.density));
    const bands = this.bands();
    if (!group || !bands) return;
    if (!this.image || this.image.width !== w || this.image.height !== tall) this.image = new ImageData(w, tall);
    const words = new Uint32Array(this.image.data.buffer);
    const word = (hex: string, isDim: boolean): number => {
      const back = rgb(this.app.theme.background);
      const [red, green, blue] = rgb(hex).map((v, i) => (isDim ? Math.round(v * 0.15 + back[i]! * 0.85) : v)) as [
        number,
        number,
        number,
      ];
      return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    };
    words.fill(word(this.app.theme.background, false));
    const colors = group.info.names.map((_, k) =>
      word(this.track.coloring.colors[k] ?? this.app.theme.hidden, this.app.dimBand(this.track, k)),
    );
    colors.push(word(this.app.theme.hidden, false));
    const scale = tall / top;
    const entries = r.info.entries;
    for (let x = 0; x < w; x++) {
      const entry = x0 + ((x + 0.5) / w) * (x1 - x0);
      if (entry < 0 || entry >= entries) continue;
      const column = columnOf(bands, entry);
      if (column < 0) continue;
      let sum = 0;
      let from = tall;
      for (let k = 0; k < bands.rows; k++) {
        sum += bands.values[k * bands.columns + column]!;
        const to = Math.max(0, Math.round(tall - sum * scale));
        const color = colors[k]!;
        for (let y = to, p = to * w + x; y < from; y++, p += w) words[p] = color;
        if (to < from) from = to;
      }
    }
    c.putImageData(this.image, Math.round(left * this.density), 0);
  }

  // The upper end of each counter as a line; how far the value falls within a pixel as a shade.
  private drawLines(
    c: CanvasRenderingContext2D,
    level: Level,
    x0: number,
    x1: number,
    px: (x: number) => number,
    py: (v: number) => number,
  ): void {
    const names = this.track.recording.info.counters.names;
    const end = this.track.recording.info.entries;
    names.forEach((name, k) => {
      if (!this.app.counters.has(name)) return;
      const color = this.app.counterColor(name);
      const min = 2 * k * level.columns;
      const max = min + level.columns;
      const first = Math.max(0, Math.floor(x0 / level.span));
      const last = Math.min(level.columns - 1, Math.floor(x1 / level.span));
      c.fillStyle = color;
      const isThin = name === "largest_hole" || name === "pending";
      const gap = name === "largest_hole" ? 5 : name === "pending" ? 3 : 0;
      let before: number | null = null;
      for (let i = first; i <= last; i++) {
        const a = px(i * level.span);
        const b = px(Math.min(end, (i + 1) * level.span));
        const y = Math.round(py(level.values[max + i]!) * 2) / 2;
        const low = py(level.values[min + i]!);
        if (level.span > 1 && low - y > 1.5) {
          c.globalAlpha = 0.13;
          c.fillRect(a, y, Math.max(0.5, b - a), low - y);
          c.globalAlpha = 1;
        }
        if (gap === 0 || b - a > 12 || Math.floor(a) % (2 * gap) < gap)
          c.fillRect(a, y - (isThin ? 0.5 : 0.75), Math.max(0.6, b - a), isThin ? 1 : 1.5);
        if (before !== null && Math.abs(before - y) > 1) {
          c.globalAlpha = isThin ? 0.5 : 1;
          c.fillRect(a - 0.5, Math.min(before, y), 1.2, Math.abs(before - y));
          c.globalAlpha = 1;
        }
        before = y;
      }
    });
  }

  destroy(): void {
    this.root.remove();
  }
}
