// Unpacking of compressed files in the page (src/unpack.ts), under Node.js: the bytes of zstd, and what is refused.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { TRACES, work } from "./files.mjs";

let unpack;

before(async () => {
  const script = join(work, "unpack.mjs");
  execFileSync("esbuild", ["src/unpack.ts", "--bundle", "--format=esm", "--log-level=warning", `--outfile=${script}`]);
  ({ unpack } = await import(script));
});

const unpacked = async (bytes) => Buffer.concat(await unpack(new Uint8Array(bytes).buffer));
const zstd = (bytes, ...options) => execFileSync("zstd", ["-c", ...options], { input: bytes, maxBuffer: 1 << 30 });
const unzstd = (bytes) => execFileSync("zstd", ["-dc"], { input: bytes, maxBuffer: 1 << 30 });
const noZstd = !existsSync("/usr/bin/zstd") && "there is no zstd";

// Frames whose bytes are written out.
const MAGIC = [0x28, 0xb5, 0x2f, 0xfd];
const SKIPPED = [0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
const ABC = [...MAGIC, 0x20, 3, 0x19, 0, 0, ...Buffer.from("abc")];

test("frames of zstd are joined, and skippable ones left out", async () => {
  assert.equal((await unpacked(ABC)).toString(), "abc");
  assert.equal((await unpacked(SKIPPED)).length, 0);
  assert.equal((await unpacked([...SKIPPED, ...ABC, ...SKIPPED, ...ABC])).toString(), "abcabc");
});

test("a file that is not compressed stays as it is", async () => {
  for (const text of ["", "a", "abcd"]) assert.equal((await unpacked(Buffer.from(text))).toString(), text);
});

test("what zstd packs comes out again", { skip: noZstd }, async () => {
  for (const name of readdirSync(TRACES)) {
    const packed = readFileSync(join(TRACES, name));
    assert.ok((await unpacked(packed)).equals(unzstd(packed)), name);
  }
  const data = unzstd(readFileSync(join(TRACES, "llama_oom.pickle.zst")));
  for (const options of [["-1"], ["-19"], ["--fast=5"], ["--no-check"], ["-5", "--zstd=wlog=10"], ["-22", "--ultra"]])
    assert.ok((await unpacked(zstd(data, ...options))).equals(data), options.join(" "));
});

test("gzip is unpacked", async () => {
  const text = Buffer.from("abc".repeat(1000));
  assert.ok((await unpacked(gzipSync(text))).equals(text));
  await assert.rejects(unpacked(gzipSync(text).subarray(0, 20)), /gzip file is damaged/);
});

test("damaged files of zstd are refused, with the byte", async () => {
  for (let size = 4; size < ABC.length; size++)
    await assert.rejects(unpacked(ABC.slice(0, size)), RegExp(`byte ${size} of .*: it ends in the middle`));
  await assert.rejects(unpacked([...ABC, 1, 2, 3, 4]), /byte 12 of the compressed file: no frame of zstd begins there/);
  await assert.rejects(unpacked([...MAGIC, 0x20, 3, 0x1f, 0, 0, 97, 98, 99]), /byte 0 .*: zstd: invalid block type/);
  await assert.rejects(unpacked([...MAGIC, 0x21, 7, 3, 0x19, 0, 0, 97, 98, 99]), /byte 5 .*: it needs a dictionary/);
});

test("a small file cannot take much memory", { skip: noZstd }, async () => {
  const wide = [...MAGIC, 0, 0x90, 0x19, 0, 0, 97, 98, 99];
  await assert.rejects(unpacked(wide), /a window of 268435456 bytes is too large/);
  const whole = [...MAGIC, 0xa0, 0, 0, 0, 0x10, 0x19, 0, 0, 97, 98, 99];
  await assert.rejects(unpacked(whole), /a window of 268435456 bytes is too large/);
  const zeros = Buffer.alloc(100 << 20);
  await assert.rejects(unpacked(zstd(zeros)), /it unpacks to more than \d+ bytes/);
});
