// Search and filter. Words match function names, files and lines of the stack, or its title; `key:value` and
// comparisons match the other properties. All terms must match.
//
//   attention            a frame of the stack contains "attention"
//   "two words"          likewise, with the space
//   size>=10MiB          requested size; also >, <, <=, =
//   life<100             entries from allocation to the end of the free
//   stream:1  pool:0x  phase:forward  class:weights    the name contains the text, or the number is equal
//   at:13750             alive after entry 13750
//   alive                alive at the end
//   pending              waited for other streams after its free
//   -term                does not match the term
import { UNIT, WORDS, type Filter, type Tile } from "./blocks";
import { parseBytes } from "./format";
import type { Recording } from "./recording";

type Test = (v: Uint32Array, k: number, slack: number) => boolean;

export class QueryError extends Error {}

export function parseQuery(query: string, r: Recording): Filter | null {
  const tests: Test[] = [];
  for (const match of query.matchAll(/(-?)("[^"]*"?|\S+)/g)) {
    const term = match[2]!;
    if (term === "") continue;
    const test = termTest(term, r);
    tests.push(match[1] ? (v, k, slack) => !test(v, k, slack) : test);
  }
  if (tests.length === 0) return null;
  return {
    matches(tile: Tile, i: number): boolean {
      const v = tile.instances!;
      const k = i * WORDS;
      const slack = tile.slack![i]!;
      for (const test of tests) if (!test(v, k, slack)) return false;
      return true;
    },
  };
}

function compare(operator: string, limit: number): (v: number) => boolean {
  switch (operator) {
    case ">":
      return (v) => v > limit;
    case ">=":
      return (v) => v >= limit;
    case "<":
      return (v) => v < limit;
    case "<=":
      return (v) => v <= limit;
    default:
      return (v) => v === limit;
  }
}

// The numbers whose name contains the text, or that are equal to it.
function named(names: string[], value: string): Uint8Array {
  const result = new Uint8Array(65536);
  const wanted = value.toLowerCase();
  names.forEach((name, i) => {
    if (String(i) === wanted || (wanted !== "" && name.toLowerCase().includes(wanted) && !/^\d+$/.test(wanted)))
      result[i] = 1;
  });
  return result;
}

function termTest(term: string, r: Recording): Test {
  const quoted = term.startsWith('"');
  const text = quoted ? term.replaceAll('"', "") : term;
  const comparison = quoted ? null : /^(size|life|stack|entry)(>=|<=|>|<|=|:)(.+)$/i.exec(text);
  if (comparison) {
    const [, name, operator, value] = comparison as unknown as [string, string, string, string];
    const limit = name.toLowerCase() === "size" ? parseBytes(value) : /^\d+$/.test(value) ? Number(value) : null;
    if (limit === null)
      throw new QueryError(`"${value}" is not a ${name === "size" ? "size, such as 10MiB" : "number"}`);
    const is = compare(operator, limit);
    switch (name.toLowerCase()) {
      case "size":
        return (v, k, slack) => is(v[k + 3]! * UNIT - slack);
      case "life":
        return (v, k) => is(v[k + 1]! - v[k]!);
      case "entry":
        return (v, k) => is(v[k]!);
      default:
        return (v, k) => is(v[k + 4]!);
    }
  }
  const property = quoted ? null : /^(stream|pool|phase|class|at|address):(.+)$/i.exec(text);
  if (property) {
    const [, name, value] = property as unknown as [string, string, string];
    switch (name.toLowerCase()) {
      case "stream": {
        const set = named(
          r.info.streams.map((s) => `${s.name} ${s.handle}`),
          value,
        );
        return (v, k) => set[v[k + 5]! & 0xffff] === 1;
      }
      case "pool": {
        const set = named(
          r.info.pools.map((s) => s.name),
          value,
        );
        return (v, k) => set[v[k + 5]! >>> 16] === 1;
      }
      case "phase": {
        const set = named(r.info.phases, value);
        return (v, k) => set[v[k + 6]! & 0xffff] === 1;
      }
      case "class": {
        const set = named(r.info.class_names, value);
        return (v, k) => set[(v[k + 6]! >>> 16) & 0xff] === 1;
      }
      case "address": {
        const at = r.yOf(Number(value));
        if (at === null) throw new QueryError(`${value} was never reserved`);
        return (v, k) => at >= v[k + 2]! && at < v[k + 2]! + v[k + 3]!;
      }
      default: {
        const entry = Number(value);
        if (!Number.isInteger(entry)) throw new QueryError(`"${value}" is not an entry`);
        return (v, k) => v[k]! <= entry && v[k + 1]! > entry;
      }
    }
  }
  if (!quoted && text.toLowerCase() === "alive") return (v, k) => ((v[k + 6]! >>> 24) & 2) !== 0;
  if (!quoted && text.toLowerCase() === "pending") return (v, k) => v[k + 7]! > 0;
  const stacks = stacksWith(r, text);
  return (v, k) => stacks[v[k + 4]!] === 1;
}

// 1 for each stack with a frame that contains the text.
export function stacksWith(r: Recording, text: string): Uint8Array {
  const wanted = text.toLowerCase();
  const s = r.stacks;
  const result = new Uint8Array(s?.stacks.length ?? 0);
  if (!s) return result;
  const frames = s.frames.map(([name, file, line]) => `${name} ${file}:${line}`.toLowerCase().includes(wanted));
  s.stacks.forEach((stack, i) => {
    if (stack.some((f) => frames[f]) || (s.titles[i] ?? "").toLowerCase().includes(wanted)) result[i] = 1;
  });
  return result;
}
