// Two recordings side by side: the figures, and the difference by stack, size, stream and phase as `weir diff` finds
// it.
import type { App } from "./app";
import type { Align } from "./axis";
import type { RecordingInfo } from "./data";
import { h, type Attributes, type Child } from "./dom";
import { bytes, count, percent } from "./format";

// More memory is bad. More entries or segments are neither good nor bad.
function change(a: number | null, b: number | null, text: (n: number) => string, isMemory = true): Child {
  if (a === null || b === null) return "not known";
  const d = b - a;
  if (d === 0) return h("span", { class: "muted" }, "equal");
  const share =
    a === 0 ? "appeared" : b === 0 ? "disappeared" : `${d > 0 ? "+" : "−"}${percent(Math.abs(d) / a)}`;
  return h(
    "span",
    { class: isMemory ? (d > 0 ? "bad" : "good") : null },
    `${d > 0 ? "+" : ""}${text(d)}`,
    isMemory || a > 0 ? h("small", {}, share) : null,
  );
}

export function comparePanel(app: App): Child[] {
  const [a, b] = [app.recordings[0]!.info, app.recordings[1]!.info];
  const signed =
    (text: (n: number) => string) =>
    (n: number): string =>
      n < 0 ? `−${text(-n)}` : text(n);
  const diff = diffOf(app);
  const rows: Total[] = [
    ...(diff ? diff.totals.flatMap(totals) : peaks(a, b)),
    ...(diff ? [{ name: "steps", a: diff.a.steps.count, b: diff.b.steps.count, isMemory: false }] : []),
    { name: "entries", a: a.entries, b: b.entries, isMemory: false },
    { name: "blocks", a: a.blocks.total, b: b.blocks.total, isMemory: false },
    { name: "segments", a: a.segments.total, b: b.segments.total, isMemory: false },
    { name: "out of memory", a: a.ooms, b: b.ooms, isMemory: false },
  ];
  const align = h(
    "select",
    { "aria-label": "Align the recordings by", onchange: () => app.setAlign(align.value as Align) },
    h("option", { value: "entries" }, "entries"),
    h("option", { value: "progress" }, "progress (first to last entry)"),
    app.recordings.every((r) => r.times) ? h("option", { value: "time" }, "time since the first entry") : null,
  );
  align.value = app.axis.align;
  return [
    h("h2", {}, "Compare"),
    h("p", {}, h("b", {}, "A "), app.tracks[0]!.label, h("br"), h("b", {}, "B "), app.tracks[1]!.label),
    h("label", { class: "field" }, h("span", {}, "Align by"), align),
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["", "A", "B", "B − A"].map((t) => h("th", { scope: "col" }, t)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => {
          const text = row.isMemory ? bytes : signed(count);
          return h(
            "tr",
            { "data-total": row.name, "data-a": row.a, "data-b": row.b },
            h("th", { scope: "row" }, row.name),
            h("td", {}, row.a === null ? "not known" : text(row.a)),
            h("td", {}, row.b === null ? "not known" : text(row.b)),
            h("td", {}, change(row.a, row.b, text, row.isMemory)),
          );
        }),
      ),
    ),
    ...difference(app),
  ];
}

interface DiffSums {
  a: number;
  b: number;
}

// The object of `weir diff --json`, as far as it is shown.
interface DiffTotals {
  at: string;
  allocated: { a: number | null; b: number | null };
  reserved: { a: number | null; b: number | null };
}

interface Diff {
  a: { steps: { count: number } };
  b: { steps: { count: number } };
  totals: DiffTotals[];
  stacks: { same: number; moved: number; only_a: number; only_b: number };
  phases_aligned: string;
  by: {
    key: string;
    rows: ({ name: string; change: string; difference: number; moved: boolean } & Record<string, unknown>)[];
    rest: { rows: number };
  }[];
}

const MOMENTS: Record<string, string> = {
  peak: "at the peak",
  end: "at the end",
  step: "at the peaks of steps (mean)",
};
const TOTALS: Record<string, (what: string) => string> = {
  peak: (what) => `peak ${what}`,
  end: (what) => `${what} at the end`,
  step: (what) => `${what} in a step`,
};
let moment = "peak";

// What `weir diff` found, unless one side is a what-if.
function diffOf(app: App): Diff | null {
  const diff = app.data.index.diff as Diff | null;
  return diff && Array.isArray(diff.by) && app.tracks.every((t) => !t.isWhatif) ? diff : null;
}

type Total = { name: string; a: number | null; b: number | null; isMemory: boolean };

function totals(t: DiffTotals): Total[] {
  if (t.allocated.a === null && t.reserved.a === null) return [];
  return (["allocated", "reserved"] as const).map((what) => ({
    name: TOTALS[t.at]?.(what) ?? `${what} (${t.at})`,
    a: t[what].a,
    b: t[what].b,
    isMemory: true,
  }));
}

function peaks(a: RecordingInfo, b: RecordingInfo): Total[] {
  return [
    { name: "peak in use", a: a.peak.allocated, b: b.peak.allocated, isMemory: true },
    { name: "peak reserved", a: a.peak.reserved, b: b.peak.reserved, isMemory: true },
  ];
}

