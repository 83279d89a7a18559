// Starts the page, or the Worker: the same script runs in both.
import { App } from "./app";
import { columnOf } from "./bands";
import { DataError, ViewData } from "./data";
import { fill, h } from "./dom";
import { embeddedRecording, Engine, engineReason, hasRecording, runWorker } from "./engine";
import { RanksPage } from "./ranks";
import { WhatifState } from "./whatif";

// Files above this do not fit into the memory of WebAssembly together with their analysis.
const MAX_BYTES = 1024 ** 3;

class Page {
  private app: App | null = null;
  private readonly container = document.getElementById("weir")!;
  readonly whatif = new WhatifState();

  async start(): Promise<void> {
    const ranks = RanksPage.fromPage(this.container);
    if (ranks) {
      window.weirViewer = { error: null, state: () => ranks.state(), ranks };
      return;
    }
    this.listenForFiles();
    try {
      const server = document.querySelector<HTMLMetaElement>('meta[name="weir-data"]');
      const data = server ? await ViewData.fromServer(server.content) : ViewData.fromPage();
      if (data) this.show(data);
      else this.askForFile(null);
    } catch (error) {
      this.showError(error);
    }
  }

  show(data: ViewData): App {
    this.app?.destroy();
    delete document.documentElement.dataset.ready;
    delete document.documentElement.dataset.loaded;
    this.app = new App(this.container, data, {
      openFile: (file) => void this.open(file),
      loadRecording: () => void this.loadRecording(),
      whatif: this.whatif,
    });
    window.weirViewer = hook(this.app);
    return this.app;
  }

  private showError(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    const kind = error instanceof DataError ? "The data of this page is damaged" : "The recording cannot be shown";
    this.askForFile(`${kind}: ${text}`);
  }

  // The page without data: asks for a recording, and says so if it cannot read one.
  private askForFile(problem: string | null): void {
    this.app?.destroy();
    this.app = null;
    const reason = engineReason();
    const input = h("input", { type: "file", "aria-label": "Recording" });
    input.addEventListener("change", () => {
      if (input.files?.[0]) void this.open(input.files[0]);
    });
    fill(
      this.container,
      h(
        "div",
        { class: "start" },
        h("h1", {}, h("span", { class: "logo", "aria-hidden": "true" }), " Weir"),
        problem ? h("p", { class: "error", role: "alert" }, problem) : null,
        reason === null
          ? [
              h(
                "p",
                {},
                "Drop a recording here: a snapshot of torch.cuda.memory (pickle), or a ring file, plain or compressed with zstd or gzip.",
              ),
              h("p", {}, input),
              h(
                "p",
                { class: "muted" },
                "It is read in this page by WebAssembly. Nothing is sent anywhere, and pickles are never executed.",
              ),
            ]
          : h(
              "p",
              {},
              `${reason} Dropping files is not available; run `,
              h("code", {}, "weir view FILE"),
              " to make a page of a recording.",
            ),
        h("div", { class: "progress", hidden: true }, h("div", {})),
        h("p", { id: "weir-status", class: "muted", role: "status" }),
      ),
    );
    document.documentElement.dataset.ready = "true";
    window.weirViewer = { error: problem, state: () => null };
  }

  private listenForFiles(): void {
    const veil = h(
      "div",
      { class: "veil", hidden: true },
      h("p", {}, engineReason() === null ? "Drop to open this recording" : (engineReason() ?? "")),
    );
    document.body.append(veil);
    let depth = 0;
    document.addEventListener("dragenter", (e) => {
      e.preventDefault();
      depth++;
      veil.hidden = false;
    });
    document.addEventListener("dragleave", () => {
      if (--depth <= 0) veil.hidden = true;
    });
    document.addEventListener("dragover", (e) => e.preventDefault());
    document.addEventListener("drop", (e) => {
      e.preventDefault();
      depth = 0;
      veil.hidden = true;
      const file = e.dataTransfer?.files[0];
      if (file) void this.open(file);
    });
  }

  private say(fraction: number | null, what: string): void {
    if (this.app) {
      this.app.progress(fraction, what);
      return;
    }
    const status = document.getElementById("weir-status");
    if (status) status.textContent = what;
    const bar = this.container.querySelector<HTMLElement>(".progress");
    if (bar) {
      bar.hidden = fraction === 1;
      bar.classList.toggle("unknown", fraction === null);
      (bar.firstElementChild as HTMLElement).style.width = `${Math.round((fraction ?? 0.3) * 100)}%`;
    }
  }

