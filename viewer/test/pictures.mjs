// The pictures of the page in the documentation: node test/pictures.mjs FOLDER. See scripts/make-pictures.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { launch, open } from "./browser.mjs";
import { pageOf, trace } from "./files.mjs";

const folder = process.argv[2];
const browser = await launch(["--font-render-hinting=none", "--force-color-profile=srgb"]);

// A picture that no longer changes: the views adapt to each other while they are laid out.
async function settled(page) {
  let last = null;
  for (let equal = 0; equal < 3; ) {
    await page.waitForTimeout(400);
    const next = await page.screenshot({ animations: "disabled", caret: "hide" });
    equal = last?.equals(next) ? equal + 1 : 0;
    last = next;
  }
  return last;
}

// Opens a page, does something with it, and saves what is visible.
async function picture(name, recording, options, prepare) {
  const { page, problems, context } = await open(browser, pageOf(recording, trace(recording)), options);
  await prepare(page);
  await page.waitForFunction(() => document.documentElement.dataset.loaded === "true");
  writeFileSync(join(folder, `${name}.png`), await settled(page));
  await context.close();
  if (problems.length > 0) throw new Error(`${name}: ${problems.join("; ")}`);
}

const nothing = async () => {};

// The failure, and what is in its way.
async function zoomToFailure(page) {
  await page.getByRole("tab", { name: "Out of memory" }).click();
  await page.getByRole("button", { name: "Zoom to it" }).click();
}

// The block that the cause of fragmentation often looks like: a large one in the middle of the map.
async function selectBlock(page) {
  await page.getByRole("tab", { name: "Block" }).click();
  const at = await page.evaluate(() => {
    const peak = window.weirViewer.state().cursor;
    const blocks = window.weirViewer.blocksAt(peak);
    const block = blocks.find((b) => b.title.startsWith("batch_norm") && b.x1 - b.x0 > 1500);
    return window.weirViewer.pixelOf(Math.round((block.x0 + block.x1) / 2), block.address + block.requested / 2);
  });
  await page.mouse.click(at.x, at.y);
  await page.waitForFunction(() => window.weirViewer.selected() !== null);
  await page.mouse.move(640, 795);
}

async function tryExpandable(page) {
  await page.getByRole("tab", { name: "What if" }).click();
  await page.getByLabel("expandable_segments").check();
  await page.waitForFunction(() => window.weirViewer.facts().length === 2, null, { timeout: 120000 });
}

const narrow = { width: 400, height: 860, touch: true };
await picture("page-cause", "llama_oom", {}, zoomToFailure);
await picture("page-cause-dark", "llama_oom", { dark: true }, zoomToFailure);
await picture("page-block-dark", "resnet_stacks", { dark: true }, selectBlock);
await picture("page-what-if-dark", "llama_varlen", { dark: true }, tryExpandable);
await picture("page-narrow", "llama_oom", narrow, nothing);
await picture("page-narrow-dark", "llama_oom", { ...narrow, dark: true }, nothing);
await browser.close();
