// The panel at the side: overview, block, cause, search, compare, what-if, leaks.
import type { App, Track } from "./app";
import type { Block, Tile } from "./blocks";
import { UNIT, WORDS } from "./blocks";
import { comparePanel } from "./compare";
import { button, facts, fill, h, type Child } from "./dom";
import { CAUSES, explained, type Explained } from "./explain";
import { address, bytes, bytesWithExact, count, duration, percent, plural, range } from "./format";
import { leaksPanel } from "./leaks";
import { whatifPanel } from "./whatif";

interface Tab {
  name: string;
  label: string;
}

const LISTED = 100;

export class Side {
  readonly root: HTMLElement;
  private tabRow = h("div", { class: "tabs", role: "tablist", "aria-label": "Panels" });
  private body = h("div", { class: "panel", role: "tabpanel", tabindex: 0 });
  private foundAt = -1;
  private foundList: { track: Track; block: Block }[] = [];
  private foundVersion = "";

  constructor(private readonly app: App) {
    this.root = h("aside", { class: "side", "aria-label": "Details" }, this.tabRow, this.body);
    this.tabRow.addEventListener("keydown", (e) => {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (!direction) return;
      e.preventDefault();
      e.stopPropagation();
      const tabs = this.tabs();
      const next = (tabs.findIndex((t) => t.name === this.app.tab) + direction + tabs.length) % tabs.length;
      this.app.setTab(tabs[next]!.name);
      this.tabRow.querySelector<HTMLElement>('[aria-selected="true"]')?.focus();
    });
  }

  tabs(): Tab[] {
    const app = this.app;
    const list: Tab[] = [{ name: "overview", label: "Overview" }];
    if (app.recordings.some((r) => r.info.explain || r.info.explain_text))
      list.push({ name: "cause", label: app.recordings[0]!.info.ooms > 0 ? "Out of memory" : "Explain" });
    list.push({ name: "block", label: "Block" }, { name: "search", label: "Search" });
    if (app.tracks.length > 1) list.push({ name: "compare", label: "Compare" });
    if (app.recordings.some((r) => r.info.leaks)) list.push({ name: "leaks", label: "Leaks" });
    list.push({ name: "whatif", label: "What if" });
    return list;
  }

  focus(): void {
    this.body.focus({ preventScroll: true });
  }

