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

// Sixteen colours for groups, then the one of "other". Neighbours differ in hue; all have about the same weight.
const GROUPS_LIGHT = [
  "#4c78a8",
  "#f2a154",
  "#59a89c",
  "#d9717d",
  "#8f76b5",
  "#7fb069",
  "#c99a5b",
  "#5fa8d3",
  "#b5658a",
  "#9aa63f",
  "#6c8ebf",
  "#e58e73",
  "#47998a",
  "#a58bc9",
  "#c7b24a",
  "#7d94a8",
];
const GROUPS_DARK = [
  "#5b8fc7",
  "#d98f45",
  "#4fa396",
  "#cf6974",
  "#9179bf",
  "#75a35f",
  "#b98b4e",
  "#559bc4",
  "#b0618a",
  "#929e3c",
  "#6384b5",
  "#d17f66",
  "#3f8c7e",
  "#9a80bd",
  "#b8a443",
  "#718799",
];
const OTHER_LIGHT = "#b3bac2";
const OTHER_DARK = "#4d565f";

// From small to large: a scale whose lightness rises or falls evenly.
const SIZES = [
  "#3b4a8c",
  "#3a5f9e",
  "#35759f",
  "#2f8a98",
  "#369e88",
  "#58b071",
  "#86bf5a",
  "#b8c94a",
  "#e2c94b",
  "#f0b04c",
  "#ea8a4e",
  "#da6352",
];

export const OTHER = 16;

export function groupColors(theme: Theme): string[] {
  return [...(theme.isDark ? GROUPS_DARK : GROUPS_LIGHT), theme.isDark ? OTHER_DARK : OTHER_LIGHT];
}

// The colour of a size class, 2^9 to 2^32 bytes and above.
export function sizeColor(log: number): string {
  return SIZES[Math.max(0, Math.min(SIZES.length - 1, Math.floor((log - 9) / 2)))]!;
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
