// Colours. One set for light and one for dark; a name has the same place in both.

export interface Theme {
  isDark: boolean;
  background: string;
  segment: string; // reserved memory without a block: a hole
  segmentEdge: string;
  ink: string;
  muted: string;
  line: string;
  accent: string;
  danger: string;
  good: string;
  hidden: string; // blocks that are not stored
  allocated: string;
  reserved: string;
  hole: string;
  pending: string;
}

export const LIGHT: Theme = {
  isDark: false,
  background: "#f6f7f8",
  segment: "#e3e6ea",
  segmentEdge: "#c3c9d0",
  ink: "#1d2329",
  muted: "#68727d",
  line: "#dde1e5",
  accent: "#1f6feb",
  danger: "#cf2f2f",
  good: "#1a7f4b",
  hidden: "#9aa4af",
  allocated: "#1d2329",
  reserved: "#7a8590",
  hole: "#b4690e",
  pending: "#8250df",
};

export const DARK: Theme = {
  isDark: true,
  background: "#14171b",
  segment: "#272c33",
  segmentEdge: "#414851",
  ink: "#e3e7eb",
  muted: "#8b96a1",
  line: "#2b3138",
  accent: "#58a6ff",
  danger: "#ff6b64",
  good: "#4cc38a",
  hidden: "#59636e",
  allocated: "#f0f3f6",
  reserved: "#7d8893",
  hole: "#e3a24a",
  pending: "#b392f0",
};

// Sixteen colours for groups, then the one of "other". Dark and light ones take turns, so that neighbours differ for
// people that see fewer colours, too. The test of the colours says by how much.
const GROUPS_LIGHT = [
  "#656107",
  "#d298be",
  "#505199",
  "#a191f8",
  "#a1345f",
  "#56bca2",
  "#066b9f",
  "#b9a05a",
  "#91282a",
  "#06b3cf",
  "#4f62c0",
  "#f28f91",
  "#747541",
  "#b3b83e",
  "#82307f",
  "#de7039",
];
const GROUPS_DARK = [
  "#726793",
  "#fd9583",
  "#964039",
  "#4ad0db",
  "#176f8d",
  "#e9ab4d",
  "#706707",
  "#c5c1fe",
  "#476bc3",
  "#54e7ab",
  "#b75c0f",
  "#80abfb",
  "#7844a7",
  "#dccd46",
  "#1d8946",
  "#f189d9",
];
const OTHER_LIGHT = "#b3bac2";
const OTHER_DARK = "#4d565f";

// From small to large: the lightness falls or rises evenly, away from the background; the hues take turns.
const SIZES_LIGHT = [
  "#f1b870",
  "#01d1e1",
  "#f48c85",
  "#9c98e8",
  "#c18f0c",
  "#08a2a4",
  "#cc5c4b",
  "#5d71c8",
  "#ae3f7e",
  "#6e670d",
  "#4050ac",
  "#872162",
  "#554700",
];
const SIZES_DARK = [
  "#a12b4a",
  "#605ab0",
  "#8b6d2b",
  "#128d8e",
  "#9c66dc",
  "#d3724d",
  "#7d9bd7",
  "#d39c13",
  "#5ac8a9",
  "#c7aaff",
  "#ffb91d",
  "#1feff1",
  "#d4e99d",
];

export const OTHER = 16;

export function groupColors(theme: Theme): string[] {
  return [...(theme.isDark ? GROUPS_DARK : GROUPS_LIGHT), theme.isDark ? OTHER_DARK : OTHER_LIGHT];
}

// The colour of a size class, 2^9 to 2^32 bytes and above.
export function sizeColor(log: number, theme: Theme): string {
  const sizes = theme.isDark ? SIZES_DARK : SIZES_LIGHT;
  return sizes[Math.max(0, Math.min(sizes.length - 1, Math.floor((log - 9) / 2)))]!;
}

export function rgb(hex: string): [number, number, number] {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

// Black or white, whichever reads better on the colour.
export function inkOn(hex: string): string {
  const [r, g, b] = rgb(hex);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "rgba(0,0,0,.78)" : "rgba(255,255,255,.92)";
}
