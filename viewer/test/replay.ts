// Replays recordings with the WebAssembly module under Node.js, for tests/viewer/wasm.sh:
//
//   node replay.js WASM FILE OUT [CONF...]
//
// For each CONF, which may end in @BYTES of the device's memory, OUT.N.json gets the answer, and OUT.N.pickle the
// predicted history. With --time in place of OUT, it prints how long the answers take: on the clock, and of a
// processor.
//
//   node replay.js --same A.json B.json
//
// compares two answers.
import { isDeepStrictEqual } from "node:util";
import { readFileSync, writeFileSync } from "node:fs";
import { Module } from "../src/module";
import { unpack } from "../src/unpack";

async function main(): Promise<void> {
  const [wasm, file, out, ...confs] = process.argv.slice(2) as [string, string, string, ...string[]];
  if (wasm === "--same") {
    const [a, b] = [file, out].map((path) => JSON.parse(readFileSync(path, "utf8")) as unknown);
    process.exitCode = isDeepStrictEqual(a, b) ? 0 : 1;
    return;
  }
  const module = await Module.make(readFileSync(wasm));
  const bytes = readFileSync(file);
  const begin = now();
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
  const info = module.load(file, await unpack(buffer));
  const loaded = now();
  const picture = new Uint8Array(module.view(info.device));
  if (new TextDecoder().decode(picture.subarray(0, 8)) !== "WEIRVIEW") throw new Error("it has no view data");
  const viewed = now();
  if (out === "--time") console.log(`${info.entries} entries: load ${since(begin, loaded)}, view ${since(loaded, viewed)}`);
  for (const [i, text] of confs.entries()) {
    const [conf, memory] = text.split("@") as [string, string | undefined];
    const from = now();
    const { result, view } = module.whatif(conf, info.device, Number(memory ?? 0));
    const time = since(from, now());
    if (out === "--time") {
      console.log(`  ${conf}: ${time}, view ${view.byteLength} bytes, memory ${module.memory() >> 20} MiB`);
      continue;
    }
    writeFileSync(`${out}.${i}.json`, JSON.stringify(result));
    writeFileSync(`${out}.${i}.pickle`, new Uint8Array(module.pickle(conf, info.device, Number(memory ?? 0))));
  }
}

interface Moment {
  clock: number;
  cpu: NodeJS.CpuUsage;
}

function now(): Moment {
  return { clock: performance.now(), cpu: process.cpuUsage() };
}

function since(from: Moment, to: Moment): string {
  const cpu = to.cpu.user + to.cpu.system - from.cpu.user - from.cpu.system;
  return `${(to.clock - from.clock).toFixed(0)} ms (${(cpu / 1000).toFixed(0)} ms)`;
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
