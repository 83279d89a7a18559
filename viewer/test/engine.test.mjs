// What if, in the page: files that are dropped on it are read by the WebAssembly module, and replayed under other
// settings.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { isAvailable, launch, open } from "./browser.mjs";
import { hasProgram, json, pageOf, trace, WEIR } from "./files.mjs";

const skip = !isAvailable() ? "there is no Chromium" : !hasProgram() ? `there is no ${WEIR}` : false;
let browser, url;

before(async () => {
  if (skip) return;
  browser = await launch();
  url = pageOf("cuda_graphs", trace("cuda_graphs"));
});
after(() => browser?.close());

async function hasModule(t, page) {
  if (await page.evaluate(() => document.getElementById("weir-wasm") !== null)) return true;
  t.skip("the program was built without WebAssembly");
  return false;
}

// Drops a file on the page, as a browser does.
async function drop(page, name, bytes) {
  const text = bytes.toString("base64");
  await page.evaluate(
    ([fileName, content]) => {
      const data = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
      const transfer = new DataTransfer();
      transfer.items.add(new File([data], fileName));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
    },
    [name, text],
  );
}

const shown = (page, name) =>
  page.waitForFunction((expected) => window.weirViewer?.recordings?.()[0]?.name === expected, name, { timeout: 60000 });

for (const kind of ["zst", "pickle", "gz"]) {
  test(`a dropped .${kind} is shown`, { skip }, async (t) => {
    const { page, problems } = await open(browser, url);
    if (!(await hasModule(t, page))) return;
    let bytes = readFileSync(trace("llama_oom"));
    if (kind !== "zst") {
      bytes = execFileSync("zstd", ["-dc", trace("llama_oom")], { maxBuffer: 1 << 30 });
      if (kind === "gz") bytes = execFileSync("gzip", ["-c"], { input: bytes, maxBuffer: 1 << 30 });
    }
    await drop(page, `job.${kind}`, bytes);
    await shown(page, `job.${kind}`);
    const summary = json("summary", "--json", trace("llama_oom")).devices[0];
    const [r] = await page.evaluate(() => window.weirViewer.facts());
    assert.equal(r.entries, summary.events);
    assert.equal(r.peak.reserved, summary.peak_reserved);
    assert.equal(r.peak.allocated, summary.peak_live);
    assert.deepEqual(problems, []);
    await page.context().close();
  });
}

test("a setting that is changed gives the figures of weir whatif", { skip }, async (t) => {
  const { page, problems } = await open(browser, url);
  if (!(await hasModule(t, page))) return;
  await drop(page, "llama_varlen.pickle.zst", readFileSync(trace("llama_varlen")));
  await shown(page, "llama_varlen.pickle.zst");
  await page.getByRole("tab", { name: "What if" }).click();
  await page.getByLabel("expandable_segments", { exact: true }).check();
  await page.waitForFunction(() => window.weirViewer.recordings().length === 2, null, { timeout: 60000 });
  const predicted = json("whatif", "--json", "--conf", "expandable_segments:True", trace("llama_varlen")).predictions;
  const expected = predicted.find((p) => !p.recorded);
  const [recorded, other] = await page.evaluate(() => window.weirViewer.recordings());
  assert.equal(recorded.peak.reserved, predicted[0].peak_reserved);
  assert.equal(other.setting_label, "expandable_segments:True");
  assert.equal(other.peak.reserved, expected.peak_reserved);
  assert.equal(other.peak.allocated, expected.peak_requested);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a damaged file gives an error that names the byte", { skip }, async (t) => {
  const { page } = await open(browser, url);
  if (!(await hasModule(t, page))) return;
  const bytes = readFileSync(trace("llama_oom")).subarray(0, 5000);
  await drop(page, "cut.zst", bytes);
  await page.waitForFunction(() => /byte \d+/.test(document.body.innerText), null, { timeout: 60000 });
  await page.context().close();
});
