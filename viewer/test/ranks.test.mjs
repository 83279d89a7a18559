// The page of many ranks (src/ranks.ts): the real thing from `weir ranks --page`, and 10,000 ranks of 1,000 columns.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { isAvailable, launch, open } from "./browser.mjs";
import { TRACES, WEIR, work } from "./files.mjs";

const skip = !isAvailable() && "there is no Chromium";
let browser;
let page;
let problems;

const path = join(work, "ranks.html");

before(async () => {
  if (skip) return;
  const digests = join(work, "digests.json");
  const recordings = readdirSync(TRACES).filter((name) => /^(llama|resnet)/.test(name));
  const lines = recordings.map((name, rank) =>
    execFileSync(WEIR, ["digest", "--rank", String(rank), join(TRACES, name)], { encoding: "utf8" }),
  );
  // The first job three times more, so that there is a class, and the others are outliers.
  const again = [20, 21, 22, 23].map((rank) =>
    execFileSync(WEIR, ["digest", "--rank", String(rank), join(TRACES, recordings[0])], { encoding: "utf8" }),
  );
  writeFileSync(digests, [...lines, ...again].join(""));
  const made = spawnSync(WEIR, ["ranks", "--page", path, digests]);
  assert.ok(made.status === 0 || made.status === 3, String(made.stderr));
  browser = await launch();
});

after(() => browser?.close());

async function show(file) {
  ({ page, problems } = await open(browser, pathToFileURL(file).href, { loaded: false }));
  return page.evaluate(() => window.weirViewer.state());
}

const state = () => page.evaluate(() => window.weirViewer.state());
const settled = () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

test("the page lists classes and outliers, and a click opens a rank", { skip }, async () => {
  const first = await show(path);
  assert.match(first.text, /Classes/);
  assert.match(first.text, /Outliers/);
  assert.equal(first.selected, -1);
  const box = await page.locator(".ranks-map").boundingBox();
  await page.mouse.click(box.x + box.width / 2, box.y + 2);
  assert.equal((await state()).selected, 0);
  assert.match((await state()).text, /^Rank 0/);
  assert.match((await state()).text, /weir view /);
  await page.keyboard.press("ArrowDown");
  assert.match((await state()).text, /^Rank 1/);
  await page.getByRole("button", { name: "All ranks" }).click();
  assert.equal((await state()).selected, -1);
  assert.deepEqual(problems, []);
});

test("the map is drawn", { skip }, async () => {
  await show(path);
  await settled();
  const colors = await page.evaluate(() => {
    const canvas = document.querySelector(".ranks-map");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const found = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) found.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
    return found.size;
  });
  assert.ok(colors > 5, `${colors} colors`);
  assert.deepEqual(problems, []);
});

// Puts 10,000 ranks of 1,000 columns into the page.
function makeLarge() {
  const html = readFileSync(path, "utf8");
  const index = /(<script type="application\/json" id="weir-ranks">)([^]*?)(<\/script>)/;
  const map = /(<script type="text\/plain" id="weir-ranks-map">)([^]*?)(<\/script>)/;
  const data = JSON.parse(index.exec(html)[2]);
  const values = Buffer.alloc(10_000_000);
  for (let i = 0; i < values.length; i++) values[i] = 1 + ((i * 2654435761) >>> 24) % 255;
  data.map.columns = 1000;
  data.map.rows = Array.from({ length: 10000 }, (_, rank) => ({ ...data.map.rows[0], rank }));
  const file = join(work, "ranks-large.html");
  const json = JSON.stringify(data).replaceAll("<", "\\u003c");
  writeFileSync(
    file,
    html.replace(index, (_, a, b, c) => a + json + c).replace(map, (_, a, b, c) => a + values.toString("base64") + c),
  );
  return file;
}

test("10,000 ranks of 1,000 columns are drawn within a frame", { skip }, async (t) => {
  await show(makeLarge());
  const box = await page.locator(".ranks-map").boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  for (let i = 0; i < 12; i++) await page.mouse.wheel(0, -200);
  await settled();
  const zoomed = await state();
  assert.ok(zoomed.shown < 100, `${zoomed.shown} rows`);
  assert.ok(zoomed.first > 4000 && zoomed.first < 6000, `from row ${zoomed.first}`);
  for (let i = 0; i < 20; i++) await page.mouse.wheel(0, 200);
  await settled();
  assert.equal((await state()).shown, 10000);
  const times = await page.evaluate(() => window.weirViewer.ranks.measure(20));
  times.sort((a, b) => a - b);
  t.diagnostic(`median ${times[10].toFixed(1)} ms a frame, most ${times[19].toFixed(1)} ms, in software`);
  assert.ok(times[10] < 33, `${times[10]} ms a frame`);
  assert.deepEqual(problems, []);
});
