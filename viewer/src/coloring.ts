// Which colour a block and a band has: by stack, size, stream, pool, phase or class. The names come from the groups of
// the recordings; a name has the same colour in both of two recordings.
import { NO_POOL } from "./blocks";
import { groupColors, OTHER, sizeColor, type Theme } from "./colors";
import type { Recording } from "./recording";

export const KINDS = ["stack", "size", "stream", "pool", "phase", "class"];

export interface Coloring {
  by: string;
  names: string[]; // as in the group
  colors: string[]; // of each name of the group
  places: Uint8Array; // key of a block -> number in `palette`
  palette: string[];
  keys: (number | null)[]; // of each name; for sizes the logarithm
  bands: Uint8Array; // key of a block -> number of the name; 255 for the rest
}

// The keys of a group as those of blocks: sizes are upper bounds, and a pool that is not known has 15 bits there.
function keysOfGroup(by: string, keys: (number | null)[]): (number | null)[] {
  if (by === "size") return keys.map((k) => (k === null ? null : Math.round(Math.log2(k))));
  if (by === "pool") return keys.map((k) => (k === 0x7fff ? NO_POOL : k));
  return keys;
}

export function makeColoring(recordings: Recording[], by: string, theme: Theme): Coloring[] {
  const base = groupColors(theme);
  const given = new Map<string, number>();
  return recordings.map((r) => {
    const info = r.groups.get(by)?.info;
    const names = info?.names ?? [];
    const keys = keysOfGroup(by, info?.keys ?? []);
    const palette = [...base];
    const places: number[] = [];
    const colors = names.map((name, i) => {
      const key = keys[i];
      if (key === null || key === undefined) return palette[OTHER]!;
      if (by === "size") {
        const color = sizeColor(key, theme);
        palette.push(color);
        places[key] = palette.length - 1;
        return color;
      }
      let place = given.get(name);
      if (place === undefined) {
        place = given.size < OTHER ? given.size : OTHER;
        given.set(name, place);
      }
      places[key] = place;
      return palette[place]!;
    });
    const most = by === "stack" ? Math.max(1, r.info.stacks.count) : 65536;
    const table = new Uint8Array(most).fill(OTHER);
    for (const key of keys) if (key !== null && key !== undefined && key < most) table[key] = places[key] ?? OTHER;
    // Stacks with the same title are one group; its key is one of them.
    if (by === "stack" && r.stacks) {
      const byTitle = new Map(names.map((name, i) => [name, keys[i] == null ? OTHER : (places[keys[i]] ?? OTHER)]));
      r.stacks.titles.forEach((title, i) => (table[i] = byTitle.get(title) ?? table[i]!));
    }
    // Sizes that are not among the names keep the colour of their class.
    if (by === "size")
      for (let log = 9; log < 48; log++)
        if (places[log] === undefined) {
          palette.push(sizeColor(log, theme));
          table[log] = palette.length - 1;
        }
    palette.push(base[OTHER]!);
    const rest = keys.indexOf(null);
    const bands = new Uint8Array(most).fill(rest < 0 ? 255 : rest);
    keys.forEach((key, i) => {
      if (key !== null && key < most) bands[key] = i;
    });
    if (by === "stack" && r.stacks) {
      const byTitle = new Map(names.map((name, i) => [name, i]));
      r.stacks.titles.forEach((title, i) => (bands[i] = byTitle.get(title) ?? bands[i]!));
    }
    return { by, names, colors, places: table, palette, keys, bands };
  });
}