// The difference as `weir diff` finds it. Without it (a what-if), the groups at both peaks.
function difference(app: App): Child[] {
  const diff = diffOf(app);
  if (diff) return diffTables(app, diff);
  const [ra, rb] = [app.recordings[0]!, app.recordings[1]!];
  const [ga, gb] = [ra.groups.get(app.by), rb.groups.get(app.by)];
  const values = (r: typeof ra, g: typeof ga): Map<string, number> | null => {
    const level = g?.levels.finest();
    const peak = r.info.peak.allocated_entry;
    if (!g || !level || peak === null) return null;
    const column = Math.min(level.columns - 1, Math.floor(peak / level.span));
    return new Map(g.info.names.map((name, k) => [name || "(none)", level.values[k * level.columns + column]!]));
  };
  const [va, vb] = [values(ra, ga), values(rb, gb)];
  if (!va || !vb) return [];
  // A name that one side has under "other" has no figure of its own there.
  const hasOther = (m: Map<string, number>): boolean => m.has("other");
  const names = [...new Set([...va.keys(), ...vb.keys()])];
  const rows = names.map((name) => ({
    name,
    before: va.get(name) ?? (hasOther(va) ? null : 0),
    after: vb.get(name) ?? (hasOther(vb) ? null : 0),
  }));
  return [rowsTable(`At both peaks, by ${app.by}`, rows)];
}

export interface DiffRow {
  name: string;
  before: number | null;
  after: number | null;
}

const SHOWN = 60;
const LONG_NAME = 12;

// Where names are long, each has a line of its own above its figures.
function rowsTable(title: string, rows: DiffRow[]): Child {
  const size = (r: DiffRow): number => Math.abs((r.after ?? 0) - (r.before ?? 0));
  const sorted = [...rows].sort((a, b) => size(b) - size(a));
  const isWide = rows.some((r) => r.name.length > LONG_NAME);
  const figures = (r: DiffRow): Child[] => [
    h("td", {}, r.before === null ? "in other" : bytes(r.before)),
    h("td", {}, r.after === null ? "in other" : bytes(r.after)),
    h("td", {}, change(r.before, r.after, bytes)),
  ];
  const values = (r: DiffRow): Attributes => ({ "data-name": r.name, "data-a": r.before, "data-b": r.after });
  const shown = sorted.slice(0, SHOWN);
  return [
    h("h3", {}, title),
    h(
      "table",
      { class: isWide ? "diff wide" : "diff" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          (isWide ? ["A", "B", "B − A"] : ["", "A", "B", "B − A"]).map((t) => h("th", { scope: "col" }, t)),
        ),
      ),
      isWide
        ? shown.map((r) =>
            h(
              "tbody",
              values(r),
              h("tr", {}, h("th", { scope: "rowgroup", colspan: 3 }, r.name)),
              h("tr", {}, figures(r)),
            ),
          )
        : h(
            "tbody",
            {},
            shown.map((r) => h("tr", values(r), h("th", { scope: "row" }, r.name), figures(r))),
          ),
    ),
    sorted.length > SHOWN
      ? h("p", { class: "muted" }, `${count(sorted.length - SHOWN)} more rows are not shown.`)
      : null,
  ];
}

function diffTables(app: App, diff: Diff): Child[] {
  const select = h(
    "select",
    {
      "aria-label": "Moment of the difference",
      onchange: () => {
        moment = select.value;
        app.side.update();
      },
    },
    Object.entries(MOMENTS)
      .filter(([name]) => diff.by.some((by) => by.rows.some((row) => row[name])))
      .map(([name, text]) => h("option", { value: name }, text)),
  );
  select.value = moment;
  if (!select.value) select.value = moment = "peak";
  const st = diff.stacks;
  return [
    h("label", { class: "field" }, h("span", {}, "Difference"), select),
    st.same + st.moved + st.only_a + st.only_b > 0
      ? h(
          "p",
          { class: "muted" },
          `Stacks: ${count(st.same)} in both, ${count(st.moved)} moved to other lines, ${count(st.only_a)} only in A, ${count(st.only_b)} only in B.`,
        )
      : null,
    diff.by.map((by) => {
      const rows = by.rows.flatMap((row): DiffRow[] => {
        const sums = row[moment] as DiffSums | null | undefined;
        const name = row.moved ? `${row.name} (moved to other lines)` : row.name;
        return sums ? [{ name, before: sums.a, after: sums.b }] : [];
      });
      const changed = rows.filter((row) => row.before !== row.after);
      return [
        changed.length > 0
          ? rowsTable(`By ${by.key}, ${MOMENTS[moment]}`, changed)
          : [h("h3", {}, `By ${by.key}, ${MOMENTS[moment]}`), h("p", { class: "muted" }, "No difference.")],
        changed.length > 0 && by.rest.rows > 0
          ? h("p", { class: "muted" }, `The ${count(by.rest.rows)} smallest differences are not in this page.`)
          : null,
      ];
    }),
  ];
}
