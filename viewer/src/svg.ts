// Writes the visible part as SVG: memory over time, and the map of each recording. Rectangles that are smaller than a
// quarter of a pixel are left out, and counted in a note.
import type { App, Track } from "./app";
import { bandsIn, columnOf } from "./bands";
import { step } from "./axis";
import { UNIT } from "./blocks";
import { count, shortBytes } from "./format";

const MAX = 30000;

const escapes: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

function escape(text: string): string {
  // Control characters are not allowed in XML, not even escaped.

  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"]/g, (c) => escapes[c]!);
}

const f = (n: number): string => String(Math.round(n * 100) / 100);

export function writeSvg(app: App): string {
  const left = 70;
  const width = 1130;
  const out: string[] = [];
  const theme = app.theme;
  let top = 34;
  const head = app.tracks.map((t) => t.label).join(" and ");
  for (const track of app.tracks) {
    top = writeMemory(app, track, out, left, top, width, 150) + 12;
    top = writeMap(app, track, out, left, top, width, app.tracks.length > 1 ? 300 : 460) + 18;
  }
  top = writeAxis(app, out, left, top - 6, width) + 8;
  const { names, colors } = app.tracks[0]!.coloring;
  let x = left;
  names.forEach((name, i) => {
    const text = name.length > 44 ? `${name.slice(0, 43)}…` : name;
    const w = 18 + text.length * 6;
    if (x + w > left + width) {
      x = left;
      top += 16;
    }
    out.push(
      `<rect x="${f(x)}" y="${top}" width="10" height="10" fill="${colors[i]}"/><text x="${f(x + 14)}" y="${top + 9}">${escape(text)}</text>`,
    );
    x += w;
  });
  top += 26;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${left + width + 16} ${top}" width="${left + width + 16}" height="${top}" ` +
    `font-family="system-ui, sans-serif" font-size="11" fill="${theme.ink}">\n` +
    `<rect width="100%" height="100%" fill="${theme.background}"/>\n` +
    `<text x="${left}" y="20" font-size="13" font-weight="600">${escape(head)}</text>\n${out.join("\n")}\n</svg>\n`
  );
}

function writeAxis(app: App, out: string[], left: number, top: number, width: number): number {
  const { x0, x1 } = app.axis;
  const by = Math.max(1, step(x1 - x0, 10));
  for (let v = Math.ceil(x0 / by) * by; v <= x1; v += by) {
    const x = left + ((v - x0) / (x1 - x0)) * width;
    out.push(
      `<path d="M${f(x)} ${top}v5" stroke="${app.theme.muted}"/><text x="${f(x)}" y="${top + 17}" text-anchor="middle">${count(v)}</text>`,
    );
  }
  out.push(`<text x="${left - 6}" y="${top + 17}" text-anchor="end" fill="${app.theme.muted}">entry</text>`);
  return top + 24;
}

function writeMemory(
  app: App,
  track: Track,
  out: string[],
  left: number,
  top: number,
  width: number,
  height: number,
): number {
  const r = track.recording;
  const { x0, x1 } = app.axis.window(r);
  const group = r.groups.get(app.by);
  const bands = bandsIn(app, track, x0, x1, width);
  const most = app.memoryTop;
  const py = (v: number): number => top + height - (v / most) * height;
  const px = (x: number): number => left + ((Math.max(x0, Math.min(x1, x)) - x0) / (x1 - x0)) * width;
  const by = step(most, 5, true);
  for (let v = by; v <= most; v += by)
    out.push(
      `<path d="M${left} ${f(py(v))}h${width}" stroke="${app.theme.line}"/><text x="${left - 6}" y="${f(py(v) + 4)}" text-anchor="end">${shortBytes(v)}</text>`,
    );
  if (group && bands) {
    const first = Math.max(0, columnOf(bands, x0));
    const end = columnOf(bands, x1);
    const last = end < 0 ? bands.columns - 1 : end;
    const low = new Float64Array(Math.max(0, last - first + 1));
    for (let k = 0; k < bands.rows; k++) {
      let upper = "";
      let lower = "";
      for (let i = first; i <= last; i++) {
        const a = f(px(bands.first + i * bands.span));
        const b = f(px(bands.first + (i + 1) * bands.span));
        const from = low[i - first]!;
        const to = from + bands.values[k * bands.columns + i]!;
        upper += `L${a} ${f(py(to))}H${b}`;
        lower = `L${b} ${f(py(from))}H${a}${lower}`;
        low[i - first] = to;
      }
      const color = track.coloring.colors[k] ?? app.theme.hidden;
      if (upper) out.push(`<path d="M${upper.slice(1)}${lower}z" fill="${color}"/>`);
    }
  }
  const counters = r.counters.level((x1 - x0) / width);
  if (counters)
    r.info.counters.names.forEach((name, k) => {
      if (!app.counters.has(name)) return;
      const first = Math.max(0, Math.floor(x0 / counters.span));
      const last = Math.min(counters.columns - 1, Math.floor(x1 / counters.span));
      let path = "";
      for (let i = first; i <= last; i++)
        path += `L${f(px(i * counters.span))} ${f(py(counters.values[(2 * k + 1) * counters.columns + i]!))}H${f(px((i + 1) * counters.span))}`;
      if (path) out.push(`<path d="M${path.slice(1)}" fill="none" stroke="${app.counterColor(name)}"/>`);
    });
  return top + height;
}

