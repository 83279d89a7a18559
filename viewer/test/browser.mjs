// Starts Debian's Chromium for the tests: without a network, with WebGL in software.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { chromium } from "playwright-core";

export const CHROMIUM = process.env.WEIR_CHROMIUM ?? "/usr/bin/chromium";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--use-angle=swiftshader",
  "--enable-unsafe-swiftshader",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-default-apps",
  "--disable-extensions",
  "--enable-precise-memory-info",
];

export function isAvailable() {
  return existsSync(CHROMIUM);
}

export function launch(extra = []) {
  return chromium.launch({ executablePath: CHROMIUM, headless: true, args: [...FLAGS, ...extra] });
}

// Opens a page and collects what must not happen: errors on the console, and requests to anywhere but the file itself.
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({
    viewport: { width: options.width ?? 1280, height: options.height ?? 800 },
    colorScheme: options.dark ? "dark" : "light",
    hasTouch: options.touch ?? false,
    acceptDownloads: true,
  });
  const page = await context.newPage();
  const problems = [];
  page.on("console", (message) => {
    // Reading a canvas back is slow in software, and Chromium says so.
    const isKnown = /GPU stall due to ReadPixels/.test(message.text());
    if ((message.type() === "error" || message.type() === "warning") && !isKnown)
      problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`exception: ${error.message}`));
  const allowed = new URL(url);
  page.on("request", (request) => {
    const target = new URL(request.url());
    const isOwn =
      target.protocol === "blob:" ||
      target.protocol === "data:" ||
      (target.protocol === allowed.protocol && target.host === allowed.host);
    if (!isOwn) problems.push(`request: ${request.url()}`);
  });
  await page.goto(url);
  await page.waitForFunction(() => document.documentElement.dataset.ready === "true", null, {
    timeout: options.timeout ?? 30000,
  });
  if (options.loaded !== false)
    await page.waitForFunction(
      () => document.documentElement.dataset.loaded === "true" || !window.weirViewer?.state(),
      null,
      { timeout: 60000 },
    );
  return { page, problems, context };
}

// ---- CPU time, for benchmarks: a busy machine makes times longer, but not that ----

const TICKS = 100; // a second has 100 ticks in /proc/PID/stat

// CPU seconds of a process and of all its children.
export function cpuOf(root) {
  const all = new Map();
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const fields = readFileSync(`/proc/${name}/stat`, "utf8")
        .replace(/^.*\) /, "")
        .split(" ");
      all.set(Number(name), { parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) });
    } catch {
      // It ended.
    }
  }
  let sum = 0;
  for (const [pid, one] of all) {
    for (let at = pid; at && all.has(at); at = all.get(at).parent)
      if (at === root) {
        sum += one.ticks;
        break;
      }
  }
  return sum / TICKS;
}

// The process of the browser that this one started.
export function processOf() {
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const isBrowser = readFileSync(`/proc/${name}/cmdline`, "utf8").includes("--remote-debugging");
      const parent = readFileSync(`/proc/${name}/stat`, "utf8")
        .replace(/^.*\) /, "")
        .split(" ")[1];
      if (isBrowser && Number(parent) === process.pid) return Number(name);
    } catch {
      // It ended.
    }
  }
  return process.pid;
}
