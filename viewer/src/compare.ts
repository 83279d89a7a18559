// Two recordings side by side: the figures, and the difference by stack, size, stream and phase as `weir diff` finds it.
import type { App } from "./app";
import type { Align } from "./axis";
import { h, type Child } from "./dom";
import { bytes, count, percent } from "./format";

function change(a: number | null, b: number | null, text: (n: number) => string): Child {
  if (a === null || b === null) return "not known";
  const d = b - a;
  if (d === 0) return h("span", { class: "muted" }, "equal");
  const share = a > 0 ? `${d > 0 ? "+" : "−"}${percent(Math.abs(d) / a)}` : null;
  return h(
    "span",
    { class: d > 0 ? "bad" : "good" },
    `${d > 0 ? "+" : ""}${text(d)}`,
    share ? h("small", {}, share) : null,
  );
}

export function comparePanel(app: App): Child[] {
  const [a, b] = [app.recordings[0]!.info, app.recordings[1]!.info];
  const signed =
    (text: (n: number) => string) =>
    (n: number): string =>
      n < 0 ? `−${text(-n)}` : text(n);
  const rows: [string, number | null, number | null, (n: number) => string][] = [
    ["peak allocated", a.peak.allocated, b.peak.allocated, bytes],
    ["peak reserved", a.peak.reserved, b.peak.reserved, bytes],
    ["entries", a.entries, b.entries, signed(count)],
    ["blocks", a.blocks.total, b.blocks.total, signed(count)],
    ["segments", a.segments.total, b.segments.total, signed(count)],
    ["out of memory", a.ooms, b.ooms, signed(count)],
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
        rows.map(([name, x, y, text]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, name),
            h("td", {}, x === null ? "not known" : text(x)),
            h("td", {}, y === null ? "not known" : text(y)),
            h("td", {}, change(x, y, text)),
          ),
        ),
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
interface Diff {
  totals: { at: string; allocated: Record<string, number | null>; reserved: Record<string, number | null> }[];
  stacks: { same: number; moved: number; only_a: number; only_b: number };
  phases_aligned: string;
  by: {
    key: string;
    rows: ({ name: string; change: string; difference: number; moved: boolean } & Record<string, unknown>)[];
    rest: { rows: number };
  }[];
}

const MOMENTS: Record<string, string> = { peak: "at the peak", end: "at the end", step: "at the peak of a step" };
let moment = "peak";

// The difference as `weir diff` finds it. Without it (a what-if), the groups at both peaks.
function difference(app: App): Child[] {
  const diff = app.data.index.diff as Diff | null;
  if (diff && Array.isArray(diff.by) && app.tracks.every((t) => !t.isWhatif)) return diffTables(app, diff);
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

function rowsTable(title: string, rows: DiffRow[]): Child {
  const size = (r: DiffRow): number => Math.abs((r.after ?? 0) - (r.before ?? 0));
  const sorted = [...rows].sort((a, b) => size(b) - size(a));
  return [
    h("h3", {}, title),
    h(
      "table",
      { class: "diff" },
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
        sorted
          .slice(0, 60)
          .map((r) =>
            h(
              "tr",
              {},
              h("th", { scope: "row", title: r.name }, h("span", { class: "clip" }, r.name)),
              h("td", {}, r.before === null ? "in other" : bytes(r.before)),
              h("td", {}, r.after === null ? "in other" : bytes(r.after)),
              h("td", {}, change(r.before, r.after, bytes)),
            ),
          ),
      ),
    ),
    sorted.length > 60 ? h("p", { class: "muted" }, `${count(sorted.length - 60)} more`) : null,
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
        return sums ? [{ name: row.moved ? `${row.name} (moved)` : row.name, before: sums.a, after: sums.b }] : [];
      });
      const changed = rows.filter((row) => row.before !== row.after);
      return [
        changed.length > 0
          ? rowsTable(`By ${by.key}, ${MOMENTS[moment]}`, changed)
          : [h("h3", {}, `By ${by.key}`), h("p", { class: "muted" }, "No difference.")],
        changed.length > 0 && by.rest.rows > 0
          ? h("p", { class: "muted" }, `${count(by.rest.rows)} further rows are in weir diff --json as one sum`)
          : null,
      ];
    }),
  ];
}
