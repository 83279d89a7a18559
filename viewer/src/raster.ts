// Sorts the rectangles of a window: large ones go to the GPU as a list of indices, small ones are blended into an image
// right here. At low zoom nearly all of a million rectangles are smaller than a few pixels, and a loop over typed
// arrays draws such a rectangle in some 10 ns. Without a GPU the whole picture is drawn here, which is several times
// faster than WebGL in software.
import { WORDS, type Tile } from "./blocks";
import { OTHER, rgb } from "./colors";
import type { Coloring } from "./coloring";
import type { Look, Window } from "./gl";
import type { Segments } from "./recording";

// Up to this many pixels a rectangle is small.
const SMALL = 24;

// Which bits of a block are its key, by kind of colouring.
const FIELDS: Record<string, [word: number, shift: number, mask: number]> = {
  stack: [4, 0, 0xffffffff],
  size: [3, 0, 0],
  stream: [5, 0, 0xffff],
  pool: [5, 16, 0xffff],
  phase: [6, 0, 0xffff],
  class: [6, 16, 0xff],
};

export interface Run {
  tile: Tile;
  start: number; // in `indices`
  count: number;
}

export class Raster {
  pixels = new Uint8ClampedArray(0); // RGBA, multiplied by alpha; the lowest row first, or last without a GPU
  private words = new Uint32Array(0); // the same memory
  width = 0;
  height = 0;
  indices = new Uint32Array(1 << 16);
  used = 0;
  runs: Run[] = [];
  rectangles = 0; // all that were looked at
  private palette = new Uint8Array(0);
  private places: Uint8Array = new Uint8Array(0);
  private field: [number, number, number] = [4, 0, 0xffffffff];
  private isSize = false;
  private edge = 0;

  // isWhole: everything is drawn here, also what is large and what lies behind the blocks.
  constructor(readonly isWhole: boolean) {}

  setColors(coloring: Coloring): void {
    this.places = coloring.places;
    this.palette = new Uint8Array(256 * 3);
    for (let i = 0; i < 256; i++)
      this.palette.set(rgb(coloring.palette[Math.min(i, coloring.palette.length - 1)]!), i * 3);
    this.field = FIELDS[coloring.by] ?? FIELDS["stack"]!;
    this.isSize = coloring.by === "size";
  }

  begin(width: number, height: number): void {
    if (this.width !== width || this.height !== height) {
      this.width = width;
      this.height = height;
      this.pixels = new Uint8ClampedArray(width * height * 4);
      this.words = new Uint32Array(this.pixels.buffer);
    } else this.words.fill(0);
    this.used = 0;
    this.runs = [];
    this.rectangles = 0;
  }

  // Draws what lies behind the blocks: segments, and the share of hidden blocks.
  background(
    w: Window,
    look: Look,
    s: Segments | null,
    cover: { columns: number; rows: number; bytes: Uint8Array } | null,
  ): void {
    const { width, height, words } = this;
    const word = (color: string): number => {
      const [r, g, b] = rgb(color);
      return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    };
    const sx = width / (w.x1 - w.x0);
    const sy = height / (w.y1 - w.y0);
    this.edge = word(look.background);
    words.fill(this.edge);
    const segment = word(look.segment);
    for (let i = 0; s && i < s.count; i++) {
      if (s.x1[i]! <= w.x0 || s.x0[i]! >= w.x1 || s.y[i]! >= w.y1 || s.y[i]! + s.units[i]! <= w.y0) continue;
      const a = Math.max(0, Math.round((s.x0[i]! - w.x0) * sx));
      const b = Math.min(width, Math.max(a + 1, Math.round((s.x1[i]! - w.x0) * sx)));
      const low = Math.max(0, Math.round((s.y[i]! - w.y0) * sy));
      const high = Math.min(height, Math.max(low + 1, Math.round((s.y[i]! + s.units[i]! - w.y0) * sy)));
      // One pixel stays free at the top, so that segments are told apart.
      const end = high - low > 3 ? high - 1 : high;
      for (let y = low; y < end; y++) words.fill(segment, (height - 1 - y) * width + a, (height - 1 - y) * width + b);
    }
    if (!cover) return;
    const [hr, hg, hb] = rgb(look.hidden);
    const { pixels } = this;
    const column = new Int32Array(width);
    for (let x = 0; x < width; x++) {
      const c = Math.floor(((w.x0 + (x + 0.5) / sx) / look.entries) * cover.columns);
      column[x] = c < 0 || c >= cover.columns ? -1 : c;
    }
    for (let y = 0; y < height; y++) {
      const row = Math.floor(((w.y0 + (y + 0.5) / sy) / look.height) * cover.rows);
      if (row < 0 || row >= cover.rows) continue;
      let p = (height - 1 - y) * width * 4;
      for (let x = 0; x < width; x++, p += 4) {
        const c = column[x]!;
        const share = c < 0 ? 0 : cover.bytes[row * cover.columns + c]!;
        if (share === 0) continue;
        const rest = 255 - share;
        pixels[p] = (hr * share + pixels[p]! * rest) >> 8;
        pixels[p + 1] = (hg * share + pixels[p + 1]! * rest) >> 8;
        pixels[p + 2] = (hb * share + pixels[p + 2]! * rest) >> 8;
      }
    }
  }