  // Reads the recording that the page contains, for what-if; it is shown already.
  private async loadRecording(): Promise<void> {
    const app = this.app;
    if (!app || this.whatif.isLoading || !hasRecording()) return;
    this.whatif.isLoading = true;
    try {
      const engine = (this.whatif.engine ??= await Engine.start());
      const { name, device } = app.recordings[0]!.info;
      const loaded = await engine.load(name, await embeddedRecording(), (f, what) => app.progress(f, what));
      await engine.prepare(device);
      this.whatif.file = { ...loaded, device };
    } catch (error) {
      this.whatif.error = error instanceof Error ? error.message : String(error);
    }
    this.whatif.isLoading = false;
    app.progress(1, "");
    app.side.update();
  }

  // Reads a file in the Worker and shows it.
  async open(file: File): Promise<void> {
    const reason = engineReason();
    const complain = (text: string): void => {
      if (this.app) this.app.notice(text);
      else this.askForFile(text);
    };
    if (reason !== null) {
      complain(`${reason} Run "weir view ${file.name}" to make a page of this file.`);
      return;
    }
    if (file.size > MAX_BYTES) {
      complain(
        `${file.name} has ${(file.size / 1024 ** 3).toFixed(2)} GiB; the page reads up to 1 GiB. Run "weir view ${file.name}" instead.`,
      );
      return;
    }
    try {
      this.say(null, `Reading ${file.name}`);
      const engine = (this.whatif.engine ??= await Engine.start());
      const progress = (fraction: number | null, what: string): void => this.say(fraction, what);
      const loaded = await engine.load(file.name, await file.arrayBuffer(), progress);
      const view = await engine.view(loaded.device, progress);
      this.whatif.file = loaded;
      this.whatif.result = null;
      this.say(1, "");
      const data = ViewData.fromBytes(view);
      try {
        history.replaceState(null, "", "#");
      } catch {
        // Some browsers do not allow it for files.
      }
      this.show(data);
      engine.prepare(loaded.device).catch(() => {}); // the first what-if reports what is wrong
    } catch (error) {
      this.say(1, "");
      complain(`${file.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}

// What the tests use, and what a person may use in the console. `state()` is the view as in the link; `facts()` are the
// figures of the recordings; `pixelOf` gives the place of a block on the screen; `frames` are the times of the last
// frames in ms.
export interface Hook {
  error: string | null;
  state(): unknown;
  [name: string]: unknown;
}

declare global {
  interface Window {
    weirViewer?: Hook;
  }
}

function hook(app: App): Hook {
  return {
    get error() {
      return app.error;
    },
    get frames() {
      return app.frames;
    },
    get firstPicture() {
      return app.firstPicture;
    },
    state: () => app.state(),
    facts: () => app.figures(),
    link: () => app.link(),
    svg: () => app.exportSvg(),
    selected: () => app.selected?.block ?? null,
    found: () => app.found,
    recordings: () => app.recordings.map((r) => r.info),
    blocksAt: (entry: number, track = 0) => {
      const r = app.recordings[track]!;
      const list: unknown[] = [];
      r.blocks.eachAt(entry, (tile, i) => {
        const block = r.blocks.at(tile, i);
        list.push({ ...block, address: r.addressOf(block.y), title: r.title(block.stack) });
      });
      return list;
    },
    // The bands of memory over time in the window, added up, and the counter, after an entry.
    bandsAt: (entry: number, track = 0) => {
      const t = app.tracks[track]!;
      const bands = t.memory.bands();
      const column = bands ? columnOf(bands, entry) : -1;
      if (!bands || column < 0) return null;
      let sum = 0;
      for (let row = 0; row < bands.rows; row++) sum += bands.values[row * bands.columns + column]!;
      return { sum, allocated: app.counterAt(t, "allocated", entry) };
    },
    pixelOf: (entry: number, address: number, track = 0) => app.pixelOf(entry, address, track),
    show: (x0: number, x1: number) => {
      app.axis.show(x0, x1);
      app.moved();
    },
    drawNow: (x0: number, x1: number, y0?: number, y1?: number) => {
      app.axis.show(x0, x1);
      app.touch();
      if (y0 !== undefined && y1 !== undefined) app.tracks[0]!.map.showY(y0, y1);
      app.drawNow();
      app.finish();
      return app.tracks[0]!.map.drawn;
    },
  };
}

if (typeof document === "undefined") runWorker();
else {
  const start = (): void => void new Page().start();
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
}
