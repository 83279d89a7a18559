// One recording of the view data: blocks, segments, counters, groups, stacks and times, loaded as they are needed.
import { Blocks, OPEN, UNIT, type Tile } from "./blocks";
import { DataError, type GroupInfo, type LevelInfo, type RecordingInfo, type ViewData } from "./data";

export interface Segments {
  count: number;
  x0: Uint32Array;
  x1: Uint32Array;
  y: Uint32Array;
  units: Uint32Array;
  stack: Uint32Array;
  stream: Uint16Array;
  pool: Uint16Array;
  flags: Uint8Array;
}

export interface Stacks {
  frames: [string, string, number][];
  stacks: number[][];
  titles: string[];
}

export interface Level {
  span: number;
  columns: number;
  values: Float64Array; // for counters: min, then max, of each name; for groups: one row for each name
}

// Levels of detail over the same quantity; a level is loaded when it is first asked for.
export class Pyramid {
  private loaded: (Level | null)[];
  private wanted = new Set<number>();

  constructor(
    private readonly data: ViewData,
    private readonly infos: LevelInfo[],
    private readonly rows: number,
    private readonly changed: () => void,
    private readonly failed: (error: unknown) => void,
  ) {
    this.loaded = infos.map(() => null);
  }

  // The best loaded level for a number of entries per pixel. Asks for the right one if it is not there yet.
  level(perPixel: number): Level | null {
    let best = 0;
    while (best + 1 < this.infos.length && this.infos[best + 1]!.span <= perPixel) best++;
    if (!this.loaded[best]) void this.load(best).catch(this.failed);
    for (let k = 0; k < this.infos.length; k++) {
      const level = this.loaded[best + k] ?? this.loaded[best - k];
      if (level) return level;
    }
    return null;
  }

  finest(): Level | null {
    return this.level(0);
  }

  coarsest(): Promise<void> {
    return this.load(this.infos.length - 1);
  }

  private async load(number: number): Promise<void> {
    if (this.loaded[number] || this.wanted.has(number)) return;
    this.wanted.add(number);
    const info = this.infos[number];
    if (!info) return;
    const bytes = await this.data.chunk(info.chunk);
    if (bytes.length !== info.columns * this.rows * 8)
      throw new DataError(
        `chunk "${info.chunk}" should have ${info.columns} columns of ${this.rows} numbers`,
        this.data.offsetOf(info.chunk),
      );
    this.loaded[number] = {
      span: info.span,
      columns: info.columns,
      values: new Float64Array(bytes.buffer, bytes.byteOffset, info.columns * this.rows),
    };
    this.changed();
  }
}

export class Recording {
  readonly blocks: Blocks;
  readonly counters: Pyramid;
  readonly groups = new Map<string, { info: GroupInfo; levels: Pyramid }>();
  segments: Segments | null = null;
  stacks: Stacks | null = null;
  coverage: Uint8Array | null = null;
  times: Float64Array | null = null;

  constructor(
    readonly data: ViewData,
    readonly info: RecordingInfo,
    changed: () => void,
    readonly failed: (error: unknown) => void,
  ) {
    this.blocks = new Blocks(data, info);
    this.counters = new Pyramid(data, info.counters.levels, info.counters.names.length * 2, changed, failed);
    for (const group of info.groups)
      this.groups.set(group.by, {
        info: group,
        levels: new Pyramid(data, group.levels, group.names.length, changed, failed),
      });
  }

  // What the first picture needs; tiles of blocks follow.
  async start(by: string): Promise<void> {
    const group = this.groups.get(by);
    await Promise.all([
      this.loadSegments(),
      this.loadTimes(),
      this.counters.coarsest(),
      group ? group.levels.coarsest() : null,
      this.loadCoverage(),
      this.loadStacks(),
      ...this.blocks.tiles.filter((tile) => tile.info.level === 0).map((tile) => this.blocks.load(tile)),
    ]);
  }