function writeMap(
  app: App,
  track: Track,
  out: string[],
  left: number,
  top: number,
  width: number,
  height: number,
): number {
  const r = track.recording;
  const { x0, x1 } = app.axis.window(r);
  const { y0, y1 } = track.map;
  const sx = width / (x1 - x0);
  const sy = height / (y1 - y0);
  const rect = (a: number, b: number, y: number, units: number): string => {
    const xa = Math.max(0, (a - x0) * sx);
    const xb = Math.min(width, (b - x0) * sx);
    const ya = Math.max(0, (y1 - y - units) * sy);
    const yb = Math.min(height, (y1 - y) * sy);
    return `M${f(left + xa)} ${f(top + ya)}h${f(xb - xa)}v${f(yb - ya)}h${f(xa - xb)}z`;
  };
  const isVisible = (a: number, b: number, y: number, units: number): boolean =>
    a < x1 && b > x0 && y < y1 && y + units > y0;
  const s = r.segments;
  let path = "";
  if (s)
    for (let i = 0; i < s.count; i++)
      if (isVisible(s.x0[i]!, s.x1[i]!, s.y[i]!, s.units[i]!)) path += rect(s.x0[i]!, s.x1[i]!, s.y[i]!, s.units[i]!);
  if (path) out.push(`<path d="${path}" fill="${app.theme.segment}"/>`);
  const found: { area: number; color: string; path: string }[] = [];
  let small = 0;
  r.blocks.each((tile, i) => {
    const b = r.blocks.at(tile, i);
    if (!isVisible(b.x0, b.x1, b.y, b.units)) return;
    if (app.hasFilter && tile.match?.[i] === 0) return;
    const area = (b.x1 - b.x0) * sx * b.units * sy;
    if (area < 0.25) small++;
    else found.push({ area, color: track.colorOf(track.coloring, tile, i), path: rect(b.x0, b.x1, b.y, b.units) });
  });
  found.sort((a, b) => b.area - a.area);
  small += Math.max(0, found.length - MAX);
  const byColor = new Map<string, string[]>();
  for (const one of found.slice(0, MAX)) {
    const list = byColor.get(one.color);
    if (list) list.push(one.path);
    else byColor.set(one.color, [one.path]);
  }
  for (const [color, paths] of byColor)
    out.push(`<path d="${paths.join("")}" fill="${color}" stroke="${app.theme.background}" stroke-width="0.3"/>`);
  for (const mark of r.info.marks) {
    if (mark.kind !== "oom" || mark.entry < x0 || mark.entry > x1) continue;
    const x = left + (mark.entry - x0) * sx;
    out.push(
      `<path d="M${f(x)} ${top}v${height}" stroke="${app.theme.danger}"/><text x="${f(x - 4)}" y="${top + 12}" text-anchor="end" fill="${app.theme.danger}">out of memory</text>`,
    );
  }
  const by = Math.max(UNIT, step((y1 - y0) * UNIT, 8, true));
  for (let v = Math.ceil((y0 * UNIT) / by) * by; v <= y1 * UNIT; v += by)
    out.push(
      `<text x="${left - 6}" y="${f(top + (y1 - v / UNIT) * sy + 4)}" text-anchor="end">${shortBytes(v)}</text>`,
    );
  const hidden = r.blocks.total - r.blocks.stored;
  const notes = [
    small ? `${count(small)} blocks below a quarter of a pixel are not drawn` : "",
    hidden ? `${count(hidden)} small blocks are not stored` : "",
  ].filter((t) => t);
  if (notes.length)
    out.push(
      `<text x="${left + width}" y="${top + height + 12}" text-anchor="end" fill="${app.theme.muted}">${notes.join("; ")}</text>`,
    );
  return top + height + (notes.length ? 8 : 0);
}
