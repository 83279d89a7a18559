// Synthetic recordings with a known content. `node synthetic.mjs PAGE.html OUT.html [BLOCKS]` writes a page.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { encode, pageWith } from "./encode.mjs";

const OPEN = 0xffffffff;

// A small generator of random numbers (mulberry32), so that the data is the same everywhere.
export function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const columns = () => ({
  x0: [],
  x1: [],
  pending: [],
  y: [],
  units: [],
  slack: [],
  stack: [],
  stream: [],
  pool: [],
  phase: [],
  class: [],
  flags: [],
});

// Training steps on lanes of addresses: long lives low, short ones high. `count` blocks, two entries each.
export function synthetic(count, { seed = 1, name = "synthetic", growth = 0, most } = {}) {
  const next = random(seed);
  const entries = count * 2 + 1;
  const b = columns();
  const frames = [];
  const stacks = [[]];
  const titles = ["no stack recorded"];
  for (let i = 0; i < 64; i++) {
    frames.push([`layer_${i}.forward`, `model/layer.py`, 10 + i]);
    stacks.push([frames.length - 1, Math.max(0, frames.length - 2), 0]);
    titles.push(`layer_${i}.forward (layer.py:${10 + i})`);
  }
  // Each lane is a sequence of blocks, one after the other, with holes between them.
  const lanes = Math.max(8, Math.round(Math.sqrt(count) / 4));
  const per = Math.ceil(count / lanes);
  let y = 0;
  for (let lane = 0; lane < lanes; lane++) {
    const units = Math.round(2 ** (2 + next() * 11)) + growth;
    const wanted = Math.min(per, count - lane * per);
    const step = entries / Math.max(1, wanted);
    for (let i = 0; i < wanted; i++) {
      const x0 = Math.min(entries - 2, Math.floor(i * step + next() * step * 0.2));
      const isLast = i === wanted - 1 && lane % 3 === 0;
      const x1 = isLast ? OPEN : Math.max(x0 + 1, Math.min(entries - 1, Math.floor((i + 0.6 + next() * 0.35) * step)));
      b.x0.push(x0);
      b.x1.push(x1);
      b.pending.push(!isLast && lane % 5 === 1 && x1 - x0 > 4 ? Math.floor((x1 - x0) / 4) : 0);
      b.y.push(y);
      b.units.push(Math.max(1, Math.floor(units * (0.5 + next() * 0.5))));
      b.slack.push(Math.floor(next() * 511));
      b.stack.push(1 + Math.floor(next() * 64));
      b.stream.push(lane % 3);
      b.pool.push(lane % 2);
      b.phase.push(1 + (Math.floor((x0 / entries) * 30) % 3));
      b.class.push(lane % 5);
      b.flags.push(isLast ? 2 : 0);
    }
    y += units + 1;
  }
  for (const key of ["x0", "x1", "pending", "y", "units", "slack", "stack"]) b[key] = Uint32Array.from(b[key]);
  const g = { x0: [], x1: [], y: [], units: [], stack: [], stream: [], pool: [], flags: [] };
  const pieces = Math.min(lanes, 24);
  for (let i = 0; i < pieces; i++) {
    const from = Math.floor((i * y) / pieces);
    g.x0.push(0);
    g.x1.push(OPEN);
    g.y.push(from);
    g.units.push(Math.floor(((i + 1) * y) / pieces) - from);
    g.stack.push(0);
    g.stream.push(0);
    g.pool.push(0);
    g.flags.push(2);
  }
  const marks = [{ entry: Math.floor(entries * 0.8), kind: "oom", name: "out of memory", bytes: 1 << 30 }];
  const names = ["", "forward", "backward", "optimizer"];
  for (let i = 0; i < 30; i++)
    marks.push({
      entry: Math.floor((i * entries) / 30),
      end: Math.floor(((i + 1) * entries) / 30),
      kind: "phase",
      name: names[1 + (i % 3)],
      bytes: 0,
    });
  return {
    name,
    entries,
    height: y,
    blocks: b,
    segments: g,
    stacks: { frames, stacks, titles },
    streams: [0, 1, 2].map((i) => ({ name: i ? `stream ${i}` : "the default stream", handle: `0x${i}` })),
    pools: [
      { name: "default pool", id: [0, 0] },
      { name: "private pool 1", id: [0, 1] },
    ],
    phases: names,
    class_names: ["unknown", "weights", "gradients", "optimizer state", "activations"],
    times: (i) => i * 12.5,
    marks,
    most,
  };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const [, , html, out, count] = process.argv;
  writeFileSync(out, pageWith(readFileSync(html, "utf8"), encode([synthetic(Number(count ?? 2000))])));
}
