// The view as text, for the address of the page and for the names of exported files.

export interface ViewState {
  x0: number;
  x1: number;
  y: [number, number][]; // of each recording
  cursor: number;
  by: string;
  query: string;
  tab: string;
  align: string;
  selected: { track: number; x0: number; y: number } | null;
  theme: string; // "" follows the system
  counters: string[];
}

const number = (v: number): string => String(Math.round(v * 1000) / 1000);

export function encodeState(s: ViewState): string {
  const p = new URLSearchParams();
  p.set("x", `${number(s.x0)}-${number(s.x1)}`);
  s.y.forEach(([a, b], i) => p.set(i ? `y${i}` : "y", `${number(a)}-${number(b)}`));
  p.set("at", number(s.cursor));
  p.set("by", s.by);
  if (s.query) p.set("q", s.query);
  if (s.selected) p.set("block", `${s.selected.track}.${s.selected.x0}.${s.selected.y}`);
  p.set("tab", s.tab);
  if (s.align !== "entries") p.set("align", s.align);
  if (s.theme) p.set("theme", s.theme);
  p.set("lines", s.counters.join("."));
  return p.toString();
}

export function decodeState(text: string): Partial<ViewState> {
  const p = new URLSearchParams(text.replace(/^#/, ""));
  const state: Partial<ViewState> = {};
  const pair = (value: string | null): [number, number] | null => {
    const m = /^(-?[0-9.]+)-(-?[0-9.]+)$/.exec(value ?? "");
    const result: [number, number] = [Number(m?.[1]), Number(m?.[2])];
    return m && Number.isFinite(result[0]) && Number.isFinite(result[1]) && result[1] > result[0] ? result : null;
  };
  const x = pair(p.get("x"));
  if (x) [state.x0, state.x1] = x;
  const y: [number, number][] = [];
  for (let i = 0; i < 2; i++) {
    const own = pair(p.get(i ? `y${i}` : "y"));
    if (own) y[i] = own;
  }
  if (y.length > 0) state.y = y;
  const at = Number(p.get("at"));
  if (p.has("at") && Number.isFinite(at)) state.cursor = at;
  for (const key of ["by", "tab", "align", "theme"] as const) if (p.has(key)) state[key] = p.get(key)!;
  if (p.has("q")) state.query = p.get("q")!;
  if (p.has("lines"))
    state.counters = p
      .get("lines")!
      .split(".")
      .filter((s) => s !== "");
  const block = /^(\d+)\.(\d+)\.(\d+)$/.exec(p.get("block") ?? "");
  if (block) state.selected = { track: Number(block[1]), x0: Number(block[2]), y: Number(block[3]) };
  return state;
}

// A file name that says what is shown: recording, window and colours.
export function fileName(recordings: string[], s: ViewState, ending: string): string {
  const clean = (text: string): string =>
    text.replace(/\.(pickle|zst|gz|json|weir)\b/g, "").replace(/[^A-Za-z0-9_-]+/g, "_");
  const y = s.y.map(([a, b]) => `_y${Math.round(a)}-${Math.round(b)}`).join("");
  return `${recordings.map(clean).join("_vs_")}_x${Math.round(s.x0)}-${Math.round(s.x1)}${y}_by-${s.by}.${ending}`;
}