  // The rest of the tiles, one chunk after the other, so that the page stays responsive.
  async loadRest(progress: (loaded: Tile[]) => void): Promise<void> {
    for (const tile of this.blocks.tiles) {
      if (tile.instances) continue;
      await this.blocks.load(tile);
      progress(this.blocks.tiles.filter((other) => other.info.chunk === tile.info.chunk));
      // Lets input and drawing in between.
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
  }

  private async loadSegments(): Promise<void> {
    const { chunk, stored } = this.info.segments;
    const bytes = await this.data.chunk(chunk);
    if (bytes.length < stored * 25)
      throw new DataError(`chunk "${chunk}" should have ${stored} segments`, this.data.offsetOf(chunk));
    let offset = bytes.byteOffset;
    const u32 = (): Uint32Array => {
      const array = new Uint32Array(bytes.buffer, offset, stored);
      offset += 4 * stored;
      return array;
    };
    const u16 = (): Uint16Array => {
      const array = new Uint16Array(bytes.buffer, offset, stored);
      offset += 2 * stored;
      return array;
    };
    const [delta, length, y, units, stack] = [u32(), u32(), u32(), u32(), u32()];
    const [stream, pool] = [u16(), u16()];
    const flags = new Uint8Array(bytes.buffer, offset, stored);
    const x0 = new Uint32Array(stored);
    const x1 = new Uint32Array(stored);
    let x = 0;
    for (let i = 0; i < stored; i++) {
      x += delta[i]!;
      x0[i] = x;
      x1[i] = length[i] === OPEN ? Math.max(1, this.info.entries) : x + length[i]!;
    }
    this.segments = { count: stored, x0, x1, y, units, stack, stream, pool, flags };
  }

  private async loadStacks(): Promise<void> {
    const chunk = this.info.stacks.chunk;
    const bytes = await this.data.chunk(chunk);
    try {
      this.stacks = JSON.parse(new TextDecoder().decode(bytes)) as Stacks;
    } catch {
      throw new DataError(`the stacks in chunk "${chunk}" are not JSON`, this.data.offsetOf(chunk));
    }
  }

  private async loadCoverage(): Promise<void> {
    if (this.info.coverage) this.coverage = await this.data.chunk(this.info.coverage.chunk);
  }

  private async loadTimes(): Promise<void> {
    if (!this.info.times) return;
    const bytes = await this.data.chunk(this.info.times.chunk);
    const count = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    if (bytes.length < 4 + count * 8)
      throw new DataError("the table of times is too short", this.data.offsetOf(this.info.times.chunk));
    this.times = new Float64Array(bytes.buffer.slice(bytes.byteOffset + 4, bytes.byteOffset + 4 + count * 8));
  }

  // The time of an entry in microseconds since the first one, as a range: times are stored for some entries only.
  timeOf(entry: number): [number, number] | null {
    const t = this.times;
    if (!t || t.length === 0) return null;
    if (t.length === 1 || this.info.entries < 2) return [t[0]!, t[0]!];
    const at = (Math.max(0, Math.min(this.info.entries - 1, entry)) * (t.length - 1)) / (this.info.entries - 1);
    const low = Math.floor(at + 1e-9);
    const high = Math.min(t.length - 1, Math.ceil(at - 1e-9));
    return [t[low]!, t[high]!];
  }

  // An estimate, for positions on the axis.
  timeNear(entry: number): number | null {
    const t = this.times;
    if (!t || t.length < 2 || this.info.entries < 2) return null;
    const at = (Math.max(0, Math.min(this.info.entries - 1, entry)) * (t.length - 1)) / (this.info.entries - 1);
    const k = Math.min(t.length - 2, Math.floor(at));
    return t[k]! + (t[k + 1]! - t[k]!) * (at - k);
  }

  // The entry near a time, for alignment.
  entryNear(time: number): number | null {
    const t = this.times;
    if (!t || t.length < 2) return null;
    let low = 0;
    let high = t.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (t[middle]! <= time) low = middle;
      else high = middle;
    }
    const step = t[high]! - t[low]!;
    const share = step > 0 ? (time - t[low]!) / step : 0;
    return ((low + share) * (this.info.entries - 1)) / (t.length - 1);
  }

  // The address of a position on the packed axis.
  addressOf(y: number): number {
    const span = this.spanOf(y);
    return span ? span.address + (y - span.y) * UNIT : 0;
  }

  spanOf(y: number): { y: number; address: number; units: number } | null {
    const spans = this.info.spans;
    let low = 0;
    let high = spans.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (spans[middle]!.y <= y) low = middle;
      else high = middle;
    }
    return spans[low] ?? null;
  }

  // The position of an address, or null if it was never reserved.
  yOf(address: number): number | null {
    for (const span of this.info.spans)
      if (address >= span.address && address < span.address + span.units * UNIT)
        return span.y + (address - span.address) / UNIT;
    return null;
  }

  // The segment at a point, or -1.
  segmentAt(entry: number, y: number): number {
    const s = this.segments;
    if (!s) return -1;
    for (let i = 0; i < s.count && s.x0[i]! <= entry; i++)
      if (s.x1[i]! > entry && y >= s.y[i]! && y < s.y[i]! + s.units[i]!) return i;
    return -1;
  }

  title(stack: number): string {
    return this.stacks?.titles[stack] ?? "";
  }

  // What a block of the stack is called: a stack without frames has a title, too.
  frames(stack: number): [string, string, number][] {
    const s = this.stacks;
    return (s?.stacks[stack] ?? []).map((f) => s!.frames[f] ?? ["not known", "", 0]);
  }
}