  // A large rectangle: opaque rows with an edge, and hatching where it waits for other streams.
  private large(xa: number, xb: number, ya: number, yb: number, waits: number, color: number, alpha: number): void {
    const { width, height, words, palette, pixels, edge } = this;
    const left = xb - xa < 1 ? Math.floor(xa) : Math.round(xa);
    const right = xb - xa < 1 ? left + 1 : Math.round(xb);
    const bottom = yb - ya < 1 ? Math.floor(ya) : Math.round(ya);
    const top = yb - ya < 1 ? bottom + 1 : Math.round(yb);
    const px0 = Math.max(0, left);
    const px1 = Math.min(width, right);
    const py0 = Math.max(0, bottom);
    const py1 = Math.min(height, top);
    const red = palette[color]!;
    const green = palette[color + 1]!;
    const blue = palette[color + 2]!;
    if (alpha < 1) {
      const share = Math.round(alpha * 256);
      const rest = 256 - share;
      for (let y = py0; y < py1; y++) {
        let p = ((height - 1 - y) * width + px0) * 4;
        for (let x = px0; x < px1; x++, p += 4) {
          pixels[p] = (red * share + pixels[p]! * rest) >> 8;
          pixels[p + 1] = (green * share + pixels[p + 1]! * rest) >> 8;
          pixels[p + 2] = (blue * share + pixels[p + 2]! * rest) >> 8;
        }
      }
      return;
    }
    const word = (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    const half = (v: number, shift: number): number => ((v + ((edge >>> shift) & 255)) >> 1) & 255;
    const soft = (0xff000000 | (half(blue, 16) << 16) | (half(green, 8) << 8) | half(red, 0)) >>> 0;
    const hasEdge = xb - xa > 3 && yb - ya > 3;
    const end = hasEdge && right <= width ? px1 - 1 : px1;
    const hatched = Math.max(px0, Math.round(waits));
    for (let y = py0; y < py1; y++) {
      const row = (height - 1 - y) * width;
      if (hasEdge && y === top - 1) {
        words.fill(soft, row + px0, row + px1);
        continue;
      }
      words.fill(word, row + px0, row + end);
      if (end < px1) words[row + end] = soft;
      for (let x = hatched; x < end; x++) if ((x + y) % 6 < 3) words[row + x] = soft;
    }
  }

  // Adds the blocks [from, to) of a tile. `marked` is the only stack that is not dimmed, or 0xffffffff.
  add(tile: Tile, from: number, to: number, w: Window, isFiltered: boolean, marked: number): void {
    const v = tile.instances!;
    const match = isFiltered ? tile.match : null;
    const { width, height, pixels, places, palette, isSize, isWhole } = this;
    const [word, shift, mask] = this.field;
    const sx = width / (w.x1 - w.x0);
    const sy = height / (w.y1 - w.y0);
    const { x0, x1, y0, y1 } = w;
    const start = this.used;
    this.rectangles += to - from;
    if (!isWhole && this.indices.length < start + (to - from) * 6) {
      const larger = new Uint32Array(Math.max(this.indices.length * 2, start + (to - from) * 6));
      larger.set(this.indices.subarray(0, start));
      this.indices = larger;
    }
    const indices = this.indices;
    let at = start;
    for (let i = from, k = from * WORDS; i < to; i++, k += WORDS) {
      const a = v[k]!;
      const b = v[k + 1]!;
      const low = v[k + 2]!;
      const units = v[k + 3]!;
      if (b <= x0 || a >= x1 || low >= y1 || low + units <= y0) continue;
      const xa = (a - x0) * sx;
      const xb = (b - x0) * sx;
      const ya = (low - y0) * sy;
      const yb = (low + units - y0) * sy;
      const isLarge = (xb - xa) * (yb - ya) > SMALL || xb - xa > SMALL || yb - ya > SMALL;
      if (isLarge && !isWhole) {
        const n = i * 4;
        indices[at] = n;
        indices[at + 1] = n + 1;
        indices[at + 2] = n + 2;
        indices[at + 3] = n + 2;
        indices[at + 4] = n + 1;
        indices[at + 5] = n + 3;
        at += 6;
        continue;
      }
      let alpha = (xb - xa < 1 ? xb - xa : 1) * (yb - ya < 1 ? yb - ya : 1);
      if ((match !== null && match[i] === 0) || (marked !== 0xffffffff && v[k + 4] !== marked)) alpha *= 0.13;
      // Of the faintest only some are drawn, and stand for the others.
      if (alpha < 0.0625) {
        const chance = (Math.imul(i + 1, 0x9e3779b1) >>> 8) / 0x1000000;
        if (chance * 0.0625 >= alpha) continue;
        alpha = 0.0625;
      }
      const key = isSize ? (units <= 1 ? 9 : 41 - Math.clz32(units - 1)) : ((v[k + word]! >>> shift) & mask) >>> 0;
      const color = (key < places.length ? places[key]! : OTHER) * 3;
      if (isLarge) {
        this.large(xa, xb, ya, yb, v[k + 7]! > 0 ? xb - v[k + 7]! * sx : Infinity, color, alpha);
        continue;
      }
      const share = Math.round(alpha * 256);
      const rest = 256 - share;
      const red = palette[color]! * share;
      const green = palette[color + 1]! * share;
      const blue = palette[color + 2]! * share;
      // What is smaller than a pixel fills the pixel in part; everything else ends at whole pixels.
      let px0 = xb - xa < 1 ? Math.floor(xa) : Math.round(xa);
      let px1 = xb - xa < 1 ? px0 + 1 : Math.round(xb);
      let py0 = yb - ya < 1 ? Math.floor(ya) : Math.round(ya);
      let py1 = yb - ya < 1 ? py0 + 1 : Math.round(yb);
      if (px0 < 0) px0 = 0;
      if (py0 < 0) py0 = 0;
      if (px1 > width) px1 = width;
      if (py1 > height) py1 = height;
      for (let y = py0; y < py1; y++) {
        let p = ((isWhole ? height - 1 - y : y) * width + px0) * 4;
        for (let x = px0; x < px1; x++, p += 4) {
          pixels[p] = (red + pixels[p]! * rest) >> 8;
          pixels[p + 1] = (green + pixels[p + 1]! * rest) >> 8;
          pixels[p + 2] = (blue + pixels[p + 2]! * rest) >> 8;
          pixels[p + 3] = share === 256 ? 255 : (255 * share + pixels[p + 3]! * rest) >> 8;
        }
      }
    }
    if (at > start) this.runs.push({ tile, start, count: at - start });
    this.used = at;
  }

  // Shows a picture that was drawn as a whole.
  show(c: CanvasRenderingContext2D): void {
    if (this.width > 0) c.putImageData(new ImageData(this.pixels, this.width, this.height), 0, 0);
  }
}
