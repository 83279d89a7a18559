// Writes view data (the format of docs/tools/view.md) from plain lives of blocks and segments. The tests use it to make
// data of a known content, damaged data and large data without the `weir` program, which is tested against the same
// page in recordings.test.mjs.
import { deflateSync } from "node:zlib";

const OPEN = 0xffffffff;
export const UNIT = 512;

class Chunks {
  constructor(raw) {
    this.raw = raw;
    this.list = [];
    this.parts = [];
    this.at = 0;
  }
  add(name, bytes) {
    const stored = this.raw ? bytes : deflateSync(bytes, { level: 6 });
    this.list.push({
      name,
      offset: this.at,
      stored: stored.length,
      bytes: bytes.length,
      encoding: this.raw ? "raw" : "deflate",
    });
    const padding = (8 - (stored.length % 8)) % 8;
    this.parts.push({ name, bytes: Buffer.from(stored) }, { name: null, bytes: Buffer.alloc(padding) });
    this.at += stored.length + padding;
    return name;
  }
}

const bytesOf = (...arrays) => Buffer.concat(arrays.map((a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength)));

function deltas(x) {
  const d = new Uint32Array(x.length);
  for (let i = 0, last = 0; i < x.length; i++) {
    d[i] = x[i] - last;
    last = x[i];
  }
  return d;
}

// Columns of the counters at the finest level, then levels of twice the span each.
function levelsOf(entries, most, least) {
  let span = 1;
  while (Math.ceil(entries / span) > most) span *= 2;
  const levels = [];
  for (;;) {
    levels.push({ span, columns: Math.max(1, Math.ceil(entries / span)) });
    if (levels[levels.length - 1].columns <= least) return levels;
    span *= 2;
  }
}

