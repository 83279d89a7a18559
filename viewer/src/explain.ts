// What `weir explain --json` says, in the form that the views draw.
import { UNIT, WORDS } from "./blocks";
import type { Recording } from "./recording";

export interface PinBlock {
  address: number;
  size: number;
  requested: number;
  event: number | null;
  age: number | null;
}

export interface Pin {
  address: number;
  size: number;
  free: number;
  pinned: number;
  count: number;
  blocks: PinBlock[];
}

export interface Trial {
  remedy: string;
  works: boolean;
  reserved: number;
  change: string | null;
  conf: string | null;
  isWeirOnly: boolean;
  dependsOnStreams: boolean;
  dependsOnLimit: boolean;
  orders: number;
  ordersServed: number;
  after: number | null;
}

export interface Explained {
  entry: number;
  moment: string;
  isOom: boolean;
  request: number | null; // as the program made it
  wanted: number | null; // the segment that it needed
  reserved: number | null;
  limit: number | null;
  limitMost: number | null;
  isLimitInferred: boolean;
  missing: [number, number] | null;
  enough: number | null;
  largestHole: number | null;
  cause: string | null;
  uses: { use: string; label: string; bytes: number }[];
  pinsKind: string;
  pins: Pin[];
  holes: { address: number; size: number; use: string }[] | null;
  trials: Trial[];
  unknown: string | null;
}

type Json = Record<string, unknown>;

const number = (v: unknown): number | null => (typeof v === "number" ? v : null);
const list = (v: unknown): Json[] => (Array.isArray(v) ? (v as Json[]) : []);
const text = (v: unknown): string | null => (typeof v === "string" ? v : null);

const cache = new WeakMap<Recording, Explained | null>();

// Null if nothing was explained.
export function explained(r: Recording): Explained | null {
  let known = cache.get(r);
  if (known === undefined) {
    known = read(r.info.explain as Json | null);
    cache.set(r, known);
  }
  return known;
}

function read(x: Json | null): Explained | null {
  if (!x || typeof x !== "object") return null;
  const pins = x["pins"] as Json | null;
  const missing = x["missing"] as Json | null;
  const request = x["request"] as Json | null;
  return {
    entry: number(x["event"]) ?? 0,
    moment: text(x["moment"]) ?? "",
    isOom: x["moment"] === "oom",
    request: request ? number(request["bytes"]) : null,
    wanted: request ? (number(request["wanted"]) ?? number(request["rounded"]) ?? number(request["bytes"])) : null,
    reserved: number(x["reserved"]),
    limit: number(x["limit"]),
    limitMost: number(x["limit_max"]),
    isLimitInferred: x["limit_is_inferred"] === true,
    missing: missing ? [number(missing["least"]) ?? 0, number(missing["most"]) ?? 0] : null,
    enough: number(x["enough_for_request"]),
    largestHole: number(x["largest_hole"]),
    cause: text(x["cause"]),
    uses: Object.entries((x["bytes"] as Json | null) ?? {}).map(([use, v]) => ({
      use,
      label: text((x["labels"] as Json | null)?.[use]) ?? use,
      bytes: number(v) ?? 0,
    })),
    pinsKind: text(pins?.["kind"]) ?? "",
    pins: list(pins?.["segments"]).map((s) => ({
      address: number(s["address"]) ?? 0,
      size: number(s["size"]) ?? 0,
      free: number(s["free"]) ?? 0,
      pinned: number(s["pinned"]) ?? 0,
      count: number(s["count"]) ?? 0,
      blocks: list(s["blocks"]).map((b) => ({
        address: number(b["address"]) ?? 0,
        size: number(b["size"]) ?? 0,
        requested: number(b["requested"]) ?? 0,
        event: number(b["event"]),
        age: number(b["age_us"]),
      })),
    })),
    holes: Array.isArray(x["holes"])
      ? list(x["holes"]).map((b) => ({
          address: number(b["address"]) ?? 0,
          size: number(b["size"]) ?? 0,
          use: text(b["use"]) ?? "",
        }))
      : null,
    trials: list(x["trials"]).map((t) => ({
      remedy: text(t["remedy"]) ?? "",
      works: t["works"] === true,
      reserved: number(t["reserved"]) ?? 0,
      change: text(t["change"]),
      conf: text(t["conf"]),
      isWeirOnly: t["weir_only"] === true,
      dependsOnStreams: t["depends_on_streams"] === true,
      dependsOnLimit: t["depends_on_limit"] === true,
      orders: number(t["orders"]) ?? 0,
      ordersServed: number(t["orders_served"]) ?? 0,
      after: number(t["after_event"]),
    })),
    unknown: text(x["unknown"]),
  };
}

