// Measures what-if in the page: node test/bench_whatif.mjs RECORDING [TIMES]. Opens the recording in Chromium and
// changes one setting after the other. Prints the time from the change of a control to the new picture, the best of
// TIMES (5), and of these the answer of the Worker (the replay and its view data), and the CPU time of the browser
// until everything is drawn, since a busy machine makes times longer.
import { resolve } from "node:path";
import { cpuOf, launch, open, processOf } from "./browser.mjs";
import { pageOf, trace } from "./files.mjs";
import { changeSetting, openRecording } from "./settings.mjs";

const [file, times = "5"] = process.argv.slice(2);
if (!file) {
  console.error("usage: node test/bench_whatif.mjs RECORDING [TIMES]");
  process.exit(2);
}
const browser = await launch();
const root = processOf();
const { page, problems } = await open(browser, pageOf("llama_oom", trace("llama_oom")));
await openRecording(page, resolve(file));
const [facts] = await page.evaluate(() => window.weirViewer.facts());
console.log(`${facts.label}: ${facts.entries} entries`);
const best = new Map();
for (let k = 0; k < Number(times); k++)
  for (const name of ["max_split_size_mb", "expandable_segments", "moving_pages"])
    for (const isSet of [true, false]) {
      const cpu = cpuOf(root);
      const time = await changeSetting(page, name, isSet);
      time.cpu = (cpuOf(root) - cpu) * 1000;
      if (!isSet) continue;
      const old = best.get(name) ?? time;
      best.set(name, Object.fromEntries(Object.entries(time).map(([key, ms]) => [key, Math.min(ms, old[key])])));
    }
for (const [name, time] of best)
  console.log(
    `  ${name}: picture ${Math.round(time.drawn)} ms, of which the answer ${Math.round(time.answered)} ms; CPU time ${Math.round(time.cpu)} ms`,
  );
if (problems.length) console.log(problems);
await browser.close();
