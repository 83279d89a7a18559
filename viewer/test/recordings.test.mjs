// Pages of recorded jobs, made by `weir view`: what they show equals what the other commands print.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { after, before, test } from "node:test";
import { isAvailable, launch, open } from "./browser.mjs";
import { hasProgram, json, LEAKY_JOB, leakyRecording, pageOf, snapshotWithoutHistory, trace, WEIR } from "./files.mjs";

const skip = !isAvailable() ? "there is no Chromium" : !hasProgram() ? `there is no ${WEIR}` : false;
const leakySkip = existsSync(LEAKY_JOB) ? false : `there is no ${LEAKY_JOB}`;
let browser;

before(async () => {
  if (!skip) browser = await launch();
});
after(() => browser?.close());

const facts = (page) => page.evaluate(() => window.weirViewer.facts());

for (const name of [
  "llama_oom",
  "resnet_stacks",
  "llama_varlen_expandable",
  "streams_prefetch",
  "cuda_graphs",
  "llm_generate_small",
]) {
  test(`${name}: the figures equal those of weir summary`, { skip }, async () => {
    const { page, problems } = await open(browser, pageOf(name, trace(name)));
    const summary = json("summary", "--json", trace(name)).devices[0];
    const [r] = await facts(page);
    assert.equal(r.entries, summary.events);
    assert.equal(r.peak.allocated, summary.peak_live);
    assert.equal(r.peak.allocated_entry, summary.peak_live_event);
    assert.equal(r.peak.reserved, summary.peak_reserved);
    assert.equal(r.peak.reserved_entry, summary.peak_reserved_event);
    assert.equal(r.ooms, summary.actions.oom ?? 0);
    assert.equal(r.blocks.loaded, r.blocks.stored);
    // The same as text, with every digit.
    await page.getByRole("tab", { name: "Overview" }).click();
    const panel = await page.locator(".panel").innerText();
    for (const number of [summary.peak_live, summary.peak_reserved])
      assert.ok(panel.includes(`${number.toLocaleString("en-US")} B`), `${number} in ${panel}`);
    // The counters at both peaks, and the stored blocks that are alive at the first.
    await page.keyboard.press("p");
    const [at] = await facts(page);
    if (at.allocated[0] === at.allocated[1]) assert.equal(at.allocated[1], summary.peak_live);
    else assert.ok(at.allocated[0] <= summary.peak_live && summary.peak_live <= at.allocated[1]);
    if (r.blocks.total === r.blocks.stored) {
      const blocks = await page.evaluate((entry) => window.weirViewer.blocksAt(entry), summary.peak_live_event);
      const live = blocks.filter((b) => summary.peak_live_event < b.x1 - b.pending);
      assert.equal(
        live.reduce((sum, b) => sum + b.requested, 0),
        summary.peak_live,
      );
    }
    assert.deepEqual(problems, []);
    await page.context().close();
  });
}