  update(): void {
    const app = this.app;
    const tabs = this.tabs();
    const current = tabs.find((t) => t.name === app.tab) ?? tabs[0]!;
    const hadFocus = this.tabRow.contains(document.activeElement);
    fill(
      this.tabRow,
      tabs.map((tab, i) =>
        h(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${tab.name}`,
            "aria-selected": tab === current ? "true" : "false",
            tabindex: tab === current ? 0 : -1,
            title: `${tab.label} (${i + 1})`,
            onclick: () => app.setTab(tab.name),
          },
          tab.label,
        ),
      ),
    );
    if (hadFocus) this.tabRow.querySelector<HTMLElement>('[aria-selected="true"]')?.focus();
    this.body.setAttribute("aria-labelledby", `tab-${current.name}`);
    // A field that is being edited keeps its focus: the what-if form is rebuilt only when it is not in use.
    const active = document.activeElement;
    if (
      current.name === "whatif" &&
      active instanceof HTMLInputElement &&
      this.body.contains(active) &&
      !app.host.whatif.result
    )
      return;
    const caret = active instanceof HTMLInputElement && active.type === "text" ? active.selectionStart : null;
    const label =
      active instanceof HTMLElement && this.body.contains(active) ? active.getAttribute("aria-label") : null;
    const scroll = this.body.dataset.tab === current.name ? this.body.scrollTop : 0;
    this.body.dataset.tab = current.name;
    fill(this.body, ...this.content(current.name));
    this.body.scrollTop = scroll;
    const field = label ? this.body.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`) : null;
    field?.focus();
    if (field instanceof HTMLInputElement && caret !== null) field.setSelectionRange(caret, caret);
  }

  private content(name: string): Child[] {
    switch (name) {
      case "cause":
        return this.cause();
      case "block":
        return this.block();
      case "search":
        return this.search();
      case "compare":
        return comparePanel(this.app);
      case "whatif":
        return whatifPanel(this.app);
      case "leaks":
        return leaksPanel(this.app);
      default:
        return this.app.tracks.flatMap((track) => this.overview(track));
    }
  }

  private jump(track: Track, entry: number, text?: string): HTMLElement {
    return button(text ?? `entry ${count(entry)}`, () => this.app.jump(track, entry), {
      class: "link",
      title: `Go to entry ${count(entry)}`,
    });
  }

  // ---- Overview ----

  private overview(track: Track): Child[] {
    const app = this.app;
    const info = track.recording.info;
    const r = track.recording;
    const { allocated, reserved } = info.peak;
    const entry = app.entryOf(track);
    const at = (name: string): Child => {
      const v = app.counterAt(track, name, entry);
      return v ? range(v[0], v[1], bytes) : "loading";
    };
    const hidden = r.blocks.total - r.blocks.stored;
    const ooms = info.marks.filter((m) => m.kind === "oom");
    const phases = this.phases(track);
    const classes = (info.classes as { at_peak?: Record<string, number> } | null)?.at_peak;
    return [
      h("h2", {}, track.label),
      facts([
        [
          "recorded",
          info.first_us
            ? new Date(info.first_us / 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC"
            : "time not recorded",
        ],
        ["settings", info.conf || "the defaults"],
        info.setting_label ? ["replayed under", info.setting_label] : null,
        ["device", info.devices.length > 1 ? `${info.device} of ${info.devices.join(", ")}` : String(info.device)],
        [
          "history",
          info.entries === 0
            ? "none: the page shows the segments of the snapshot"
            : `${plural(info.entries, "entry", "entries")}${info.first_us ? ` in ${duration(info.last_us - info.first_us)}` : ""}${info.is_complete ? "" : ", not complete"}`,
        ],
        info.dropped > 0
          ? ["dropped", `${plural(info.dropped, "older entry", "older entries")}: the recording had no room for them`]
          : null,
        [
          "peak in use, as requested",
          allocated === null
            ? "not known"
            : h("span", {}, bytesWithExact(allocated), " ", this.jump(track, info.peak.allocated_entry ?? 0)),
        ],
        [
          "peak reserved",
          reserved === null
            ? "not known"
            : h("span", {}, bytesWithExact(reserved), " ", this.jump(track, info.peak.reserved_entry ?? 0)),
        ],
        ["fragmentation", reserved && allocated !== null ? percent(1 - allocated / reserved) : "not known"],
        [
          "blocks",
          count(r.blocks.total) +
            (hidden
              ? `; ${count(hidden)} of at most ${bytes(info.blocks.hidden_bytes_max)} each are hidden: they are in the counters and in the grey shade`
              : ""),
        ],
        [
          "segments",
          count(info.segments.total) +
            (info.segments.stored < info.segments.total
              ? `; the ${count(info.segments.stored)} largest are shown`
              : ""),
        ],
      ]),
      h("h3", {}, `After entry ${count(entry)}`),
      facts([
        ["time", app.timeText(track, entry)],
        ["in use", at("allocated")],
        ["reserved", at("reserved")],
        ["largest hole", at("largest_hole")],
        ["freed, waiting", at("pending")],
      ]),
      this.groupTable(track, entry),
      ooms.length > 0 && [
        h("h3", {}, info.ooms === 1 ? "Out of memory" : `Out of memory, ${count(info.ooms)} times`),
        h(
          "ul",
          { class: "plain" },
          ooms
            .slice(0, 50)
            .map((m) =>
              h("li", {}, this.jump(track, m.entry), m.bytes ? ` a request of ${bytesWithExact(m.bytes)}` : ""),
            ),
          ooms.length < info.ooms || ooms.length > 50
            ? h("li", { class: "muted" }, `${count(info.ooms - Math.min(50, ooms.length))} more are not listed`)
            : null,
        ),
      ],
      classes && [
        h("h3", {}, "Classes at the peak"),
        this.bars(Object.entries(classes).map(([name, value]) => [name, value, null] as [string, number, null])),
      ],
      phases,
    ];
  }

  // Groups at the cursor, as bars.
  private groupTable(track: Track, entry: number): Child {
    const group = track.recording.groups.get(this.app.by);
    const level = group?.levels.finest();
    if (!group || !level) return null;
    const column = Math.min(level.columns - 1, Math.floor(entry / level.span));
    const rows = group.info.names
      .map(
        (name, k) =>
          [name || "(none)", level.values[k * level.columns + column]!, track.coloring.colors[k] ?? null] as [
            string,
            number,
            string | null,
          ],
      )
      .filter((row) => row[1] > 0)
      .sort((a, b) => b[1] - a[1]);
    const last = Math.min(track.recording.info.entries, (column + 1) * level.span) - 1;
    return [
      h("h3", {}, `By ${this.app.by}`),
      level.span > 1
        ? h(
            "p",
            { class: "muted" },
            `When the most was in use among entries ${count(column * level.span)} to ${count(last)}`,
          )
        : null,
      this.bars(rows),
    ];
  }

  private bars(rows: [string, number, string | null][]): HTMLElement {
    const most = Math.max(1, ...rows.map((r) => r[1]));
    return h(
      "div",
      { class: "bars" },
      rows.map(([name, value, color]) =>
        h(
          "div",
          { class: "bar-row", title: `${name}: ${bytesWithExact(value)}` },
          h("span", { class: "clip" }, name),
          h("span", { class: "value" }, bytes(value)),
          h("i", { style: `width:${((value / most) * 100).toFixed(2)}%;${color ? `background:${color}` : ""}` }),
        ),
      ),
    );
  }

  private phases(track: Track): Child {
    const marks = track.recording.info.marks.filter((m) => m.kind === "phase");
    if (marks.length === 0) return null;
    return [
      h("h3", {}, "Phases"),
      h(
        "ul",
        { class: "plain short" },
        marks.slice(0, 200).map((m) =>
          h(
            "li",
            {},
            button(
              m.name || "(none)",
              () => {
                this.app.axis.show(
                  this.app.axis.fromOwn(track.recording, m.entry),
                  this.app.axis.fromOwn(track.recording, m.end ?? m.entry + 1),
                );
                this.app.setCursor(this.app.axis.fromOwn(track.recording, m.entry), track);
                this.app.moved();
              },
              { class: "link clip", title: `Show ${m.name}` },
            ),
            h("span", { class: "muted" }, ` ${count(m.entry)}${m.end ? ` to ${count(m.end)}` : ""}`),
          ),
        ),
        marks.length > 200
          ? h("li", { class: "muted" }, `${count(marks.length - 200)} more; press H for the next one`)
          : null,
      ),
    ];
  }

  // ---- Block ----

  private block(): Child[] {
    const selected = this.app.selected;
    if (!selected)
      return [
        h("p", { class: "muted" }, "Click a block on the map, or press K, to see its size, its life and its stack."),
      ];
    const { track, block: b } = selected;
    const r = track.recording;
    const app = this.app;
    const frames = r.frames(b.stack);
    const freed = b.x1 - b.pending;
    const [from, to] = [r.timeOf(b.x0), r.timeOf(b.x1)];
    const life = from && to && !b.isBefore ? range(Math.max(0, to[0] - from[1]), to[1] - from[0], duration) : null;
    const others = this.alike(track, b.stack);
    const index = others.findIndex((o) => o.id === b.id);
    return [
      h("h2", {}, bytes(b.requested)),
      r.title(b.stack) && b.stack !== 0 ? h("p", { class: "title" }, r.title(b.stack)) : null,
      facts([
        ["requested", bytesWithExact(b.requested)],
        ["rounded", bytesWithExact(b.units * UNIT)],
        ["address", address(r.addressOf(b.y))],
        ["stream", app.streamName(track, b)],
        ["pool", app.poolName(track, b.pool)],
        ["phase", r.info.phases[b.phase] || "none"],
        ["class", r.info.class_names[b.class] ?? "unknown"],
        [
          "allocated",
          b.isBefore ? "before the history" : h("span", {}, this.jump(track, b.x0), ` at ${app.timeText(track, b.x0)}`),
        ],
        [
          "freed",
          b.isAlive && b.pending === 0
            ? "not in the history: alive at the end"
            : h("span", {}, this.jump(track, freed), ` at ${app.timeText(track, freed)}`),
        ],
        b.pending > 0 ? ["waited", `${plural(b.pending, "entry", "entries")} for other streams`] : null,
        [
          "life",
          `${plural(b.x1 - b.x0, "entry", "entries")}${b.isBefore ? " or more" : ""}${life ? `, ${b.isAlive ? "at least " : ""}${life}` : ""}`,
        ],
      ]),
      h("h3", {}, "Stack"),
      frames.length === 0
        ? h("p", { class: "muted" }, "No stack was recorded.")
        : h(
            "ol",
            { class: "stack" },
            frames.map(([name, file, line]) =>
              h(
                "li",
                {},
                button(name || "(no name)", () => this.app.search(`"${name}"`), {
                  class: "link frame",
                  title: `Search for ${name}`,
                }),
                h("span", { class: "muted" }, file ? `${file}${line ? `:${line}` : ""}` : ""),
              ),
            ),
          ),
      h("h3", {}, "Other blocks of this stack"),
      h(
        "p",
        {},
        `${plural(others.length, r.blocks.isComplete ? "block" : "stored block")}, ${bytes(others.reduce((sum, o) => sum + o.requested, 0))} in all. `,
        button("Previous", () => this.sameStack(-1), { disabled: index <= 0, title: "[" }),
        " ",
        button("Next", () => this.sameStack(1), { disabled: index < 0 || index >= others.length - 1, title: "]" }),
        " ",
        button(
          app.markedStack ? "Show all" : "Only these",
          () => {
            app.markedStack = app.markedStack ? null : { track, stack: b.stack };
            this.update();
            app.invalidate();
          },
          { "aria-pressed": app.markedStack ? "true" : "false", title: "M" },
        ),
      ),
      this.list(
        others.slice(0, LISTED).map((block) => ({ track, block })),
        others.length,
        b.id,
      ),
    ];
  }

  // The stored blocks with the same stack, in the order of their allocation.
  private alikeCache: { key: string; list: Block[] } = { key: "", list: [] };
  private alike(track: Track, stack: number): Block[] {
    const blocks = track.recording.blocks;
    const key = `${this.app.tracks.indexOf(track)}/${stack}/${blocks.loaded}`;
    if (this.alikeCache.key === key) return this.alikeCache.list;
    const found: { tile: Tile; i: number }[] = [];
    blocks.each((tile, i) => {
      if (tile.instances![i * WORDS + 4] === stack) found.push({ tile, i });
    });
    const list = found.map(({ tile, i }) => blocks.at(tile, i)).sort((a, b) => a.x0 - b.x0 || a.y - b.y);
    this.alikeCache = { key, list };
    return list;
  }

  sameStack(direction: number): void {
    const selected = this.app.selected;
    if (!selected) return;
    const list = this.alike(selected.track, selected.block.stack);
    const next = list[list.findIndex((b) => b.id === selected.block.id) + direction];
    if (next) this.app.reveal(selected.track, next);
    else
      this.app.say(direction > 0 ? "This is the last block of this stack." : "This is the first block of this stack.");
  }

  private list(blocks: { track: Track; block: Block }[], total: number, current: number): Child {
    return h(
      "ul",
      { class: "plain list" },
      blocks.map(({ track, block }) =>
        h(
          "li",
          {},
          button(`${bytes(block.requested)}`, () => this.app.reveal(track, block), {
            class: "link",
            "aria-current": block.id === current ? "true" : null,
            title: "Show this block",
          }),
          h("span", { class: "muted" }, ` entries ${count(block.x0)} to ${count(block.x1)}`),
          this.app.tracks.length > 1 ? h("span", { class: "muted clip" }, ` ${track.label}`) : null,
        ),
      ),
      total > blocks.length ? h("li", { class: "muted" }, `${count(total - blocks.length)} more`) : null,
    );
  }

  // ---- Search ----

  private matches(): { track: Track; block: Block }[] {
    const app = this.app;
    const key = `${app.filterVersion}/${app.recordings.map((r) => r.blocks.loaded).join(",")}`;
    if (key === this.foundVersion) return this.foundList;
    this.foundVersion = key;
    this.foundAt = -1;
    const list: { track: Track; tile: Tile; i: number; size: number }[] = [];
    if (app.hasFilter)
      for (const track of app.tracks)
        track.recording.blocks.each((tile, i) => {
          if (tile.match?.[i])
            list.push({ track, tile, i, size: tile.instances![i * WORDS + 3]! * UNIT - tile.slack![i]! });
        });
    list.sort((a, b) => b.size - a.size);
    this.foundList = list
      .slice(0, 1000)
      .map(({ track, tile, i }) => ({ track, block: track.recording.blocks.at(tile, i) }));
    return this.foundList;
  }

  nextFound(direction: number): void {
    const list = this.matches();
    if (list.length === 0) {
      this.app.say("No block matches.");
      return;
    }
    this.foundAt =
      this.foundAt < 0 && direction < 0 ? list.length - 1 : (this.foundAt + direction + list.length) % list.length;
    const { track, block } = list[this.foundAt]!;
    this.app.reveal(track, block);
    this.app.setTab("search");
    this.app.say(`Match ${count(this.foundAt + 1)} of ${count(list.length)}: ${bytes(block.requested)}`);
  }

  private search(): Child[] {
    const app = this.app;
    const error = app.found.find((f) => f.error)?.error;
    const examples = ["size>=100MiB", "life<10", "alive", "pending", "stream:1"];
    if (!app.hasFilter)
      return [
        error ? h("p", { class: "error", role: "alert" }, error) : null,
        h("p", {}, "Type into the field at the top: words match functions, files and lines of stacks."),
        h(
          "p",
          {},
          examples.map((text) => [button(text, () => app.search(text), { class: "link code" }), " "]),
        ),
        h(
          "p",
          { class: "muted" },
          "Also: pool:name, phase:name, class:name, at:entry, address:0x…, and -word for blocks that do not match.",
        ),
      ];
    const list = this.matches();
    return [
      error ? h("p", { class: "error", role: "alert" }, error) : null,
      app.found.map((found, k) => {
        const blocks = app.recordings[k]!.blocks;
        const hidden = blocks.total - blocks.stored;
        return h(
          "p",
          {},
          app.tracks.length > 1 ? `${app.tracks[k]!.label}: ` : "",
          h("b", {}, plural(found.count, "block")),
          `, ${bytes(found.bytes)} in all match${blocks.isLoaded ? "" : " so far"}.`,
          hidden
            ? h(
                "span",
                { class: "muted" },
                ` ${count(hidden)} hidden blocks of at most ${bytes(app.recordings[k]!.info.blocks.hidden_bytes_max)} each are not searched.`,
              )
            : null,
        );
      }),
      h(
        "p",
        {},
        button("Previous", () => this.nextFound(-1), { title: "Shift + N" }),
        " ",
        button("Next", () => this.nextFound(1), { title: "N" }),
        " ",
        button("Clear", () => {
          app.pickedBand = null;
          app.search("");
        }),
      ),
      this.list(
        list.slice(0, LISTED),
        app.found.reduce((sum, f) => sum + f.count, 0),
        app.selected?.block.id ?? -1,
      ),
    ];
  }

  // ---- The cause of an out of memory ----

  private cause(): Child[] {
    const app = this.app;
    const track = app.tracks.find((t) => t.recording.info.explain) ?? app.tracks[0]!;
    const x = explained(track.recording);
    if (!x) return [h("pre", {}, track.recording.info.explain_text ?? "Nothing was explained.")];
    const text = track.recording.info.explain_text;
    return [
      h("h2", {}, x.isOom ? "Out of memory" : `At the ${x.moment}`),
      x.unknown ? h("p", { class: "error" }, `The cause is not known: ${x.unknown}`) : null,
      x.cause ? h("p", { class: "title" }, CAUSES[x.cause] ?? x.cause) : null,
      facts([
        ["moment", this.jump(track, x.entry)],
        x.request === null ? null : ["request", bytesWithExact(x.request)],
        x.largestHole === null ? null : ["largest hole", bytesWithExact(x.largestHole)],
        x.limit === null
          ? null
          : [
              "limit",
              x.limitMost && x.limitMost !== x.limit
                ? `between ${bytes(x.limit)} and ${bytes(x.limitMost + 1)}`
                : bytes(x.limit),
            ],
        x.missing === null
          ? null
          : [
              "missing",
              x.missing[0] === x.missing[1]
                ? bytes(x.missing[0])
                : x.missing[0] <= 1
                  ? `at most ${bytes(x.missing[1])}`
                  : range(x.missing[0], x.missing[1], bytes),
            ],
        x.enough === null ? null : ["sufficient", `a limit of ${bytes(x.enough)} from the start`],
      ]),
      h(
        "p",
        {},
        button("Zoom to it", () => this.zoomToCause(track, x)),
      ),
      h(
        "label",
        { class: "row" },
        h("input", {
          type: "checkbox",
          checked: app.showsCause,
          "aria-label": "Draw it on the map",
          onchange: () => {
            app.showsCause = !app.showsCause;
            app.invalidate();
          },
        }),
        h("span", {}, "Draw it on the map: the request, the holes, what is in the way"),
      ),
      x.reserved === null
        ? null
        : [
            h("h3", {}, `${bytes(x.reserved)} reserved`),
            this.bars(
              x.uses
                .filter((u) => u.bytes > 0)
                .map((u): [string, number, string | null] => [
                  u.label,
                  u.bytes,
                  u.use === "live" || u.use === "rounding" ? null : app.theme.good,
                ]),
            ),
          ],
      x.pins.length > 0 ? this.pins(track, x) : null,
      x.trials.length > 0 ? this.trials(x) : null,
      text ? h("details", { open: false }, h("summary", {}, "What weir explain says"), h("pre", {}, text)) : null,
    ];
  }

  // Shows the segments in the way, from the allocation of what pins them to a little after the failure. What was
  // allocated long before, such as weights, does not count: with it, the window would be the whole history.
  private zoomToCause(track: Track, x: Explained): void {
    const app = this.app;
    const r = track.recording;
    const earliest = x.entry - Math.max(40, r.info.entries / 50);
    const begins = x.pins.flatMap((p) => p.blocks.map((b) => b.event ?? 0)).filter((entry) => entry > earliest);
    const from = Math.min(x.entry - 20, ...begins);
    const room = (x.entry - from) * 0.25;
    app.axis.show(app.axis.fromOwn(r, from - room), app.axis.fromOwn(r, x.entry + room));
    const spots = x.pins.flatMap((p) => {
      const y = r.yOf(p.address);
      return y === null ? [] : [{ low: y, high: y + Math.max(p.size, x.wanted ?? 0) / UNIT }];
    });
    const first = spots[0];
    if (first) {
      const margin = (first.high - first.low) * 0.15;
      track.map.showY(first.low - margin, first.high + margin);
    }
    app.showsCause = true;
    app.setCursor(app.axis.fromOwn(r, x.entry), track);
    app.moved();
  }

  private pins(track: Track, x: Explained): Child {
    const held = (blocks: number, total: number): string =>
      blocks === 1 ? `1 block of ${bytes(total)}` : `${plural(blocks, "block")}, ${bytes(total)} in total`;
    return [
      h("h3", {}, "In the way"),
      h(
        "p",
        { class: "muted" },
        x.pinsKind === "could serve"
          ? "These segments could serve the request without the blocks below."
          : "These segments could be released without the blocks below.",
      ),
      x.pins.map((pin) =>
        h(
          "section",
          { class: "pin", "data-address": address(pin.address) },
          h(
            "p",
            {},
            h("b", {}, bytes(pin.size)),
            ` segment at ${address(pin.address)}: ${bytes(pin.free)} free, held by ${held(pin.count, pin.pinned)}`,
          ),
          h(
            "ul",
            { class: "plain" },
            pin.blocks.map((b) =>
              h(
                "li",
                { "data-address": address(b.address) },
                button(bytes(b.requested), () => this.showAt(track, b.event ?? x.entry, b.address), {
                  class: "link",
                  title: "Show this block",
                }),
                h(
                  "span",
                  { class: "muted" },
                  `${b.event === null ? "" : ` entry ${count(b.event)}`}${b.age === null ? "" : `, ${duration(b.age)} old`}`,
                ),
              ),
            ),
            pin.count > pin.blocks.length
              ? h("li", { class: "muted" }, `and ${plural(pin.count - pin.blocks.length, "more block")}`)
              : null,
          ),
        ),
      ),
    ];
  }

  private showAt(track: Track, entry: number, at: number): void {
    const y = track.recording.yOf(at);
    const block = y === null ? null : track.recording.blocks.pick(entry, y);
    if (block) this.app.reveal(track, block);
    else this.app.say("This block is among the hidden ones.");
  }

  private trials(x: Explained): Child {
    const condition = (t: Explained["trials"][number]): string =>
      t.ordersServed && t.ordersServed < t.orders
        ? `, in ${t.ordersServed} of ${t.orders} orders of addresses`
        : t.dependsOnStreams
          ? ", depending on streams"
          : t.dependsOnLimit
            ? ", with the highest limit that is possible"
            : "";
    const describe = (t: Explained["trials"][number]): string =>
      t.remedy === "setting"
        ? `${t.change ?? t.conf ?? ""}${t.isWeirOnly ? ", with Weir’s allocator" : ""}${condition(t)}`
        : t.remedy === "wait"
          ? "waiting for other streams"
          : `empty_cache()${t.after === null ? "" : ` after entry ${count(t.after)}`}`;
    return [
      h("h3", {}, "Would it have helped?"),
      h(
        "ul",
        { class: "plain trials" },
        x.trials.map((t) =>
          h(
            "li",
            {},
            h("span", { class: t.works ? "badge good" : "badge" }, t.works ? "yes" : condition(t) ? "perhaps" : "no"),
            h(
              "span",
              {},
              describe(t),
              t.works && t.reserved ? h("span", { class: "muted" }, ` ${bytes(t.reserved)} reserved`) : null,
            ),
          ),
        ),
      ),
    ];
  }
}
