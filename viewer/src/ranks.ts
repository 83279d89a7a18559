// The page of many ranks: a map of ranks and steps, whose brightness is the peak of allocated memory, and what
// `weir ranks` says about them. The map is drawn once, a pixel for each rank and group of steps, into a canvas that is
// not shown; a frame scales a part of it, so it does not matter how many ranks there are.
import { button, facts, fill, h } from "./dom";
import { bytes, count, plural } from "./format";

interface Difference {
  feature: string;
  stack: string | null;
  value: number;
  usual: number;
  since_step_least: number | null;
  since_step_most: number | null;
  grows: boolean;
}

interface RanksData {
  digests: number;
  missing: number[];
  classes: { role: string | null; count: number; usual: boolean; ranks: number[] }[];
  outliers: { rank: number; class: number; differences: Difference[] }[];
  partings: { rank: number; other: number; first_step: number; last_step: number }[];
  out_of_memory: { rank: number; step: number; bytes: number; stack: string | null }[];
  map: {
    columns: number;
    steps: number; // in a column
    most: number; // bytes of the value 255
    rows: { rank: number; class: number; host: string | null; file: string | null; allocated: number; reserved: number }[];
  };
}

// Rows of a texture: browsers have canvases of at least so many pixels in each direction.
const TILE_ROWS = 4096;
const LABELS = 56;

// Dark blue, green, yellow; a column that a rank did not reach is transparent.
function color(value: number): [number, number, number] {
  const t = value / 255;
  return [Math.round(30 + 225 * t ** 1.6), Math.round(40 + 190 * Math.sqrt(t)), Math.round(120 * (1 - t) + 40)];
}

export class RanksPage {
  private readonly tiles: HTMLCanvasElement[] = [];
  private readonly canvas = h("canvas", { class: "ranks-map", tabindex: 0, "aria-label": "Map of ranks and steps" });
  private readonly side = h("div", { class: "ranks-side", "aria-live": "polite" });
  private readonly said = h("p", { class: "muted", role: "status" });
  private first = 0; // the row at the upper edge, and how many are shown
  private shown: number;
  private selected = -1;
  private isDue = false;
  private readonly marked: number[]; // rows of outliers
  private drag: { y: number; first: number; moved: boolean } | null = null;

  constructor(
    container: HTMLElement,
    readonly data: RanksData,
    values: Uint8Array,
  ) {
    this.shown = Math.max(1, data.map.rows.length);
    const outliers = new Set(data.outliers.map((o) => o.rank));
    this.marked = data.map.rows.flatMap((row, i) => (outliers.has(row.rank) ? [i] : []));
    this.prepare(values);
    fill(
      container,
      h(
        "div",
        { class: "ranks" },
        h("header", {}, h("h1", {}, h("span", { class: "logo", "aria-hidden": "true" }), ` ${this.title()}`), this.said),
        h("div", { class: "ranks-body" }, this.canvas, this.side),
      ),
    );
    this.listen();
    this.showAll();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.draw();
    document.documentElement.dataset.ready = "true";
  }

