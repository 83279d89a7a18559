// The time axis that all views share, and how each recording lies on it.
import type { Recording } from "./recording";

export type Align = "entries" | "progress" | "time";

export class Axis {
  x0 = 0;
  x1 = 1;
  align: Align = "entries";

  constructor(private readonly recordings: Recording[]) {
    this.reset();
  }

  // The number of entries that the axis spans.
  get length(): number {
    const lengths = this.recordings.map((r) => r.info.entries);
    return Math.max(1, this.align === "entries" ? Math.max(...lengths) : lengths[0]!);
  }

  get width(): number {
    return this.x1 - this.x0;
  }

  reset(): void {
    this.x0 = 0;
    this.x1 = this.length;
  }

  // Shows [a, b), within the axis and not closer than two entries.
  show(a: number, b: number): void {
    const length = this.length;
    let width = Math.max(Math.min(2, length), Math.min(length, b - a));
    if (!Number.isFinite(width)) width = length;
    let from = (a + b - width) / 2;
    if (!Number.isFinite(from)) from = 0;
    from = Math.max(0, Math.min(length - width, from));
    this.x0 = from;
    this.x1 = from + width;
  }

  zoom(at: number, factor: number): void {
    const width = this.width * factor;
    const share = (at - this.x0) / this.width;
    const from = at - share * width;
    this.show(from, from + width);
  }

  pan(dx: number): void {
    this.show(this.x0 + dx, this.x1 + dx);
  }

  private map(r: Recording, x: number): number {
    const first = this.recordings[0]!;
    if (r === first || this.align === "entries") return x;
    const ratio = Math.max(1, r.info.entries) / Math.max(1, first.info.entries);
    if (this.align === "progress") return x * ratio;
    const time = first.timeNear(x);
    const entry = time === null ? null : r.entryNear(time);
    return entry ?? x * ratio;
  }

  // The window in the entries of a recording. It is linear between its ends.
  window(r: Recording): { x0: number; x1: number } {
    const a = this.map(r, this.x0);
    const b = this.map(r, this.x1);
    return { x0: a, x1: b > a ? b : a + 1 };
  }

  // The position of the axis in the entries of a recording, and back.
  toOwn(r: Recording, x: number): number {
    const w = this.window(r);
    return w.x0 + ((x - this.x0) / this.width) * (w.x1 - w.x0);
  }

  fromOwn(r: Recording, entry: number): number {
    const first = this.recordings[0]!;
    if (r === first || this.align === "entries") return entry;
    const ratio = Math.max(1, r.info.entries) / Math.max(1, first.info.entries);
    if (this.align === "progress") return entry / ratio;
    const time = r.timeNear(entry);
    return (time === null ? null : first.entryNear(time)) ?? entry / ratio;
  }
}

// Round steps for about `most` labels over `range`, from 1, 2, 5 times a power of ten (or of two, for bytes).
export function step(range: number, most: number, isBinary = false): number {
  const rough = range / Math.max(1, most);
  if (isBinary) return 2 ** Math.ceil(Math.log2(Math.max(1, rough)));
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const k of [1, 2, 5, 10]) if (k * power >= rough) return k * power;
  return 10 * power;
}