test("llama_oom: the page names the pins of weir explain", { skip }, async () => {
  const { page, problems } = await open(browser, pageOf("llama_oom", trace("llama_oom")));
  const explain = json("explain", "--json", trace("llama_oom"));
  const hex = (a) => `0x${a.toString(16)}`;
  const expected = explain.pins.segments.map((s) => ({
    address: hex(s.address),
    blocks: s.blocks.map((b) => hex(b.address)),
  }));
  assert.ok(expected.length > 0);
  const shown = await page.evaluate(() =>
    [...document.querySelectorAll(".pin")].map((p) => ({
      address: p.dataset.address,
      blocks: [...p.querySelectorAll("li[data-address]")].map((b) => b.dataset.address),
    })),
  );
  assert.deepEqual(shown, expected);
  const panel = await page.locator(".panel").innerText();
  // The request as the program made it, not the segment that it needed.
  assert.notEqual(explain.request.bytes, explain.request.wanted);
  assert.ok(panel.includes(`${explain.request.bytes.toLocaleString("en-US")} B`), panel);
  assert.ok(!panel.includes(explain.request.wanted.toLocaleString("en-US")), panel);
  // A link of a pin selects that block on the map.
  await page.locator(".pin li button").first().click();
  const pin = explain.pins.segments[0].blocks[0];
  const block = await page.evaluate(() => window.weirViewer.selected());
  assert.equal(block.x0, pin.event);
  assert.equal(block.requested, pin.requested);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("resnet_stacks: a click on a known block shows its stack", { skip }, async () => {
  const { page, problems } = await open(browser, pageOf("resnet_stacks", trace("resnet_stacks")));
  const summary = json("summary", "--json", trace("resnet_stacks")).devices[0];
  const holder = summary.holders_at_peak[0];
  assert.ok(holder.stack.length > 0);
  // Its blocks in the page have the same sum.
  const alive = await page.evaluate((entry) => window.weirViewer.blocksAt(entry), summary.peak_live_event);
  const blocks = alive.filter((b) => b.title === holder.stack && summary.peak_live_event < b.x1 - b.pending);
  assert.equal(blocks.length, holder.count);
  assert.equal(
    blocks.reduce((sum, b) => sum + b.requested, 0),
    holder.bytes,
  );
  const largest = blocks.sort((a, b) => b.requested - a.requested)[0];
  const at = await page.evaluate(
    ([entry, address]) => window.weirViewer.pixelOf(entry + 0.5, address),
    [summary.peak_live_event, largest.address + largest.requested / 2],
  );
  await page.mouse.click(at.x, at.y);
  assert.equal(await page.locator(".panel .title").innerText(), holder.stack);
  const frames = await page.locator(".stack .frame").allInnerTexts();
  assert.equal(frames[0], holder.stack.split(" (")[0]);
  assert.ok(frames.length > 3);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("two recordings are compared", { skip }, async () => {
  const files = [trace("llama_varlen"), trace("llama_varlen_expandable")];
  const { page, problems } = await open(browser, pageOf("compare", ...files));
  const [a, b] = await facts(page);
  const [sa, sb] = files.map((f) => json("summary", "--json", f).devices[0]);
  assert.equal(a.peak.reserved, sa.peak_reserved);
  assert.equal(b.peak.reserved, sb.peak_reserved);
  await page.getByRole("tab", { name: "Compare" }).click();
  assert.match(await page.locator(".panel").innerText(), /peak reserved/);
  assert.deepEqual(problems, []);
  await page.context().close();
});

for (const [first, second] of [
  ["llama_varlen", "llama_lora_ckpt"],
  ["resnet_stacks", "resnet_multiscale"],
  ["resnet_multiscale", "resnet_roundup"],
]) {
  test(`${first} and ${second}: the differences equal those of weir diff`, { skip }, async () => {
    const files = [trace(first), trace(second)];
    const { page, problems } = await open(browser, pageOf(`${first}-${second}`, ...files));
    const diff = json("diff", "--json", ...files);
    await page.getByRole("tab", { name: "Compare" }).click();
    const totals = await page.locator("[data-total]").evaluateAll((rows) =>
      rows.map((r) => [r.dataset.total, Number(r.dataset.a), Number(r.dataset.b)]),
    );
    const total = (at) => diff.totals.find((t) => t.at === at);
    const names = { peak: "peak %", end: "% at the end", step: "% in a step" };
    for (const [at, name] of Object.entries(names))
      for (const what of ["allocated", "reserved"]) {
        const { a, b } = total(at)[what];
        const row = totals.find((t) => t[0] === name.replace("%", what));
        assert.deepEqual(row?.slice(1), [a, b], `${what} at ${at}`);
      }
    for (const moment of ["peak", "end", "step"]) {
      await page.getByLabel("Moment of the difference").selectOption(moment);
      const shown = await page.locator(".panel .diff").evaluateAll((tables) =>
        tables.map((table) => ({
          title: table.previousElementSibling.textContent,
          rows: [...table.querySelectorAll("[data-name]")].map((r) => [
            r.dataset.name,
            Number(r.dataset.a),
            Number(r.dataset.b),
          ]),
          isClipped: table.scrollWidth > table.clientWidth,
        })),
      );
      for (const by of diff.by) {
        const table = shown.find((t) => t.title.startsWith(`By ${by.key},`)) ?? { rows: [], isClipped: false };
        const changed = by.rows.filter((r) => r[moment] && r[moment].a !== r[moment].b);
        const size = (r) => Math.abs(r[moment].b - r[moment].a);
        const expected = changed.sort((a, b) => size(b) - size(a)).slice(0, 60);
        assert.deepEqual(
          table.rows,
          expected.map((r) => [r.moved ? `${r.name} (moved to other lines)` : r.name, r[moment].a, r[moment].b]),
          `${by.key} ${moment}`,
        );
        assert.equal(table.isClipped, false);
      }
    }
    assert.deepEqual(problems, []);
    await page.context().close();
  });
}

test("a leaky job: the leaks equal those of weir leaks", { skip: skip || leakySkip }, async () => {
  const file = leakyRecording();
  for (const width of [1280, 400]) {
    const { page, problems } = await open(browser, pageOf("leaky", file), { width });
    const [leaks] = json("leaks", "--json", file).recordings;
    assert.equal(leaks.verdict, "leak");
    await page.getByRole("tab", { name: "Leaks" }).click();
    const shown = await page.locator(".leak").evaluateAll((rows) =>
      rows.map((r) => [r.dataset.title, Number(r.dataset.bytes), Number(r.dataset.blocks)]),
    );
    const listed = [...leaks.leaks, ...leaks.growing];
    assert.deepEqual(
      shown,
      listed.map((l) => [l.title, l.bytes, l.blocks]),
    );
    const panel = await page.locator(".panel").innerText();
    const { limit, steps } = leaks;
    assert.ok(panel.includes(`in ${limit.steps_least} to ${limit.steps_most} steps`), panel);
    assert.ok(panel.includes(`${steps.count}, from phase '${steps.name}'`), panel);
    // A link shows the block.
    await page.locator(".leak button").first().click();
    const block = await page.evaluate(() => window.weirViewer.selected());
    assert.equal(block.x0, leaks.leaks[0].examples[0].entry);
    assert.equal(block.requested, leaks.leaks[0].examples[0].size);
    assert.deepEqual(problems, []);
    await page.context().close();
  }
});

test("a snapshot without a history: its segments are shown", { skip }, async () => {
  const { page, problems } = await open(browser, pageOf("no-history", snapshotWithoutHistory()));
  const blocks = await page.evaluate(() => window.weirViewer.blocksAt(0));
  assert.deepEqual(
    blocks.map((b) => b.requested),
    [1 << 20],
  );
  const body = await page.locator("body").innerText();
  assert.ok(body.includes("Segments of the snapshot: 1 segment, 2.00 MiB; 1 block, 1.00 MiB in use"), body);
  assert.deepEqual(problems, []);
  await page.context().close();
});

test("the page is served on loopback", { skip }, async () => {
  const server = spawn(WEIR, ["view", trace("llama_oom"), "--serve"], { stdio: ["ignore", "pipe", "pipe"] });
  try {
    let text = "";
    const url = await new Promise((resolve, reject) => {
      const read = (data) => {
        text += data;
        const match = /http:\/\/\S+/.exec(text);
        if (match) resolve(match[0]);
      };
      server.stdout.on("data", read);
      server.stderr.on("data", read);
      server.on("exit", () => reject(new Error(text)));
    });
    const { page, problems } = await open(browser, url);
    const [r] = await facts(page);
    const summary = json("summary", "--json", trace("llama_oom")).devices[0];
    assert.equal(r.peak.reserved, summary.peak_reserved);
    assert.equal(r.blocks.loaded, r.blocks.stored);
    assert.deepEqual(
      problems.filter((p) => !/favicon/.test(p)),
      [],
    );
    await page.context().close();
  } finally {
    server.kill();
    if (server.exitCode === null) await once(server, "exit");
  }
});

// A column of the groups spans several entries, with the moment of it at which most was allocated.
test("the areas of a zoomed window end at the line of allocated memory", { skip }, async () => {
  const { page, problems } = await open(browser, pageOf("llama_oom", trace("llama_oom")));
  for (const by of ["size", "class"]) {
    await page.getByLabel("Colour and group by").selectOption(by);
    await page.evaluate(() => window.weirViewer.show(13600, 13800));
    await page.waitForFunction(() => window.weirViewer.bandsAt(13700) !== null);
    const all = await page.evaluate(() =>
      Array.from({ length: 200 }, (_, i) => window.weirViewer.bandsAt(13600 + i)),
    );
    for (const { sum, allocated } of all) assert.deepEqual([sum, sum], allocated);
  }
  assert.deepEqual(problems, []);
  await page.context().close();
});
