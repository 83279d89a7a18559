// The colours of groups and sizes: neighbours differ, for people that see fewer colours too, and all stand out from
// what is behind them. Distances are those of OKLab, in which black and white are 1 apart; 0.1 is seen at a glance.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { before, test } from "node:test";
import { work } from "./files.mjs";

// How linear red, green and blue look without one kind of cone (Machado, Oliveira and Fernandes 2009).
const SIGHT = {
  normal: [1, 0, 0, 0, 1, 0, 0, 0, 1],
  protanopia: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  deuteranopia: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  tritanopia: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
};

let colors;

before(async () => {
  const script = join(work, "colors.mjs");
  execFileSync("esbuild", ["src/colors.ts", "--format=esm", "--log-level=warning", `--outfile=${script}`]);
  colors = await import(script);
});

const times = (m, v) => [0, 3, 6].map((row) => m[row] * v[0] + m[row + 1] * v[1] + m[row + 2] * v[2]);

function linear(hex) {
  return colors.rgb(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
}

function oklab(rgb) {
  const cones = times(
    [0.4122214708, 0.5363325363, 0.0514459929, 0.2119034982, 0.6806995451, 0.1073969566, 0.0883024619, 0.2817188376, 0.6299787005],
    rgb,
  );
  return times(
    [0.2104542553, 0.793617785, -0.0040720468, 1.9779984951, -2.428592205, 0.4505937099, 0.0259040371, 0.7827717662, -0.808675766],
    cones.map(Math.cbrt),
  );
}

function distance(a, b, sight) {
  const seen = (hex) => oklab(times(SIGHT[sight], linear(hex)).map((v) => Math.min(1, Math.max(0, v))));
  const [x, y] = [seen(a), seen(b)];
  return Math.hypot(...x.map((v, i) => v - y[i]));
}

function contrast(a, b) {
  const light = (hex) => times([0.2126, 0.7152, 0.0722, 0, 0, 0, 0, 0, 0], linear(hex))[0] + 0.05;
  return Math.max(light(a), light(b)) / Math.min(light(a), light(b));
}

// Colours that are `apart` places from each other differ by at least `least`, for everyone.
function differ(list, apart, least) {
  for (let i = apart; i < list.length; i++)
    for (const sight of Object.keys(SIGHT)) {
      const d = distance(list[i], list[i - apart], sight);
      assert.ok(d >= least, `${list[i - apart]} and ${list[i]}, ${i - apart} and ${i}: ${d.toFixed(3)} (${sight})`);
    }
}

function standOut(list, theme) {
  for (const color of list) {
    assert.ok(contrast(color, theme.background) >= 1.6, `${color} on ${theme.background}`);
    assert.ok(contrast(color, theme.segment) >= 1.4, `${color} on ${theme.segment}`);
  }
}

for (const name of ["LIGHT", "DARK"]) {
  test(`groups differ: ${name}`, () => {
    const groups = colors.groupColors(colors[name]);
    differ(groups, 1, 0.14);
    differ(groups, 2, 0.07);
    for (let i = 0; i < groups.length; i++)
      for (let k = 0; k < i; k++) assert.ok(distance(groups[i], groups[k], "normal") >= 0.06, `${groups[i]} ${groups[k]}`);
    standOut(groups.slice(0, colors.OTHER), colors[name]);
  });

  test(`sizes differ, and their lightness is in their order: ${name}`, () => {
    const theme = colors[name];
    const sizes = Array.from({ length: 13 }, (_, i) => colors.sizeColor(9 + 2 * i, theme));
    assert.equal(new Set(sizes).size, 13);
    differ(sizes, 1, 0.1);
    differ(sizes, 2, 0.07);
    const steps = sizes.slice(1).map((color, i) => oklab(linear(color))[0] - oklab(linear(sizes[i]))[0]);
    assert.ok(steps.every((step) => (theme.isDark ? step > 0.02 : step < -0.02)), String(steps));
    standOut(sizes, theme);
  });
}