// Writes one recording: r.blocks and r.segments are objects of columns (typed arrays or plain arrays), see
// synthetic.mjs.
function encodeRecording(r, number, chunks) {
  const p = `r${number}`;
  const n = r.blocks.x0.length;
  const entries = r.entries;
  const b = r.blocks;
  const end = (i) => (b.x1[i] === OPEN ? entries : b.x1[i]);
  const area = new Float64Array(n);
  for (let i = 0; i < n; i++) area[i] = b.units[i] * (end(i) - b.x0[i]);
  const order = new Uint32Array(n).map((_, i) => i).sort((i, j) => area[j] - area[i]);
  const stored = Math.min(n, r.most ?? 1000000);
  let power = 1;
  while (power < entries) power *= 2;
  const tiles = new Map();
  let levels = 0;
  for (let rank = 0; rank < stored; rank++) {
    const i = order[rank];
    const level = rank < 16384 ? 0 : Math.floor(Math.log2(rank / 16384)) + 1;
    levels = Math.max(levels, level + 1);
    let depth = level;
    let last = Math.max(b.x0[i], end(i) - 1);
    while (depth > 0 && Math.floor(b.x0[i] / (power / 2 ** depth)) !== Math.floor(last / (power / 2 ** depth))) depth--;
    const key = `${level}/${depth}/${Math.floor(b.x0[i] / (power / 2 ** depth))}`;
    if (!tiles.has(key)) tiles.set(key, []);
    tiles.get(key).push(i);
  }
  const tileList = [];
  for (const [key, members] of tiles) {
    const [level, depth, index] = key.split("/").map(Number);
    members.sort((i, j) => b.x0[i] - b.x0[j]);
    const pick = (column, Type) => Type.from(members, (i) => column[i]);
    const chunk = chunks.add(
      `${p}b${tileList.length}`,
      bytesOf(
        deltas(members.map((i) => b.x0[i])),
        Uint32Array.from(members, (i) => (b.x1[i] === OPEN ? OPEN : b.x1[i] - b.x0[i])),
        pick(b.pending, Uint32Array),
        pick(b.y, Uint32Array),
        pick(b.units, Uint32Array),
        pick(b.slack, Uint32Array),
        pick(b.stack, Uint32Array),
        pick(b.stream, Uint16Array),
        pick(b.pool, Uint16Array),
        pick(b.phase, Uint16Array),
        pick(b.class, Uint8Array),
        pick(b.flags, Uint8Array),
      ),
    );
    tileList.push({ level, depth, index, count: members.length, chunk });
  }

  // The value of each counter after each entry.
  const requested = (i) => b.units[i] * UNIT - b.slack[i];
  const groupKinds = {
    stack: [b.stack, r.stacks.titles],
    size: [Float64Array.from(b.units, (u) => 2 ** Math.floor(Math.log2(u * UNIT))), null],
    stream: [b.stream, r.streams.map((s) => s.name)],
    pool: [b.pool, r.pools.map((s) => s.name)],
    phase: [b.phase, r.phases],
    class: [b.class, r.class_names],
  };
  const change = new Float64Array(entries + 1);
  const waits = new Float64Array(entries + 1);
  for (let i = 0; i < n; i++) {
    change[b.x0[i]] += requested(i);
    const freed = end(i) - b.pending[i];
    if (b.x1[i] !== OPEN || b.pending[i]) change[freed] -= requested(i);
    if (b.pending[i]) {
      waits[freed] += requested(i);
      if (b.x1[i] !== OPEN) waits[end(i)] -= requested(i);
    }
  }
  const reservedChange = new Float64Array(entries + 1);
  const g = r.segments;
  for (let i = 0; i < g.x0.length; i++) {
    reservedChange[g.x0[i]] += g.units[i] * UNIT;
    if (g.x1[i] !== OPEN) reservedChange[g.x1[i]] -= g.units[i] * UNIT;
  }
  const running = (change) => {
    const values = new Float64Array(entries);
    for (let i = 0, sum = 0; i < entries; i++) values[i] = sum += change[i];
    return values;
  };
  const allocated = running(change);
  const reserved = running(reservedChange);
  const pending = running(waits);
  const hole = reserved.map((v, i) => Math.max(0, (v - allocated[i]) * 0.6));
  const counterLevels = levelsOf(entries, 131072, 512).map((level, k) => {
    const parts = [];
    for (const values of [allocated, reserved, hole, pending]) {
      const low = new Float64Array(level.columns).fill(Infinity);
      const high = new Float64Array(level.columns).fill(-Infinity);
      for (let i = 0; i < entries; i++) {
        const c = Math.floor(i / level.span);
        if (values[i] < low[c]) low[c] = values[i];
        if (values[i] > high[c]) high[c] = values[i];
      }
      parts.push(low, high);
    }
    return { ...level, chunk: chunks.add(`${p}c${k}`, bytesOf(...parts)) };
  });

  const peakEntry = allocated.reduce((best, v, i) => (v > allocated[best] ? i : best), 0);
  const reservedEntry = reserved.reduce((best, v, i) => (v > reserved[best] ? i : best), 0);
  const groups = Object.entries(groupKinds).map(([by, [key, names]]) => {
    const atPeak = new Map();
    for (let i = 0; i < n; i++) {
      const alive = b.x0[i] <= peakEntry && end(i) - b.pending[i] > peakEntry;
      atPeak.set(key[i], (atPeak.get(key[i]) ?? 0) + (alive ? requested(i) : 0));
    }
    const sorted = [...atPeak].sort((x, y) => y[1] - x[1]).map(([k]) => k);
    const shown = sorted.slice(0, sorted.length > 16 ? 15 : 16);
    const rank = new Map(shown.map((k, i) => [k, i]));
    const other = sorted.length > shown.length ? shown.length : -1;
    const count = shown.length + (other < 0 ? 0 : 1);
    const changes = Array.from({ length: count }, () => new Float64Array(entries + 1));
    for (let i = 0; i < n; i++) {
      const c = changes[rank.get(key[i]) ?? other];
      c[b.x0[i]] += requested(i);
      if (b.x1[i] !== OPEN || b.pending[i]) c[end(i) - b.pending[i]] -= requested(i);
    }
    const values = changes.map(running);
    const levels = levelsOf(entries, 16384, 512).map((level, k) => {
      const parts = values.map(() => new Float64Array(level.columns));
      for (let c = 0; c < level.columns; c++) {
        let best = c * level.span;
        for (let i = best; i < Math.min(entries, (c + 1) * level.span); i++)
          if (allocated[i] > allocated[best]) best = i;
        parts.forEach((part, j) => (part[c] = values[j][best]));
      }
      return { ...level, chunk: chunks.add(`${p}g${by}${k}`, bytesOf(...parts)) };
    });
    const label = (k) => (by === "size" ? `${k} B and above` : (names[k] ?? `${by} ${k}`) || "(none)");
    return {
      by,
      names: [...shown.map(label), ...(other < 0 ? [] : ["other"])],
      keys: [...shown, ...(other < 0 ? [] : [null])],
      levels,
    };
  });

  let coverage = null;
  if (stored < n) {
    const columns = 512;
    const rows = 256;
    const cells = new Float64Array(columns * rows);
    const cw = entries / columns;
    const ch = r.height / rows;
    for (let rank = stored; rank < n; rank++) {
      const i = order[rank];
      for (let c = Math.floor(b.x0[i] / cw); c < Math.min(columns, Math.ceil(end(i) / cw)); c++) {
        const w = Math.min(end(i), (c + 1) * cw) - Math.max(b.x0[i], c * cw);
        for (let row = Math.floor(b.y[i] / ch); row < Math.min(rows, Math.ceil((b.y[i] + b.units[i]) / ch)); row++) {
          const h = Math.min(b.y[i] + b.units[i], (row + 1) * ch) - Math.max(b.y[i], row * ch);
          cells[row * columns + c] += (w * h) / (cw * ch);
        }
      }
    }
    const bytes = Uint8Array.from(cells, (v) => Math.min(255, Math.round(v * 255)));
    coverage = { columns, rows, chunk: chunks.add(`${p}v`, Buffer.from(bytes)) };
  }

  const gOrder = [...g.x0.keys()].sort((i, j) => g.x0[i] - g.x0[j]);
  const gPick = (column, Type) => Type.from(gOrder, (i) => column[i]);
  const segments = {
    total: g.x0.length,
    stored: g.x0.length,
    chunk: chunks.add(
      `${p}g`,
      bytesOf(
        deltas(gOrder.map((i) => g.x0[i])),
        Uint32Array.from(gOrder, (i) => (g.x1[i] === OPEN ? OPEN : g.x1[i] - g.x0[i])),
        gPick(g.y, Uint32Array),
        gPick(g.units, Uint32Array),
        gPick(g.stack, Uint32Array),
        gPick(g.stream, Uint16Array),
        gPick(g.pool, Uint16Array),
        gPick(g.flags, Uint8Array),
      ),
    ),
  };

  const times = r.times;
  let timesIndex;
  if (times) {
    const count = Math.min(4096, entries);
    const table = new Float64Array(count);
    for (let i = 0; i < count; i++) table[i] = times(count === 1 ? 0 : Math.round((i * (entries - 1)) / (count - 1)));
    timesIndex = {
      chunk: chunks.add(
        `${p}t`,
        Buffer.concat([Buffer.from(new Uint32Array([count, 0]).buffer).subarray(0, 4), bytesOf(table)]),
      ),
    };
  }
  const stackChunk = chunks.add(`${p}s`, Buffer.from(JSON.stringify(r.stacks)));
  const marks = r.marks ?? [];
  return {
    name: r.name,
    conf: r.conf ?? null,
    setting_label: r.setting_label ?? null,
    device: 0,
    devices: [0],
    entries,
    dropped: 0,
    ooms: marks.filter((m) => m.kind === "oom").length,
    first_us: times ? 1700000000000000 : 0,
    last_us: times ? 1700000000000000 + times(entries - 1) : 0,
    is_complete: true,
    peak: {
      allocated: allocated[peakEntry],
      allocated_entry: peakEntry,
      reserved: reserved[reservedEntry],
      reserved_entry: reservedEntry,
    },
    summary: r.summary ?? null,
    explain: r.explain ?? null,
    explain_text: r.explain_text ?? null,
    leaks: r.leaks ?? null,
    classes: r.classes ?? null,
    height: r.height,
    spans: r.spans ?? [{ y: 0, address: 0x7f0000000000, units: r.height }],
    streams: r.streams,
    pools: r.pools,
    phases: r.phases,
    class_names: r.class_names,
    ...(timesIndex ? { times: timesIndex } : {}),
    marks: [
      ...marks,
      { entry: peakEntry, kind: "peak", name: "peak of allocated memory", bytes: allocated[peakEntry] },
    ],
    marks_total: marks.length + 1,
    stacks: { chunk: stackChunk, count: r.stacks.stacks.length },
    counters: { names: ["allocated", "reserved", "largest_hole", "pending"], levels: counterLevels },
    groups,
    blocks: {
      total: n,
      stored,
      hidden_bytes_max: stored < n ? order.subarray(stored).reduce((most, i) => Math.max(most, requested(i)), 0) : 0,
      levels,
      tiles: tileList,
    },
    coverage,
    segments,
  };
}

