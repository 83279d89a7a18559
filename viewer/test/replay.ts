// Replays recordings with the WebAssembly module under Node.js, for tests/viewer/wasm.sh:
//
//   node replay.js WASM FILE OUT [CONF...]
//
// For each CONF, OUT.N.json gets the answer, and OUT.N.pickle the predicted history. With --time in place of OUT, it
// prints how long the answers take.
import { readFileSync, writeFileSync } from "node:fs";
import { Module, unpack } from "../src/module";

async function main(): Promise<void> {
  const [wasm, file, out, ...confs] = process.argv.slice(2) as [string, string, string, ...string[]];
  const module = await Module.make(readFileSync(wasm));
  const bytes = readFileSync(file);
  const begin = performance.now();
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
  const info = module.load(file, await unpack(buffer));
  const loaded = performance.now();
  module.view(info.device);
  const viewed = performance.now();
  if (out === "--time") console.log(`${info.entries} entries: load ${ms(loaded - begin)}, view ${ms(viewed - loaded)}`);
  for (const [i, text] of confs.entries()) {
    const [conf, memory] = text.split("@") as [string, string | undefined];
    const from = performance.now();
    const { result, view } = module.whatif(conf, info.device, Number(memory ?? 0));
    const time = performance.now() - from;
    if (out === "--time") {
      console.log(`  ${conf}: ${ms(time)}, view ${view.byteLength} bytes, memory ${module.memory() >> 20} MiB`);
      continue;
    }
    writeFileSync(`${out}.${i}.json`, JSON.stringify(result));
    writeFileSync(`${out}.${i}.pickle`, new Uint8Array(module.pickle(conf, info.device, Number(memory ?? 0))));
  }
}

function ms(time: number): string {
  return `${time.toFixed(0)} ms`;
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
