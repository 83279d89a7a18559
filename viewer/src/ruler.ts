// The ruler above the map: entries and times, phases and marks.
import type { App } from "./app";
import { step } from "./axis";
import { h } from "./dom";
import { count, duration } from "./format";
import { attach } from "./gestures";

const PHASE_TOP = 17;

export class Ruler {
  readonly root: HTMLElement;
  private canvas = h("canvas", { "aria-hidden": "true" });
  private density = 1;

  constructor(private readonly app: App) {
    this.root = h("div", { class: "ruler canvas" }, this.canvas);
    attach(this.root, {
      zoom: (x, _y, fx) => {
        this.app.axis.zoom(this.app.axisAt(x), fx);
        this.app.moved();
      },
      pan: (dx) => {
        this.app.axis.pan((-dx / this.app.plotWidth) * this.app.axis.width);
        this.app.moved();
      },
      click: (x, y) => {
        const phase = y > PHASE_TOP ? this.phaseAt(this.app.axisAt(x)) : null;
        if (phase) {
          this.app.axis.show(phase.entry, phase.end ?? phase.entry + 1);
          this.app.moved();
        } else this.app.setCursor(this.app.axisAt(x), this.app.tracks[0]!);
      },
      hover: (x, y) => this.app.hoverRuler(x, y, this.app.axisAt(x)),
      leave: () => this.app.leave(),
      box: (x0, _y0, x1) => {
        this.app.axis.show(this.app.axisAt(Math.min(x0, x1)), this.app.axisAt(Math.max(x0, x1)));
        this.app.moved();
      },
    });
  }

  phaseAt(x: number): { entry: number; end?: number; name: string } | null {
    let best: { entry: number; end?: number; name: string } | null = null;
    for (const mark of this.app.tracks[0]!.recording.info.marks)
      if (mark.kind === "phase" && mark.end !== undefined && x >= mark.entry && x < mark.end)
        if (!best || mark.end - mark.entry < best.end! - best.entry) best = mark;
    return best;
  }

  resize(): void {
    this.density = Math.min(2, window.devicePixelRatio || 1);
    this.canvas.width = Math.max(1, Math.round(this.root.clientWidth * this.density));
    this.canvas.height = Math.max(1, Math.round(this.root.clientHeight * this.density));
  }

  draw(): void {
    const c = this.canvas.getContext("2d")!;
    const app = this.app;
    const theme = app.theme;
    const r = app.tracks[0]!.recording;
    const width = app.plotWidth;
    const height = this.root.clientHeight;
    const { x0, x1 } = app.axis;
    c.setTransform(this.density, 0, 0, this.density, 0, 0);
    c.clearRect(0, 0, this.root.clientWidth, height);
    c.font = "10.5px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.fillStyle = theme.muted;
    c.fillText("entry", app.gutter - 7, 9);
    c.save();
    c.beginPath();
    c.rect(app.gutter, 0, width, height);
    c.clip();
    c.translate(app.gutter, 0);
    const px = (x: number): number => ((x - x0) / (x1 - x0)) * width;
    const by = Math.max(1, step(x1 - x0, width / 118));
    c.textAlign = "left";
    for (let v = Math.ceil(x0 / by) * by; v <= x1; v += by) {
      const x = Math.round(px(v));
      c.fillStyle = theme.line;
      c.fillRect(x, 0, 1, PHASE_TOP);
      c.fillStyle = theme.muted;
      const time = r.timeNear(v);
      const label = count(v);
      c.fillStyle = theme.ink;
      c.fillText(label, x + 4, 9);
      if (time !== null && width / ((x1 - x0) / by) > 90) {
        c.fillStyle = theme.muted;
        c.fillText(duration(time), x + 8 + c.measureText(label).width, 9);
      }
    }
    this.drawPhases(c, px, width);
    for (const mark of r.info.marks) {
      if (mark.kind === "phase") continue;
      const x = px(mark.entry);
      if (x < -20 || x > width + 20) continue;
      this.drawFlag(c, x, mark.kind, mark.name);
    }
    c.restore();
  }

  private drawPhases(c: CanvasRenderingContext2D, px: (x: number) => number, width: number): void {
    const theme = this.app.theme;
    const r = this.app.tracks[0]!.recording;
    const tints = theme.isDark
      ? ["#2c3540", "#34303f", "#2b3a36", "#3b342b"]
      : ["#dbe5f1", "#e4dff0", "#d9ebe4", "#f0e6d6"];
    const phases = r.info.marks.filter((m) => m.kind === "phase" && m.end !== undefined);
    for (const mark of phases) {
      const a = Math.max(-1, px(mark.entry));
      const b = Math.min(width + 1, px(mark.end!));
      if (b < 0 || a > width || b - a < 0.3) continue;
      const name = Math.max(0, r.info.phases.indexOf(mark.name));
      c.fillStyle = tints[name % tints.length]!;
      c.fillRect(a, PHASE_TOP, Math.max(0.5, b - a - 0.5), 13);
      if (b - a > 40) {
        c.fillStyle = theme.ink;
        const most = Math.floor((b - a - 8) / 5.6);
        c.fillText(
          mark.name.length > most ? `${mark.name.slice(0, most - 1)}…` : mark.name,
          Math.max(4, a + 4),
          PHASE_TOP + 7,
        );
      }
    }
  }

  private drawFlag(c: CanvasRenderingContext2D, x: number, kind: string, name: string): void {
    const theme = this.app.theme;
    const label = kind === "oom" ? "out of memory" : kind === "peak" ? "peak" : name;
    const color = kind === "oom" ? theme.danger : theme.muted;
    c.font = "600 10px system-ui, sans-serif";
    const w = c.measureText(label).width + 9;
    const isLeft = x + w > this.app.plotWidth;
    c.fillStyle = color;
    c.fillRect(Math.round(x), PHASE_TOP, 1, 13);
    if (kind === "oom" || kind === "peak") {
      c.beginPath();
      c.roundRect(isLeft ? x - w : x, PHASE_TOP, w, 13, 2);
      c.fill();
      c.fillStyle = theme.isDark ? "#14171b" : "#fff";
      c.fillText(label, (isLeft ? x - w : x) + 4.5, PHASE_TOP + 7);
    }
    c.font = "10.5px system-ui, sans-serif";
  }
}