export const CAUSES: Record<string, string> = {
  none: "There was enough memory.",
  exhausted: "The memory was in use: there was not enough free memory in any form.",
  fragmented: "Fragmentation: enough bytes were free, but not in one piece.",
  streams: "The free memory belonged to other streams.",
  pools: "The free memory belonged to other pools.",
  class: "The free memory was in segments for the other size class.",
  waiting: "The free memory was still waiting for other streams.",
  mixed: "Several causes together.",
};

// A free piece of reserved memory. `elsewhere` says why the request could not use it, and is empty if it could.
export interface Hole {
  y: number;
  units: number;
  elsewhere: string;
}

const ELSEWHERE: Record<string, string> = {
  free_class: "for other sizes",
  free_stream: "of another stream",
  free_pool: "of another pool",
};

// The free pieces of reserved memory at an entry, largest first. They are exact only if every block is stored and
// loaded.
export function holesAt(r: Recording, entry: number): { list: Hole[]; isExact: boolean } {
  const s = r.segments;
  if (!s) return { list: [], isExact: false };
  const used: { y: number; end: number }[] = [];
  r.blocks.eachAt(entry, (tile, i) => {
    const v = tile.instances!;
    used.push({ y: v[i * WORDS + 2]!, end: v[i * WORDS + 2]! + v[i * WORDS + 3]! });
  });
  used.sort((a, b) => a.y - b.y);
  const list: Hole[] = [];
  const segments: { y: number; end: number }[] = [];
  for (let i = 0; i < s.count && s.x0[i]! <= entry; i++)
    if (s.x1[i]! > entry) segments.push({ y: s.y[i]!, end: s.y[i]! + s.units[i]! });
  segments.sort((a, b) => a.y - b.y);
  let next = 0;
  for (const segment of segments) {
    let at = segment.y;
    while (next < used.length && used[next]!.end <= at) next++;
    while (next < used.length && used[next]!.y < segment.end) {
      if (used[next]!.y > at) list.push({ y: at, units: used[next]!.y - at, elsewhere: "" });
      at = Math.max(at, used[next]!.end);
      if (used[next]!.end > segment.end) break;
      next++;
    }
    if (at < segment.end) list.push({ y: at, units: segment.end - at, elsewhere: "" });
  }
  list.sort((a, b) => b.units - a.units);
  return {
    list,
    isExact: r.blocks.isComplete && r.blocks.isLoaded && r.info.segments.stored === r.info.segments.total,
  };
}

const holes = new WeakMap<Recording, { loaded: number; result: { list: Hole[]; isExact: boolean } }>();

// The holes of the explained moment: those that `weir explain` names, else those of the stored blocks if all are
// stored.
export function describeHoles(r: Recording, x: Explained): { list: Hole[]; isExact: boolean } {
  const known = holes.get(r);
  if (known && known.loaded === r.blocks.loaded) return known.result;
  let result: { list: Hole[]; isExact: boolean };
  if (x.holes) {
    const found = x.holes.flatMap((hole) => {
      const y = r.yOf(hole.address);
      return y === null ? [] : [{ y, units: hole.size / UNIT, elsewhere: ELSEWHERE[hole.use] ?? "" }];
    });
    result = { list: found, isExact: true };
  } else {
    const all = holesAt(r, x.entry);
    result = all.isExact ? { list: all.list.slice(0, 1000), isExact: true } : { list: [], isExact: false };
  }
  holes.set(r, { loaded: r.blocks.loaded, result });
  return result;
}
