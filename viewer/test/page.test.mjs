// The page with data of a known content.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { isAvailable, launch, open } from "./browser.mjs";
import { encode, pack, pageWith } from "./encode.mjs";
import { PAGE, work } from "./files.mjs";
import { synthetic } from "./synthetic.mjs";

const skip = isAvailable() ? false : "there is no Chromium";
let browser;
let html;

before(async () => {
  if (skip) return;
  html = readFileSync(PAGE, "utf8");
  browser = await launch();
});
after(() => browser?.close());

function put(name, view) {
  const path = join(work, `${name}.html`);
  writeFileSync(path, pageWith(html, view));
  return `file://${path}`;
}

const state = (page) => page.evaluate(() => window.weirViewer.state());
const facts = (page) => page.evaluate(() => window.weirViewer.facts());
const settled = (page) =>
  page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

test("the page contains everything, and allows nothing else", { skip }, () => {
  assert.match(html, /Content-Security-Policy" content="default-src 'none'/);
  assert.doesNotMatch(html, /<(link|img|iframe)\b/);
  assert.doesNotMatch(html, /\b(src|href)=["']?https?:/);
  assert.doesNotMatch(html, /@import|url\(\s*["']?https?:/);
});

test("blocks that are not stored are said to be hidden", { skip }, async () => {
  const { page, problems } = await open(browser, put("large", encode([synthetic(60000, { most: 50000 })])));
  const [r] = await facts(page);
  assert.deepEqual(r.blocks, { total: 60000, stored: 50000, loaded: 50000 });
  assert.match(await page.locator(".foot").innerText(), /10,000 small blocks of at most .* are hidden/);
  assert.match(await page.locator(".panel").innerText(), /10,000 of at most/);
  assert.deepEqual(problems, []);
});

// Chromium here has WebGL in software only, where the page draws by itself; both ways are tested.
for (const way of ["webgl", "plain"])
  test(`all rectangles are drawn: ${way}`, { skip }, async () => {
    const { page, problems } = await open(browser, `${put("draw", encode([synthetic(40000)]))}#draw=${way}`);
    await page.waitForFunction(() => window.weirViewer.facts()[0].isRefined);
    const [r] = await facts(page);
    assert.equal(r.usesWebGL, way === "webgl");
    assert.equal(r.drawn, 40000);
    // A part of the window has fewer, and a search and another colouring draw, too.
    const part = await page.evaluate(() => window.weirViewer.drawNow(100, 120));
    assert.ok(part > 0 && part < 20000, String(part));
    for (let i = 0; i < 6; i++) await page.keyboard.press("c");
    await page.locator(".search").fill("size>1KiB");
    await page.keyboard.press("Enter");
    await settled(page);
    assert.deepEqual(problems, []);
    await page.context().close();
  });

test("a click on a block shows its size, life and stack", { skip }, async () => {
  const data = synthetic(300);
  const { page, problems } = await open(browser, put("click", encode([data])));
  const b = data.blocks;
  const largest = [...b.x0.keys()]
    .sort((i, j) => b.units[j] * (b.x1[j] - b.x0[j]) - b.units[i] * (b.x1[i] - b.x0[i]))
    .find((i) => b.x1[i] !== 0xffffffff);
  const at = await page.evaluate(
    ([entry, address]) => window.weirViewer.pixelOf(entry, address),
    [(b.x0[largest] + b.x1[largest]) / 2, 0x7f0000000000 + (b.y[largest] + b.units[largest] / 2) * 512],
  );
  await page.mouse.click(at.x, at.y);
  const block = await page.evaluate(() => window.weirViewer.selected());
  assert.equal(block.x0, b.x0[largest]);
  assert.equal(block.x1, b.x1[largest]);
  assert.equal(block.requested, b.units[largest] * 512 - b.slack[largest]);
  const panel = await page.locator(".panel").innerText();
  assert.ok(panel.includes(block.requested.toLocaleString("en-US")), panel);
  const frames = data.stacks.stacks[b.stack[largest]].map((f) => data.stacks.frames[f][0]);
  assert.deepEqual(await page.locator(".stack .frame").allInnerTexts(), frames);
  // The other blocks of the stack, one after the other.
  const alike = b.stack.filter((s) => s === b.stack[largest]).length;
  assert.ok(panel.includes(`${alike} block`), panel);
  await page.keyboard.press("]");
  const next = await page.evaluate(() => window.weirViewer.selected());
  if (alike > 1) assert.equal(next.stack, block.stack);
  assert.deepEqual(problems, []);
});

test("figures at the cursor are exact", { skip }, async () => {
  const data = synthetic(500);
  const { page } = await open(browser, put("cursor", encode([data])));
  await page.keyboard.press("p");
  const [r] = await facts(page);
  assert.equal(r.entry, r.peak.allocated_entry);
  assert.deepEqual(r.allocated, [r.peak.allocated, r.peak.allocated]);
  const b = data.blocks;
  let sum = 0;
  for (let i = 0; i < b.x0.length; i++) {
    const freed = (b.x1[i] === 0xffffffff ? Infinity : b.x1[i]) - b.pending[i];
    if (b.x0[i] <= r.entry && freed > r.entry) sum += b.units[i] * 512 - b.slack[i];
  }
  assert.equal(r.peak.allocated, sum);
});

test("everything works by keyboard", { skip }, async () => {
  const { page, problems } = await open(browser, put("keys", encode([synthetic(2000)])));
  const first = await state(page);
  await page.keyboard.press("+");
  const zoomed = await state(page);
  assert.ok(zoomed.x1 - zoomed.x0 < first.x1 - first.x0);
  await page.keyboard.press("d");
  assert.ok((await state(page)).x0 > zoomed.x0);
  await page.keyboard.press("Shift+ArrowUp");
  const high = await state(page);
  assert.ok(high.y[0][1] - high.y[0][0] < first.y[0][1] - first.y[0][0]);
  await page.keyboard.press("0");
  const all = await state(page);
  assert.deepEqual([all.x0, all.x1, all.y], [first.x0, first.x1, first.y]);
  await page.keyboard.press("o");
  assert.equal(Math.floor((await state(page)).cursor), 3200);
  await page.keyboard.press(".");
  assert.equal(Math.floor((await state(page)).cursor), 3201);
  await page.keyboard.press("h");
  assert.ok((await state(page)).cursor > 3201);
  await page.keyboard.press("k");
  const low = await page.evaluate(() => window.weirViewer.selected());
  await page.keyboard.press("k");
  assert.ok((await page.evaluate(() => window.weirViewer.selected())).y > low.y);
  await page.keyboard.press("Escape");
  assert.equal((await state(page)).selected, null);
  await page.keyboard.press("c");
  assert.equal((await state(page)).by, "size");
  await page.keyboard.press("t");
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.keyboard.press("?");
  assert.equal(await page.locator("dialog.help").isVisible(), true);
  await page.keyboard.press("Escape");
  await page.locator("dialog.help").waitFor({ state: "detached" });
  await page.keyboard.press("/");
  await page.keyboard.type("layer_7.");
  await page.keyboard.press("Enter");
  const selected = await page.evaluate(() => window.weirViewer.selected());
  assert.equal(selected.stack === 8 || selected.stack === 9, true);
  await page.keyboard.press("Escape");
  // Every control can be reached and has a name.
  const unnamed = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, [tabindex='0']")]
      .filter(
        (e) =>
          !(
            e.getAttribute("aria-label") ||
            e.getAttribute("aria-labelledby") ||
            e.textContent.trim() ||
            e.title ||
            e.closest("label")
          ),
      )
      .map((e) => e.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(unnamed, []);
  assert.deepEqual(problems, []);
});

test("wheel, drag and touch move the window", { skip }, async () => {
  const { page } = await open(browser, put("mouse", encode([synthetic(500)])));
  const first = await state(page);
  const box = await page.locator(".map-area").boundingBox();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  await page.mouse.move(x, y);
  assert.equal(await page.locator(".tip").isVisible(), true);
  await page.mouse.wheel(0, -400);
  await settled(page);
  const zoomed = await state(page);
  assert.ok(zoomed.x1 - zoomed.x0 < first.x1 - first.x0);
  await page.mouse.down();
  await page.mouse.move(x - 100, y, { steps: 4 });
  await page.mouse.up();
  assert.ok((await state(page)).x0 > zoomed.x0);
  // A box with the shift key.
  await page.keyboard.press("0");
  await page.keyboard.down("Shift");
  await page.mouse.move(x - 100, y - 50);
  await page.mouse.down();
  await page.mouse.move(x + 100, y + 50, { steps: 4 });
  await page.mouse.up();
  await page.keyboard.up("Shift");
  const boxed = await state(page);
  const share = (boxed.x1 - boxed.x0) / (first.x1 - first.x0);
  assert.ok(share > 0.15 && share < 0.35, String(share));
});

test("search and filters find what matches", { skip }, async () => {
  const data = synthetic(3000);
  const { page } = await open(browser, put("search", encode([data])));
  const b = data.blocks;
  const size = (i) => b.units[i] * 512 - b.slack[i];
  const cases = {
    "size>=1MiB": (i) => size(i) >= 1 << 20,
    "layer_12.": (i) => data.stacks.stacks[b.stack[i]].some((f) => f === 12),
    "stream:2": (i) => b.stream[i] === 2,
    "pool:private": (i) => b.pool[i] === 1,
    "phase:forward": (i) => b.phase[i] === 1,
    "class:weights -size<64KiB": (i) => b.class[i] === 1 && size(i) >= 1 << 16,
    alive: (i) => b.x1[i] === 0xffffffff,
    pending: (i) => b.pending[i] > 0,
    "at:100": (i) => b.x0[i] <= 100 && b.x1[i] > 100,
  };
  for (const [query, matches] of Object.entries(cases)) {
    await page.locator(".search").fill(query);
    await page.keyboard.press("Enter");
    const expected = [...b.x0.keys()].filter(matches);
    const [found] = await page.evaluate(() => window.weirViewer.found());
    assert.equal(found.count, expected.length, query);
    assert.equal(
      found.bytes,
      expected.reduce((sum, i) => sum + size(i), 0),
      query,
    );
  }
  await page.locator(".search").fill("size>huge");
  await page.keyboard.press("Enter");
  assert.match(await page.locator(".panel").innerText(), /"huge" is not a size/);
  assert.equal(await page.locator(".panel .error").count(), 1);
});

test("a link brings the view back", { skip }, async () => {
  const url = put("link", encode([synthetic(2000)]));
  const { page } = await open(browser, url);
  await page.evaluate(() => window.weirViewer.show(1000.25, 2000.5));
  await page.keyboard.press("c");
  await page.keyboard.press("p");
  await page.keyboard.press("k");
  await page.locator(".search").fill("size>1KiB");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
  const link = await page.evaluate(() => window.weirViewer.link());
  const before = await state(page);
  const again = await open(browser, link);
  assert.deepEqual(await state(again.page), before);
  // A link that does not fit is not an error.
  const odd = await open(browser, `${url}#x=-5-1e99&by=nothing&block=9.9.9&tab=none&at=NaN`);
  assert.equal(await odd.page.evaluate(() => window.weirViewer.error), null);
  assert.deepEqual(odd.problems, []);
});

test("the visible part is saved as SVG", { skip }, async () => {
  const data = synthetic(400);
  data.stacks.titles[1] = '<img src=x onerror=alert(1)> & \u0001 "quoted"';
  const { page } = await open(browser, put("svg", encode([data])));
  const [download] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("e")]);
  assert.match(download.suggestedFilename(), /^synthetic_x0-801_y0-\d+_by-stack\.svg$/);
  const svg = readFileSync(await download.path(), "utf8");
  const parsed = await page.evaluate((text) => {
    const doc = new DOMParser().parseFromString(text, "image/svg+xml");
    return {
      error: doc.querySelector("parsererror")?.textContent ?? null,
      paths: doc.querySelectorAll("path").length,
      name: doc.documentElement.nodeName,
    };
  }, svg);
  assert.equal(parsed.error, null);
  assert.equal(parsed.name, "svg");
  assert.ok(parsed.paths > 20);
});

test("text of the recording is never markup", { skip }, async () => {
  const data = synthetic(200);
  const evil = '<img src="https://example.invalid/x" onerror="window.evil=1"><script>window.evil=1</script></script>';
  data.name = evil;
  data.phases = data.phases.map((p) => p && evil + p);
  data.stacks.titles = data.stacks.titles.map(() => evil);
  data.stacks.frames = data.stacks.frames.map(() => [evil, evil, 1]);
  data.marks.forEach((m) => (m.name = evil));
  const { page, problems } = await open(browser, put("evil", encode([data])));
  await page.keyboard.press("k");
  assert.equal(await page.evaluate(() => window.evil), undefined);
  assert.equal(await page.locator("img").count(), 0);
  assert.ok((await page.locator(".stack .frame").first().innerText()).includes("<img"));
  assert.deepEqual(problems, []);
});

test("damaged data shows an error with the byte offset", { skip }, async () => {
  const view = encode([synthetic(300)]);
  const cut = (change) => {
    const copy = { index: structuredClone(view.index), parts: view.parts.map((p) => ({ ...p })) };
    change(copy);
    return pack(copy.index, copy.parts);
  };
  const damaged = {
    "bytes of a chunk": cut(
      (v) => (v.parts[0].bytes = Buffer.from(v.parts[0].bytes.map((b, i) => (i > 4 ? b ^ 0x5a : b)))),
    ),
    "a short chunk": cut((v) => (v.parts[0].bytes = v.parts[0].bytes.subarray(0, 10))),
    "a wrong size": cut((v) => (v.index.chunks[0].bytes += 4)),
    "a missing chunk": cut((v) => v.parts.splice(0, 1)),
    "a wrong count": cut((v) => (v.index.recordings[0].blocks.tiles[0].count += 7)),
    "stacks that are no JSON": cut((v) => {
      const at = v.parts.findIndex((p) => p.name === "r0s");
      v.parts[at].bytes = Buffer.from("nonsense");
      Object.assign(
        v.index.chunks.find((c) => c.name === "r0s"),
        { stored: 8, bytes: 8, encoding: "raw" },
      );
    }),
  };
  for (const [name, bad] of Object.entries(damaged)) {
    const { page } = await open(browser, put("damaged", bad), { loaded: false });
    const alert = page.locator('[role="alert"]');
    await alert.waitFor({ timeout: 10000 });
    assert.match(await alert.innerText(), /damaged.*byte \d+ of the view data/s, name);
    await page.context().close();
  }
  // An index that is no JSON.
  const path = join(work, "noindex.html");
  const text = pageWith(html, view);
  writeFileSync(path, text.replace('"recordings":', '"recordings";'));
  const { page } = await open(browser, `file://${path}`);
  assert.match(await page.locator('[role="alert"]').innerText(), /the index is not JSON \(byte \d+ of the view data\)/);
});

test("two recordings lie on one axis", { skip }, async () => {
  const { page, problems } = await open(
    browser,
    put("two", encode([synthetic(500, { name: "before" }), synthetic(700, { name: "after", seed: 2, growth: 50 })])),
  );
  assert.equal(await page.locator(".map-area").count(), 2);
  const both = await facts(page);
  assert.deepEqual(
    both.map((r) => r.label),
    ["before", "after"],
  );
  await page.getByRole("tab", { name: "Compare" }).click();
  const panel = await page.locator(".panel").innerText();
  assert.match(panel, /peak in use/);
  await page.getByLabel("Align the recordings by").selectOption("progress");
  assert.equal((await state(page)).align, "progress");
  await page.getByLabel("Align the recordings by").selectOption("time");
  assert.deepEqual(problems, []);
});

test("the canvas of each view has the size of its area", { skip }, async () => {
  const { page } = await open(browser, put("sizes", encode([synthetic(500)])));
  for (const width of [1280, 900]) {
    await page.setViewportSize({ width, height: 700 });
    await page.keyboard.press("c");
    await settled(page);
    await settled(page);
    const sizes = await page.evaluate(() =>
      [...document.querySelectorAll(".canvas")].map((area) => {
        const canvas = [...area.querySelectorAll("canvas")].pop();
        return [area.className, area.clientWidth - canvas.width, area.clientHeight - canvas.height];
      }),
    );
    for (const [name, dx, dy] of sizes) assert.deepEqual([dx, dy], [0, 0], name);
  }
});

test("a narrow screen works", { skip }, async () => {
  const { page, problems } = await open(browser, put("narrow", encode([synthetic(500)])), {
    width: 400,
    height: 800,
    touch: true,
  });
  const overflow = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  assert.equal(overflow, 0);
  const box = await page.locator(".map-area").boundingBox();
  assert.ok(box.width >= 390 && box.height > 120);
  await page.touchscreen.tap(box.x + box.width / 2, box.y + box.height / 2);
  await page.getByRole("tab", { name: "Search" }).click();
  assert.match(await page.locator(".panel").innerText(), /Type into the field/);
  assert.deepEqual(problems, []);
});

test("the empty page asks for a file", { skip }, async () => {
  const { page, problems } = await open(browser, `file://${PAGE}`);
  const text = await page.locator("#weir").innerText();
  assert.match(text, /Drop a recording here|weir view FILE/);
  assert.deepEqual(problems, []);
});

// What `weir explain` found: a block of the first entry and one of ten entries before the failure pin a segment.
function withPins(data) {
  const entry = Math.floor(data.entries * 0.8);
  const segment = { address: 0x7f0000000000, size: 1 << 20, free: 1 << 19, pinned: 1 << 19, count: 2 };
  const block = { address: segment.address, size: 512, requested: 512, age_us: 1 };
  segment.blocks = [0, entry - 10].map((event) => ({ ...block, event }));
  data.explain = { event: entry, moment: "oom", request: { bytes: 1 << 20 }, pins: { segments: [segment] } };
  return { data, entry };
}

test("the cause is zoomed to in time, whenever what pins it was allocated", { skip }, async () => {
  const { data, entry } = withPins(synthetic(5000));
  const { page, problems } = await open(browser, put("zoom", encode([data])));
  await page.getByRole("button", { name: "Zoom to it" }).click();
  const { x0, x1 } = await state(page);
  assert.ok(x0 < entry - 10 && x1 > entry, `${x0} ${x1}`);
  assert.ok(x1 - x0 < data.entries / 10, `${x0} ${x1}`);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("a tooltip does not stay over what has moved", { skip }, async () => {
  const { page, problems } = await open(browser, put("tip", encode([synthetic(5000)])));
  await page.evaluate(() => window.weirViewer.show(0, 1000));
  const area = await page.locator(".map-lane .canvas").first().boundingBox();
  await page.mouse.move(area.x + area.width / 2, area.y + area.height / 2);
  const tip = page.locator(".tip");
  await tip.waitFor({ state: "visible" });
  await page.keyboard.press("o"); // far outside of the window
  await tip.waitFor({ state: "hidden", timeout: 5000 });
  assert.deepEqual(problems, []);
  await page.context().close();
});

for (const width of [1440, 1024, 420])
  test(`nothing is cut off in the bar and the legend at ${width} pixels`, { skip }, async () => {
    const { data } = withPins(synthetic(2000));
    const { page, problems } = await open(browser, put("cut", encode([data])), { width, height: 900 });
    const seen = () =>
      page.evaluate(() => {
        const search = document.querySelector(".search");
        const style = window.getComputedStyle(search);
        const pen = document.createElement("canvas").getContext("2d");
        pen.font = style.font;
        const room = search.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
        const end = (e) => e.getBoundingClientRect().right;
        const chips = [...document.querySelectorAll(".chips.groups .chip")];
        return {
          room: room - pen.measureText(search.placeholder).width,
          bar: window.innerWidth - Math.max(...[...document.querySelectorAll(".bar button")].map(end)),
          figures: [...document.querySelectorAll(".figures")].every((f) => f.scrollWidth <= f.clientWidth),
          shown: chips.filter((c) => c.style.visibility !== "hidden").length,
          cut: chips.filter((c) => c.style.visibility !== "hidden" && end(c) > end(c.parentElement) + 0.5).length,
          all: chips.length,
          more: document.querySelector(".chip.more")?.textContent ?? "",
          // The row of the legend takes its height from the views, which fit into what is left.
          fits: [...document.querySelectorAll(".map-area")].every((area) =>
            [...area.querySelectorAll("canvas")].every((canvas) => canvas.height === area.clientHeight),
          ),
        };
      });
    const first = await seen();
    assert.ok(first.room >= 0 && first.bar >= 0 && first.cut === 0, JSON.stringify(first));
    assert.ok(first.figures || width === 420, "figures are cut");
    assert.ok(first.shown > 0 && first.fits, JSON.stringify(first));
    if (first.shown < first.all) {
      assert.equal(first.more, `${first.all - first.shown} more`);
      await page.locator(".chip.more").click();
      await page.waitForFunction(() => document.querySelector(".chip.more")?.textContent === "fewer");
      const open = await seen();
      assert.equal(open.shown, open.all);
      assert.ok(open.fits);
    }
    assert.deepEqual(problems, []);
    await page.context().close();
  });
