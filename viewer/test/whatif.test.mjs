// Reading files and what-if inside the page, by WebAssembly: the figures equal those of `weir whatif`.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { cpuOf, isAvailable, launch, open, processOf } from "./browser.mjs";
import { hasProgram, json, pageOf, trace, WEIR, weir, work } from "./files.mjs";
import { changeSetting, openRecording } from "./settings.mjs";

let skip = !isAvailable() ? "there is no Chromium" : !hasProgram() ? `there is no ${WEIR}` : false;
let address = "";
if (!skip) {
  address = pageOf("llama_oom", trace("llama_oom"));
  if (!readFileSync(new URL(address), "utf8").includes('id="weir-wasm"'))
    skip = "the page was built without WebAssembly";
}
let browser;

before(async () => {
  if (!skip) browser = await launch();
});
after(() => browser?.close());

const facts = (page) => page.evaluate(() => window.weirViewer.facts());

// Drops a file on the page, as a person does with the mouse.
async function drop(page, name, path) {
  const bytes = readFileSync(path).toString("base64");
  await page.evaluate(
    ([name, text]) => {
      delete document.documentElement.dataset.loaded;
      const data = new window.DataTransfer();
      data.items.add(new window.File([window.Uint8Array.from(window.atob(text), (c) => c.charCodeAt(0))], name));
      document.dispatchEvent(new window.DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    },
    [name, bytes],
  );
}

const loaded = (page) =>
  page.waitForFunction(() => document.documentElement.dataset.loaded === "true", null, { timeout: 120000 });

test("a dropped file is read and shown", { skip }, async () => {
  const { page, problems } = await open(browser, address);
  await drop(page, "resnet_stacks.pickle.zst", trace("resnet_stacks"));
  await loaded(page);
  const [r] = await facts(page);
  const summary = json("summary", "--json", trace("resnet_stacks")).devices[0];
  assert.equal(r.label, "resnet_stacks.pickle.zst");
  assert.equal(r.entries, summary.events);
  assert.equal(r.peak.allocated, summary.peak_live);
  assert.equal(r.peak.reserved, summary.peak_reserved);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a page replays the recording that it contains", { skip }, async () => {
  const { page, problems } = await open(browser, pageOf("llama_varlen", trace("llama_varlen")));
  await page.getByRole("tab", { name: "What if" }).click();
  await page.getByLabel("expandable_segments").check({ timeout: 60000 });
  await page.waitForFunction(() => window.weirViewer.facts().length === 2, null, { timeout: 120000 });
  const [recorded, predicted] = await facts(page);
  const { predictions } = json("whatif", "--json", "--conf", "expandable_segments:True", trace("llama_varlen"));
  assert.equal(recorded.peak.reserved, predictions[0].peak_reserved);
  assert.equal(predicted.peak.reserved, predictions.find((p) => p.conf === "expandable_segments:True").peak_reserved);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a page without its recording asks for it", { skip }, async () => {
  const file = join(work, "without.html");
  weir("view", "--no-open", "--no-recording", "-o", file, trace("llama_oom"));
  const { page, problems } = await open(browser, `file://${file}`);
  await page.getByRole("tab", { name: "What if" }).click();
  await page.getByRole("button", { name: "Open a recording…" }).waitFor();
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a setting changed gives the bytes of weir whatif", { skip }, async () => {
  const { page, problems } = await open(browser, address);
  await drop(page, "llama_varlen.pickle.zst", trace("llama_varlen"));
  await loaded(page);
  await page.getByRole("tab", { name: "What if" }).click();
  await page.getByLabel("expandable_segments").check();
  await page.waitForFunction(() => window.weirViewer.facts().length === 2, null, { timeout: 120000 });
  await loaded(page);
  const both = await facts(page);
  const expected = json("whatif", "--json", "--conf", "expandable_segments:True", trace("llama_varlen"));
  const prediction = expected.predictions.find((p) => p.conf === "expandable_segments:True");
  assert.equal(both[1].peak.reserved, prediction.peak_reserved);
  assert.equal(both[1].peak.allocated, prediction.peak_requested);
  assert.notEqual(both[0].peak.reserved, both[1].peak.reserved);
  const panel = await page.locator(".panel").innerText();
  assert.match(panel, /peak reserved/);
  // With rounding, as in weir whatif, and without, as in weir summary.
  const size = (bytes) => `${(bytes / 1024 ** 3).toFixed(2)} GiB`;
  assert.ok(panel.includes(`peak allocated\n${size(prediction.peak_allocated)}`), panel);
  assert.ok(panel.includes(`peak in use\n${size(prediction.peak_requested)}`), panel);
  // Back to the defaults.
  await page.getByLabel("expandable_segments").uncheck();
  await page.waitForFunction((n) => window.weirViewer.facts()[1]?.peak.reserved === n, both[0].peak.reserved, {
    timeout: 120000,
  });
  // Settings that do not exist.
  await page.getByLabel("Further settings").fill("no_such_setting:1");
  await page.locator(".panel .error").waitFor({ timeout: 60000 });
  assert.match(await page.locator(".panel .error").innerText(), /no_such_setting/);
  assert.deepEqual(problems, []);
  await page.context().close();
});

// 313,540 entries take 0.3 s of CPU time, with the picture; the machine may be busy or slower. The module is always
// optimised, so it is the same in every build.
test("a setting changed is drawn soon", { skip }, async () => {
  const { page, problems } = await open(browser, address);
  await openRecording(page, trace("llm_generate_small"));
  for (const name of ["max_split_size_mb", "expandable_segments", "moving_pages"]) {
    let best = Infinity;
    for (let k = 0; k < 3; k++) {
      const cpu = cpuOf(processOf());
      await changeSetting(page, name, true);
      best = Math.min(best, cpuOf(processOf()) - cpu);
      await changeSetting(page, name, false);
    }
    assert.ok(best < 0.9, `${name} took ${best} s of CPU time`);
  }
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a damaged file shows the error with its byte offset", { skip }, async () => {
  const { page, problems } = await open(browser, address);
  const path = join(work, "damaged.pickle");
  const bytes = Buffer.alloc(5000, 0x5d);
  bytes[0] = 0x80;
  bytes[1] = 4;
  bytes[3000] = 0xff;
  writeFileSync(path, bytes);
  await drop(page, "damaged.pickle", path);
  const alert = page.locator('[role="alert"]');
  await alert.waitFor({ timeout: 30000 });
  assert.match(await alert.innerText(), /damaged\.pickle.*byte/s);
  // What was open stays open.
  assert.equal((await facts(page))[0].label, "llama_oom.pickle.zst");
  assert.deepEqual(problems, []);
  await page.context().close();
});
