// Where things are, and pages made by the `weir` program.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
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

// Records a job that keeps 300,000 bytes in each step.
export function leakyRecording() {
  const folder = join(work, "leaky");
  if (!existsSync(folder)) {
    mkdirSync(folder);
    execFileSync(LEAKY_JOB, ["60", "300000", "100000000"], { env: { ...process.env, WEIR_RECORD: folder } });
  }
  return join(folder, readdirSync(folder).find((name) => name.endsWith(".ring")));
}
