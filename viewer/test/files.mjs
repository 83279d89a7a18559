// Where things are, and pages made by the `weir` program.
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(fileURLToPath(import.meta.url), "../../..");
export const WEIR = process.env.WEIR ?? join(root, "build/weir");
export const PAGE = process.env.WEIR_PAGE ?? join(root, "build/viewer/page.html");
export const TRACES = join(root, "tests/data/traces");
export const trace = (name) => join(TRACES, `${name}.pickle.zst`);

export const work = mkdtempSync(join(tmpdir(), "weir-viewer-"));
process.on("exit", () => rmSync(work, { recursive: true, force: true }));

export const hasProgram = () => existsSync(WEIR);

export function weir(...args) {
  return execFileSync(WEIR, args, { encoding: "utf8", maxBuffer: 1 << 28, stdio: ["ignore", "pipe", "pipe"] });
}

export const json = (...args) => JSON.parse(weir(...args));

// Makes the page of one or two recordings, and returns its address.
export function pageOf(name, ...files) {
  const out = join(work, `${name}.html`);
  if (!existsSync(out)) weir("view", "--page", PAGE, "-o", out, ...files);
  return `file://${out}`;
}
