// Measures the page: node test/bench.mjs [PAGE_WITH_DATA.html...]. Without a page it makes one with a million blocks.
//
//   first picture  from the navigation to the first complete picture
//   heap           JavaScript objects and array buffers once everything is loaded
//   frame the time to draw one picture while zooming and panning, until the GPU has finished it. The CPU time of
//                  all processes of the browser is given too, since a busy machine makes the time longer, but not that.
import { readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { cpuOf, launch, open, processOf } from "./browser.mjs";
import { encode, pageWith } from "./encode.mjs";
import { PAGE, work } from "./files.mjs";
import { synthetic } from "./synthetic.mjs";

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];

async function measure(browser, url) {
  const began = Date.now();
  const { page, problems } = await open(browser, url, { loaded: false });
  const first = await page.evaluate(() => window.weirViewer.firstPicture);
  await page.waitForFunction(() => document.documentElement.dataset.loaded === "true", null, { timeout: 300000 });
  const loaded = Date.now() - began;
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const heap = await session.send("Runtime.getHeapUsage");
  const bytes = heap.usedSize + (heap.backingStorageSize ?? 0) + (heap.embedderHeapUsedSize ?? 0);
  const [facts] = await page.evaluate(() => window.weirViewer.facts());
  console.log(`${url.split("/").pop()}: ${facts.entries} entries, ${facts.blocks.stored} rectangles`);
  console.log(
    `  first picture ${Math.round(first)} ms, everything loaded ${loaded} ms, heap ${Math.round(bytes / 1e6)} MB`,
  );
  const root = processOf();
  const run = async (name, kind) => {
    const cpu = cpuOf(root);
    const times = await page.evaluate(async (kind) => {
      const v = window.weirViewer;
      const n = v.recordings()[0].entries;
      const height = v.recordings()[0].height;
      const times = [];
      for (let k = 0; k < 150; k++) {
        const t = k / 150;
        const width = kind === "zoom" ? n * 2 ** (-14 * t) : n * 2 ** -Math.floor(t * 12);
        const at = kind === "zoom" ? n * 0.37 : (n - width) * ((k % 13) / 13 + 0.03);
        const tall = kind === "zoom" ? height * 2 ** (-5 * t) : height;
        await new Promise((next) => requestAnimationFrame(next));
        const began = performance.now();
        v.drawNow(Math.max(0, at - width / 2), at + width / 2, height * 0.5 - tall / 2, height * 0.5 + tall / 2);
        times.push(performance.now() - began);
      }
      return times;
    }, kind);
    times.sort((a, b) => a - b);
    const spent = ((cpuOf(root) - cpu) / times.length) * 1000;
    console.log(
      `  ${name}: frame p50 ${quantile(times, 0.5).toFixed(1)} ms, p95 ${quantile(times, 0.95).toFixed(1)} ms, most ${times[times.length - 1].toFixed(1)} ms; CPU time ${spent.toFixed(1)} ms a frame`,
    );
  };
  await run("warm up", "zoom");
  await run("zooming", "zoom");
  await run("panning", "pan");
  if (problems.length) console.log(problems);
  await page.context().close();
}

const pages = process.argv.slice(2);
if (pages.length === 0) {
  const path = join(work, "million.html");
  writeFileSync(path, pageWith(readFileSync(PAGE, "utf8"), encode([synthetic(1000000, { name: "million" })])));
  pages.push(path);
}
const browser = await launch();
for (const path of pages) await measure(browser, `file://${resolve(path)}`);
await browser.close();
