// duckdb.mjs DIGESTS COMPRESSED FOLDER: compares sums of DuckDB over the same digests in three forms with sums made
// here, from the lines.
import { readFileSync } from "node:fs";
import { DuckDBInstance } from "@duckdb/node-api";

const [plain, compressed, folder] = process.argv.slice(2);
const lines = readFileSync(plain, "utf8").trim().split("\n").map((line) => JSON.parse(line));
const sum = (list, of) => list.reduce((all, item) => all + BigInt(of(item)), 0n);

const expected = {
  documents: BigInt(lines.length),
  entries: sum(lines, (d) => d.history.entries),
  peaks: sum(lines, (d) => d.memory.peak_allocated),
  failures: sum(lines, (d) => d.failure.count),
  stacks: sum(lines, (d) => d.stacks.length),
  totals: sum(lines.flatMap((d) => d.stacks), (stack) => stack.total),
  levels: sum(lines.flatMap((d) => d.steps.level), (level) => level),
  groups: sum(lines.flatMap((d) => d.stacks).flatMap((stack) => stack.peaks), (peak) => peak),
  names: BigInt(new Set(lines.flatMap((d) => d.names.map((name) => `${name.name} ${name.text}`))).size),
};

const queries = (from) => ({
  documents: `select count(*) from ${from}`,
  entries: `select sum(history.entries) from ${from}`,
  peaks: `select sum(memory.peak_allocated) from ${from}`,
  failures: `select sum(failure.count) from ${from}`,
  stacks: `select sum(len(stacks)) from ${from}`,
  totals: `select sum(stack.total) from (select unnest(stacks) as stack from ${from})`,
  levels: `select sum(level) from (select unnest(steps.level) as level from ${from})`,
  groups: `select sum(peak) from (select unnest(stack.peaks) as peak from (select unnest(stacks) as stack from ${from}))`,
  names: `select count(*) from (select distinct name.name, name.text from (select unnest(names) as name from ${from}))`,
});

const connection = await (await DuckDBInstance.create(":memory:")).connect();
let failed = 0;
for (const file of [plain, compressed, `${folder}/*.json`]) {
  for (const [name, query] of Object.entries(queries(`read_json('${file}')`))) {
    const rows = (await connection.runAndReadAll(query)).getRows();
    if (BigInt(rows[0][0]) !== expected[name]) {
      console.log(`${file}: ${name}: DuckDB has ${rows[0][0]}, expected ${expected[name]}`);
      failed = 1;
    }
  }
}
const types = (await connection.runAndReadAll(`describe select * from read_json('${plain}')`)).getRows();
const inexact = types.filter(([, type]) => /DOUBLE|FLOAT/.test(type));
if (inexact.length) {
  console.log(`columns that are not integers: ${inexact.map(([name]) => name)}`);
  failed = 1;
}
console.log(`${lines.length} digests, ${Object.keys(expected).length} sums in 3 forms`);
process.exit(failed);