  // The embedded data; null if the page is about a recording.
  static fromPage(container: HTMLElement): RanksPage | null {
    const index = document.getElementById("weir-ranks");
    const map = document.getElementById("weir-ranks-map");
    if (!index || !map) return null;
    const text = atob(map.textContent ?? "");
    const values = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) values[i] = text.charCodeAt(i);
    return new RanksPage(container, JSON.parse(index.textContent ?? "") as RanksData, values);
  }

  private title(): string {
    const usual = this.data.classes.filter((c) => c.usual).length;
    return `${plural(this.data.digests, "rank")}, ${plural(usual, "class", "classes")}, ${plural(this.data.outliers.length, "outlier")}`;
  }

  private prepare(values: Uint8Array): void {
    const { columns, rows } = this.data.map;
    for (let from = 0; from < rows.length && columns > 0; from += TILE_ROWS) {
      const height = Math.min(TILE_ROWS, rows.length - from);
      const tile = h("canvas", { width: columns, height });
      const context = tile.getContext("2d")!;
      const image = context.createImageData(columns, height);
      for (let i = 0; i < columns * height; i++) {
        const value = values[from * columns + i] ?? 0;
        if (value === 0) continue;
        const [red, green, blue] = color(value);
        image.data.set([red, green, blue, 255], 4 * i);
      }
      context.putImageData(image, 0, 0);
      this.tiles.push(tile);
    }
  }

  // Draws in the next frame, once for all that happened before it.
  private draw(): void {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.paint();
    });
  }

  private paint(): void {
    const scale = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * scale);
    const height = Math.round(this.canvas.clientHeight * scale);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const context = this.canvas.getContext("2d")!;
    const style = getComputedStyle(this.canvas);
    const left = LABELS * scale;
    const each = height / this.shown;
    context.clearRect(0, 0, width, height);
    context.imageSmoothingEnabled = each < 1;
    this.tiles.forEach((tile, i) => {
      const from = Math.max(this.first, i * TILE_ROWS);
      const to = Math.min(this.first + this.shown, i * TILE_ROWS + tile.height);
      if (to > from)
        context.drawImage(tile, 0, from - i * TILE_ROWS, tile.width, to - from, left, (from - this.first) * each, width - left, (to - from) * each);
    });
    context.fillStyle = style.color;
    context.font = `${11 * scale}px system-ui, sans-serif`;
    const step = Math.max(1, Math.ceil((18 * scale) / each));
    for (let row = Math.ceil(this.first / step) * step; row < this.first + this.shown; row += step) {
      const at = this.data.map.rows[row];
      if (at) context.fillText(String(at.rank), 4 * scale, (row - this.first) * each + 12 * scale);
    }
    context.fillStyle = style.getPropertyValue("--danger") || "red";
    for (const row of this.marked)
      if (row >= this.first && row < this.first + this.shown)
        context.fillRect(left - 6 * scale, (row - this.first) * each, 4 * scale, Math.max(each, 2 * scale));
    if (this.selected >= 0) {
      context.strokeStyle = style.color;
      context.lineWidth = 1.5 * scale;
      context.strokeRect(left, (this.selected - this.first) * each, width - left - 1, Math.max(each, 3 * scale));
    }
  }

  private rowAt(event: MouseEvent): number {
    const box = this.canvas.getBoundingClientRect();
    return Math.floor(this.first + ((event.clientY - box.top) / box.height) * this.shown);
  }

  private columnAt(event: MouseEvent): number {
    const box = this.canvas.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left - LABELS) / (box.width - LABELS)) * this.data.map.columns);
  }

  private look(first: number, shown: number): void {
    const rows = this.data.map.rows.length;
    this.shown = Math.min(Math.max(shown, 4), Math.max(rows, 1));
    this.first = Math.min(Math.max(first, 0), rows - this.shown);
    this.draw();
  }

  private listen(): void {
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      const part = (event.clientY - box.top) / box.height;
      const shown = this.shown * Math.exp(event.deltaY / 400);
      const before = this.shown;
      this.look(this.first + part * (before - Math.min(Math.max(shown, 4), this.data.map.rows.length)), shown);
    });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { y: event.clientY, first: this.first, moved: false };
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.drag) {
        const by = event.clientY - this.drag.y;
        this.drag.moved ||= Math.abs(by) > 3;
        if (this.drag.moved) this.look(this.drag.first - (by / this.canvas.clientHeight) * this.shown, this.shown);
      }
      this.hover(event);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (this.drag && !this.drag.moved) this.select(this.rowAt(event));
      this.drag = null;
    });
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      this.select(Math.max(0, this.selected + by));
    });
  }

  private hover(event: MouseEvent): void {
    const row = this.data.map.rows[this.rowAt(event)];
    const column = this.columnAt(event);
    const { steps } = this.data.map;
    this.said.textContent =
      row && column >= 0 ? `rank ${row.rank}, step ${column * steps} to ${(column + 1) * steps - 1}` : "";
  }

  select(row: number): void {
    const found = this.data.map.rows[row];
    if (!found) return;
    this.selected = row;
    if (row < this.first || row >= this.first + this.shown) this.look(row - this.shown / 2, this.shown);
    const { rank } = found;
    const outlier = this.data.outliers.find((o) => o.rank === rank);
    const role = this.data.classes[outlier ? outlier.class : found.class]?.role;
    const parting = this.data.partings.find((p) => p.rank === rank);
    const failure = this.data.out_of_memory.find((f) => f.rank === rank);
    fill(
      this.side,
      h("h2", {}, `Rank ${rank}`),
      facts([
        ["Role", role ?? "—"],
        ["Host", found.host ?? "—"],
        ["Peak allocated", bytes(found.allocated)],
        ["Peak reserved", bytes(found.reserved)],
        failure ? ["Out of memory", `at step ${failure.step}: ${bytes(failure.bytes)} by ${failure.stack ?? "?"}`] : null,
        parting
          ? ["Requests", `differ from those of rank ${parting.other} since step ${parting.first_step} to ${parting.last_step}`]
          : null,
      ]),
      outlier ? [h("h3", {}, "Differs from its class"), h("ul", {}, outlier.differences.map((d) => h("li", {}, this.words(d))))] : null,
      found.file ? [h("h3", {}, "Open its recording"), h("pre", {}, `weir view ${found.file}`)] : null,
      button("All ranks", () => this.showAll()),
    );
    this.draw();
  }

  private words(d: Difference): string {
    const since =
      d.since_step_least === null ? "" : `, ${d.grows ? "growing since" : "since"} step ${d.since_step_least} to ${d.since_step_most}`;
    if (d.feature === "requests") return `${count(d.value / 1000)} requests a step, usual are ${count(d.usual / 1000)}`;
    return `${bytes(d.value)} ${d.stack === null ? d.feature : `by ${d.stack}`}, usual are ${bytes(d.usual)}${since}`;
  }

  private rankButton(rank: number): HTMLElement {
    const row = this.data.map.rows.findIndex((r) => r.rank === rank);
    return h("li", {}, button(`rank ${rank}`, () => this.select(row)));
  }

  private showAll(): void {
    this.selected = -1;
    const list = (title: string, ranks: number[]) =>
      ranks.length ? [h("h3", {}, title), h("ul", {}, ranks.slice(0, 100).map((rank) => this.rankButton(rank)))] : null;
    fill(
      this.side,
      h("h2", {}, "Classes"),
      h("ul", {}, this.data.classes.filter((c) => c.usual).map((c) => h("li", {}, `${c.role ?? "all alike"}: ${plural(c.count, "rank")}`))),
      list("Out of memory", this.data.out_of_memory.map((f) => f.rank)),
      list("Outliers", this.data.outliers.map((o) => o.rank)),
      list("Other requests than their class", this.data.partings.map((p) => p.rank)),
      this.data.missing.length ? [h("h3", {}, "Missing"), h("p", {}, this.data.missing.slice(0, 100).join(", "))] : null,
    );
    this.draw();
  }

  // For tests: how long it takes to draw, in ms.
  measure(times: number): number[] {
    return Array.from({ length: times }, () => {
      const begin = performance.now();
      this.paint();
      return performance.now() - begin;
    });
  }

  // For tests: what is shown.
  state(): { first: number; shown: number; selected: number; text: string } {
    return { first: this.first, shown: this.shown, selected: this.selected, text: this.side.textContent ?? "" };
  }
}
