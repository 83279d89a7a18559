// The blocks of a recording: rectangles in tiles. A tile is loaded when the window first needs it, and its buffer is
// both what the GPU draws and what picking and search read.
import { DataError, type RecordingInfo, type TileInfo, type ViewData } from "./data";

export const UNIT = 512;
export const OPEN = 0xffffffff;
export const NO_POOL = 0xffff;

// Words of a rectangle, and rectangles in a row of the texture that the GPU reads; rows are whole.
export const WORDS = 8;
export const PER_ROW = 1024;
const X0 = 0;
const X1 = 1;
const Y = 2;
const UNITS = 3;
const STACK = 4;
const STREAM_POOL = 5;
const PHASE_CLASS_FLAGS = 6;
const PENDING = 7;

export interface Tile {
  readonly info: TileInfo;
  readonly from: number; // the interval of the tile
  readonly to: number;
  readonly base: number; // the number of its first block
  instances: Uint32Array | null; // null until it is loaded
  slack: Uint32Array | null;
  match: Uint8Array | null; // 1 where the search matches; null if there is no search
  version: number; // changes with `match`
  ends: Uint32Array | null; // the latest end of the blocks up to each 256th
}

// One block, read out of its tile. x1 is the end (exclusive).
export interface Block {
  id: number;
  x0: number;
  x1: number;
  y: number;
  units: number;
  requested: number;
  stack: number;
  stream: number;
  pool: number;
  phase: number;
  class: number;
  pending: number;
  isBefore: boolean;
  isAlive: boolean;
}

export interface Filter {
  matches(tile: Tile, i: number): boolean;
}

export class Blocks {
  readonly tiles: Tile[] = [];
  readonly total: number;
  readonly stored: number;
  loaded = 0;
  private byChunk = new Map<string, Tile[]>();
  private loading = new Map<string, Promise<void>>();
  private filter: Filter | null = null;

  constructor(
    private readonly data: ViewData,
    private readonly info: RecordingInfo,
  ) {
    this.total = info.blocks.total;
    this.stored = info.blocks.stored;
    let power = 1;
    while (power < info.entries) power *= 2;
    let base = 0;
    const sorted = [...info.blocks.tiles].sort((a, b) => a.level - b.level || a.depth - b.depth || a.index - b.index);
    for (const tile of sorted) {
      const width = power / 2 ** tile.depth;
      this.tiles.push({
        info: tile,
        from: tile.index * width,
        to: (tile.index + 1) * width,
        base,
        instances: null,
        slack: null,
        match: null,
        version: 0,
        ends: null,
      });
      base += tile.count;
      const list = this.byChunk.get(tile.chunk);
      const last = this.tiles[this.tiles.length - 1]!;
      if (list) list.push(last);
      else this.byChunk.set(tile.chunk, [last]);
    }
  }

  get isComplete(): boolean {
    return this.stored === this.total;
  }

  get isLoaded(): boolean {
    return this.loaded === this.stored;
  }

  // Loads the tile, and the others in its chunk.
  load(tile: Tile): Promise<void> {
    const name = tile.info.chunk;
    if (tile.instances) return Promise.resolve();
    let work = this.loading.get(name);
    if (!work) {
      work = this.data
        .chunk(name)
        .then((bytes) => {
          for (const each of this.byChunk.get(name) ?? []) this.decode(each, bytes);
        })
        .finally(() => this.loading.delete(name));
      this.loading.set(name, work);
    }
    return work;
  }

  private decode(tile: Tile, chunk: Uint8Array): void {
    if (tile.instances) return;
    const n = tile.info.count;
    const at = tile.info.at ?? 0;
    const size = n * 36;
    if (at + size > chunk.length)
      throw new DataError(
        `tile ${tile.info.level}/${tile.info.depth}/${tile.info.index} should have ${size} bytes at ${at} of chunk "${tile.info.chunk}"`,
        this.data.offsetOf(tile.info.chunk),
      );
    const bytes = at % 4 === 0 ? chunk : chunk.slice(at, at + size);
    let offset = bytes.byteOffset + (at % 4 === 0 ? at : 0);
    const u32 = (): Uint32Array => {
      const array = new Uint32Array(bytes.buffer, offset, n);
      offset += 4 * n;
      return array;
    };
    const u16 = (): Uint16Array => {
      const array = new Uint16Array(bytes.buffer, offset, n);
      offset += 2 * n;
      return array;
    };
    const u8 = (): Uint8Array => {
      const array = new Uint8Array(bytes.buffer, offset, n);
      offset += n;
      return array;
    };
    const [x0, length, pending, y, units, slack, stack] = [u32(), u32(), u32(), u32(), u32(), u32(), u32()];
    const [stream, pool, phase] = [u16(), u16(), u16()];
    const [kind, flags] = [u8(), u8()];
    const out = new Uint32Array(Math.ceil(n / PER_ROW) * PER_ROW * WORDS);
    const entries = Math.max(1, this.info.entries); // a snapshot without a history has one moment
    let x = 0;
    for (let i = 0, k = 0; i < n; i++, k += WORDS) {
      x += x0[i]!;
      const d = length[i]!;
      out[k + X0] = x;
      out[k + X1] = d === OPEN ? entries : x + d;
      out[k + Y] = y[i]!;
      out[k + UNITS] = units[i]!;
      out[k + STACK] = stack[i]!;
      out[k + STREAM_POOL] = stream[i]! | (pool[i]! << 16);
      out[k + PHASE_CLASS_FLAGS] = phase[i]! | (kind[i]! << 16) | ((flags[i]! | (d === OPEN ? 2 : 0)) << 24);
      out[k + PENDING] = pending[i]!;
    }
    const ends = new Uint32Array(Math.ceil(n / 256));
    for (let i = 0, latest = 0; i < n; i++) ends[i >> 8] = latest = Math.max(latest, out[i * WORDS + X1]!);
    tile.ends = ends;
    tile.instances = out;
    tile.slack = slack.slice();
    this.loaded += n;
    if (this.filter) this.mark(tile);
  }