// Returns the byte string, and what a page needs to contain it.
export function encode(recordings, { diff = null, raw = false } = {}) {
  const chunks = new Chunks(raw);
  const index = {
    version: 1,
    producer: "weir test",
    recordings: recordings.map((r, i) => encodeRecording(r, i, chunks)),
    diff,
    chunks: chunks.list,
  };
  return pack(index, chunks.parts);
}

export function pack(index, parts) {
  const text = Buffer.from(JSON.stringify(index));
  const head = Buffer.alloc(16);
  head.write("WEIRVIEW", 0, "latin1");
  head.writeUInt32LE(1, 8);
  head.writeUInt32LE(text.length, 12);
  return { index, parts, bytes: Buffer.concat([head, text, ...parts.map((part) => part.bytes)]) };
}

// The page with the data in it, as `weir view -o` writes it.
export function pageWith(html, view) {
  const index = JSON.stringify(view.index).replaceAll("<", "\\u003c");
  const elements = [`<script type="application/json" id="weir-index">${index}</script>\n`];
  for (const part of view.parts)
    if (part.name !== null)
      elements.push(
        `<script type="text/plain" class="weir-chunk" data-chunk="${part.name}">${part.bytes.toString("base64")}</script>\n`,
      );
  const at = html.lastIndexOf("</body>");
  return html.slice(0, at) + elements.join("") + html.slice(at);
}
