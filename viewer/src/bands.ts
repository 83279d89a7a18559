// Memory by group in a window: from the levels of the view data, or, where a column of the finest level is wider than a
// pixel, added up from the blocks. A level has the moment of each column at which most was allocated, which is more
// than what was allocated at its other entries.
import type { App, Track } from "./app";
import { keyOf, WORDS } from "./blocks";

export interface Bands {
  first: number; // the entry of the first column
  span: number; // entries in a column
  columns: number;
  rows: number; // one for each name of the group, then blocks that are not stored
  values: Float64Array; // row by row
}

const CLOSING = 4 << 24; // a flag: the entry before its end frees the block

interface Kept {
  key: string;
  bands: Bands;
}
const kept = new WeakMap<Track, Kept>();

// For the entries [x0, x1) in so many pixels. Null while it loads.
export function bandsIn(app: App, track: Track, x0: number, x1: number, pixels: number): Bands | null {
  const r = track.recording;
  const group = r.groups.get(app.by);
  const level = group?.levels.level((x1 - x0) / pixels);
  if (!group || !level) return null;
  const rows = group.info.names.length;
  const isFinest = group.levels.finest() === level;
  if (level.span === 1 || !isFinest || (x1 - x0) / pixels >= level.span || !r.blocks.isLoaded)
    return { first: 0, span: level.span, columns: level.columns, rows, values: level.values };
  // As many entries again on both sides, so that the window can move.
  const first = Math.max(0, Math.floor(2 * x0 - x1));
  const end = Math.min(r.info.entries, Math.ceil(2 * x1 - x0));
  const before = kept.get(track);
  if (before?.key === keyOfWindow(app, track) && covers(before.bands, x0, x1, r.info.entries)) return before.bands;
  const bands = addUp(app, track, first, end, rows);
  kept.set(track, { key: keyOfWindow(app, track), bands });
  return bands;
}

const keyOfWindow = (app: App, track: Track): string => `${app.by}/${app.colorVersion}/${track.recording.blocks.loaded}`;

function covers(bands: Bands, x0: number, x1: number, entries: number): boolean {
  return (
    bands.first <= Math.max(0, Math.floor(x0)) &&
    bands.first + bands.columns >= Math.min(entries, Math.ceil(x1)) &&
    bands.columns <= 8 * (x1 - x0) + 8
  );
}

function addUp(app: App, track: Track, first: number, end: number, rows: number): Bands {
  const columns = Math.max(1, end - first);
  const stride = columns + 1;
  const sums = new Float64Array((rows + 1) * stride);
  const blocks = track.recording.blocks;
  const { by, bands } = track.coloring;
  for (const tile of blocks.tiles) {
    const v = tile.instances;
    if (!v || tile.from >= end || tile.to <= first) continue;
    const [low, high] = blocks.range(tile, first, end);
    for (let i = low, k = low * WORDS; i < high; i++, k += WORDS) {
      const freed = v[k + 1]! - v[k + 7]! - (v[k + 6]! & CLOSING ? 1 : 0);
      const from = Math.max(v[k]!, first);
      const to = Math.min(freed, end);
      if (from >= to) continue;
      const row = Math.min(rows, bands[keyOf(by, tile, i)] ?? rows);
      const bytes = v[k + 3]! * 512 - tile.slack![i]!;
      sums[row * stride + from - first]! += bytes;
      sums[row * stride + to - first]! -= bytes;
    }
  }
  const values = new Float64Array((rows + 1) * columns);
  for (let row = 0; row <= rows; row++)
    for (let i = 0, sum = 0; i < columns; i++) values[row * columns + i] = sum += sums[row * stride + i]!;
  if (!blocks.isComplete) addRest(app, track, first, columns, rows, values);
  return { first, span: 1, columns, rows: rows + 1, values };
}

// What the counter has beyond the stored blocks is in blocks that are not stored.
function addRest(app: App, track: Track, first: number, columns: number, rows: number, values: Float64Array): void {
  for (let i = 0; i < columns; i++) {
    const most = app.counterAt(track, "allocated", first + i)?.[1] ?? 0;
    let sum = 0;
    for (let row = 0; row <= rows; row++) sum += values[row * columns + i]!;
    values[rows * columns + i]! += Math.max(0, most - sum);
  }
}

// The column of an entry; -1 if it is outside.
export function columnOf(bands: Bands, entry: number): number {
  const column = Math.floor((entry - bands.first) / bands.span);
  return column >= 0 && column < bands.columns ? column : -1;
}