  get(id: number): Block | null {
    let low = 0;
    let high = this.tiles.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.tiles[middle]!.base <= id) low = middle;
      else high = middle;
    }
    const tile = this.tiles[low];
    return tile && tile.instances ? this.at(tile, id - tile.base) : null;
  }

  at(tile: Tile, i: number): Block {
    const v = tile.instances!;
    const k = i * WORDS;
    const packed = v[k + PHASE_CLASS_FLAGS]!;
    const flags = packed >>> 24;
    return {
      id: tile.base + i,
      x0: v[k + X0]!,
      x1: v[k + X1]!,
      y: v[k + Y]!,
      units: v[k + UNITS]!,
      requested: v[k + UNITS]! * UNIT - tile.slack![i]!,
      stack: v[k + STACK]!,
      stream: v[k + STREAM_POOL]! & 0xffff,
      pool: v[k + STREAM_POOL]! >>> 16,
      phase: packed & 0xffff,
      class: (packed >>> 16) & 0xff,
      pending: v[k + PENDING]!,
      isBefore: (flags & 1) !== 0,
      isAlive: (flags & 2) !== 0,
    };
  }

  // The blocks [from, to) of a loaded tile that may lie in a window: the others begin after it, or end before it.
  range(tile: Tile, x0: number, x1: number): [number, number] {
    const v = tile.instances!;
    let low = 0;
    let high = tile.info.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (v[middle * WORDS]! < x1) low = middle + 1;
      else high = middle;
    }
    const to = low;
    const ends = tile.ends!;
    low = 0;
    high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle]! <= x0) low = middle + 1;
      else high = middle;
    }
    return [Math.min(to, low * 256), to];
  }

  // Calls f for each loaded block whose life contains the entry.
  eachAt(entry: number, f: (tile: Tile, i: number) => void): void {
    for (const tile of this.tiles) {
      const v = tile.instances;
      if (!v || entry < tile.from || entry >= tile.to) continue;
      const [from, to] = this.range(tile, entry, entry + 1);
      for (let i = from, k = from * WORDS; i < to; i++, k += WORDS) if (v[k + X1]! > entry) f(tile, i);
    }
  }

  // Calls f for each loaded block.
  each(f: (tile: Tile, i: number) => void): void {
    for (const tile of this.tiles) if (tile.instances) for (let i = 0; i < tile.info.count; i++) f(tile, i);
  }

  // The loaded block at a point, or null.
  pick(entry: number, y: number): Block | null {
    let found: Block | null = null;
    this.eachAt(entry, (tile, i) => {
      const v = tile.instances!;
      const k = i * WORDS;
      if (y >= v[k + Y]! && y < v[k + Y]! + v[k + UNITS]!) found = this.at(tile, i);
    });
    return found;
  }

  setFilter(filter: Filter | null): void {
    this.filter = filter;
    for (const tile of this.tiles) this.mark(tile);
  }

  private mark(tile: Tile): void {
    tile.version++;
    if (!this.filter) tile.match = null;
    if (!this.filter || !tile.instances) return;
    const match = new Uint8Array(tile.instances.length / WORDS);
    for (let i = 0; i < tile.info.count; i++) match[i] = this.filter.matches(tile, i) ? 1 : 0;
    tile.match = match;
  }
}

// The logarithm of the smallest power of two that holds a size: 9 for up to 512 bytes, 10 for up to 1024, ...
export function sizeClass(units: number): number {
  return units <= 1 ? 9 : 41 - Math.clz32(units - 1);
}

// The value by which blocks are coloured and grouped. The shader computes the same.
export function keyOf(by: string, tile: Tile, i: number): number {
  const v = tile.instances!;
  const k = i * WORDS;
  switch (by) {
    case "stack":
      return v[k + STACK]!;
    case "size":
      return sizeClass(v[k + UNITS]!);
    case "stream":
      return v[k + STREAM_POOL]! & 0xffff;
    case "pool":
      return v[k + STREAM_POOL]! >>> 16;
    case "phase":
      return v[k + PHASE_CLASS_FLAGS]! & 0xffff;
    default:
      return (v[k + PHASE_CLASS_FLAGS]! >>> 16) & 0xff;
  }
}
