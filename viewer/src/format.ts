// Numbers as text. Sizes are in binary units, as everywhere in Weir; `exact` texts keep every digit.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(n: number): string {
  let unit = 0;
  let value = Math.abs(n);
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  if (unit > 0 && value >= 1023.995 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const text = unit === 0 ? String(value) : value.toFixed(2);
  return `${n < 0 ? "−" : ""}${text} ${UNITS[unit]}`;
}

// For the labels of axes: without needless decimals.
export function shortBytes(n: number): string {
  return bytes(n).replace(/\.?0+ /, " ");
}

export function count(n: number): string {
  return n.toLocaleString("en-US");
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function exactBytes(n: number): string {
  return `${count(n)} B`;
}

export function bytesWithExact(n: number): string {
  return n < 1024 ? exactBytes(n) : `${bytes(n)} (${exactBytes(n)})`;
}

export function duration(us: number): string {
  const sign = us < 0 ? "−" : "";
  const t = Math.abs(us);
  if (t < 1000) return `${sign}${Math.round(t)} µs`;
  if (t < 1e6) return `${sign}${(t / 1e3).toPrecision(t < 1e5 ? 3 : 4)} ms`;
  if (t < 120e6) return `${sign}${(t / 1e6).toFixed(t < 1e7 ? 3 : 2)} s`;
  if (t < 7200e6) return `${sign}${Math.floor(t / 60e6)} min ${Math.round((t % 60e6) / 1e6)} s`;
  return `${sign}${Math.floor(t / 3600e6)} h ${Math.round((t % 3600e6) / 60e6)} min`;
}

// A range as text: one value if both ends read the same.
export function range(low: number, high: number, text: (n: number) => string): string {
  const a = text(low);
  const b = text(high);
  return a === b ? a : `${a} to ${b}`;
}

export function address(a: number): string {
  return `0x${a.toString(16)}`;
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share !== 0 && Math.abs(share) < 0.1 ? 2 : 1)} %`;
}

// Reads a size such as 10MiB, 1.5 GB, 4096 or 2m. Returns null if it is none.
export function parseBytes(text: string): number | null {
  const match = /^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?\s*$/i.exec(text);
  if (!match) return null;
  const power = " kmgtp".indexOf((match[2] || " ").toLowerCase());
  return Math.round(Number(match[1]) * 1024 ** power);
}
