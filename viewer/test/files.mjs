// Where things are, and pages made by the `weir` program.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(fileURLToPath(import.meta.url), "../../..");
export const WEIR = process.env.WEIR ?? join(root, "build/weir");
export const PAGE = process.env.WEIR_PAGE ?? join(root, "build/viewer/page.html");
export const LEAKY_JOB = process.env.WEIR_LEAKY_JOB ?? join(dirname(WEIR), "tests/leaky_job");
export const TRACES = join(root, "tests/data/traces");
export const trace = (name) => join(TRACES, `${name}.pickle.zst`);

export const work = mkdtempSync(join(tmpdir(), "weir-viewer-"));
process.on("exit", () => rmSync(work, { recursive: true, force: true }));

export const hasProgram = () => existsSync(WEIR);

export function weir(...args) {
  return execFileSync(WEIR, args, { encoding: "utf8", maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "pipe"] });
}

// Exit code 3 means that something was found: a leak, for example.
export function json(...args) {
  try {
    return JSON.parse(weir(...args));
  } catch (error) {
    if (error.status !== 3) throw error;
    return JSON.parse(error.stdout);
  }
}

// Makes the page of one or two recordings, and returns its address.
export function pageOf(name, ...files) {
  const out = join(work, `${name}.html`);
  if (!existsSync(out)) weir("view", "--page", PAGE, "-o", out, ...files);
  return `file://${out}`;
}

// A snapshot without a history: one segment of 2 MiB with a block of 1 MiB.
export function snapshotWithoutHistory() {
  const file = join(work, "no-history.pickle");
  const dict = (o) => `(d${Object.entries(o).map(([k, v]) => `S'${k}'\n${v}s`).join("")}`;
  const list = (items) => `(l${items.map((item) => `${item}a`).join("")}`;
  const text = (t) => `S'${t}'\n`;
  const number = (n) => `I${n}\n`;
  const address = 0x7f0000000000;
  const half = 1 << 20;
  const block = (at, state) =>
    dict({
      address: number(at),
      size: number(half),
      requested_size: number(half),
      state: text(state),
      frames: list([]),
    });
  const segment = dict({
    device: number(0),
    address: number(address),
    total_size: number(2 * half),
    allocated_size: number(half),
    active_size: number(half),
    requested_size: number(half),
    stream: number(0),
    segment_type: text("small"),
    is_expandable: number(0),
    blocks: list([block(address, "active_allocated"), block(address + half, "inactive")]),
  });
  writeFileSync(file, `${dict({ segments: list([segment]), device_traces: list([list([])]) })}.`);
  return file;
}

// Records a job that keeps 300,000 bytes in each step.
export function leakyRecording() {
  const folder = join(work, "leaky");
  if (!existsSync(folder)) {
    mkdirSync(folder);
    execFileSync(LEAKY_JOB, ["60", "300000", "100000000"], { env: { ...process.env, WEIR_RECORD: folder } });
  }
  return join(folder, readdirSync(folder).find((name) => name.endsWith(".ring")));
}
