// Starts Debian's Chromium for the tests: without a network, with WebGL in software.
import { existsSync } from "node:fs";
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
