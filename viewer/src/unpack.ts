// Unpacks files that are compressed with gzip, by the browser, or with zstd, by fzstd.
import { Decompress } from "fzstd";

// A file may unpack to RATIO times its size, and to FREE bytes in any case, as for the program (offline/read/input.h).
const RATIO = 1024;
const FREE = 64 * 1024 ** 2;
const MAX_WINDOW = 128 * 1024 ** 2; // of zstd, as for libzstd

const GZIP = 0x88b1f;
const ZSTD = 0xfd2fb528;
const RUN = 1; // the kind of a block that is one byte, repeated

const isSkippable = (magic: number): boolean => (magic & ~15) === 0x184d2a50;

const damaged = (byte: number, what: string): Error => new Error(`byte ${byte} of the compressed file: ${what}`);

class Pieces {
  readonly all: Uint8Array[] = [];
  private size = 0;
  private readonly most: number;

  constructor(packed: number) {
    this.most = FREE + RATIO * packed;
  }

  add(piece: Uint8Array): void {
    this.all.push(piece);
    this.size += piece.length;
    if (this.size > this.most) throw new Error(`it unpacks to more than ${this.most} bytes`);
  }
}

async function unpackGzip(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array[]> {
  const pieces = new Pieces(bytes.length);
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) pieces.add(next.value);
  return pieces.all;
}

// Returns the byte after the frame at `at`. fzstd trusts its header (RFC 8878): it takes memory for any window, and
// ignores that a dictionary is needed.
function checkFrame(view: DataView, at: number): number {
  const magic = view.getUint32(at, true);
  if (isSkippable(magic)) return at + 8 + view.getUint32(at + 4, true);
  if (magic !== ZSTD) throw damaged(at, "no frame of zstd begins there");
  const flags = view.getUint8(at + 4);
  const isSingle = (flags & 32) !== 0; // the window is the whole content
  const descriptor = view.getUint8(at + 5);
  const idAt = at + (isSingle ? 5 : 6);
  const sizeAt = idAt + [0, 1, 2, 4][flags & 3]!;
  const sizeBytes = [isSingle ? 1 : 0, 2, 4, 8][flags >> 6]!;
  let window = isSingle ? 0 : (8 + (descriptor & 7)) * 2 ** (7 + (descriptor >> 3));
  for (let i = sizeBytes; isSingle && i-- > 0; ) window = window * 256 + view.getUint8(sizeAt + i);
  if (window > MAX_WINDOW) throw damaged(at, `a window of ${window} bytes is too large`);
  for (let i = idAt; i < sizeAt; i++)
    if (view.getUint8(i)) throw damaged(i, "it needs a dictionary");
  let next = sizeAt + sizeBytes;
  for (let isLast = false; !isLast; ) {
    const block = view.getUint16(next, true) | (view.getUint8(next + 2) << 16);
    isLast = (block & 1) === 1;
    next += 3 + (((block >> 1) & 3) === RUN ? 1 : block >> 3);
  }
  return next + (flags & 4 ? 4 : 0); // a checksum
}

function endOfFrame(view: DataView, at: number): number {
  try {
    return checkFrame(view, at);
  } catch (error) {
    if (error instanceof RangeError) return Infinity; // it ends before that
    throw error;
  }
}

function unpackZstd(bytes: Uint8Array): Uint8Array[] {
  const pieces = new Pieces(bytes.length);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0, end; at < bytes.length; at = end) {
    end = endOfFrame(view, at);
    if (end > bytes.length) throw damaged(bytes.length, "it ends in the middle of the compressed data");
    try {
      new Decompress((piece) => pieces.add(piece)).push(bytes.subarray(at, end), true);
    } catch (error) {
      throw damaged(at, `zstd: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  return pieces.all;
}

// A file that is not compressed is one piece.
export async function unpack(buffer: ArrayBuffer): Promise<Uint8Array[]> {
  const bytes = new Uint8Array(buffer);
  const magic = bytes.length < 4 ? 0 : new DataView(buffer).getUint32(0, true);
  if ((magic & 0xffffff) === GZIP)
    return unpackGzip(bytes).catch((error: unknown) => {
      throw new Error(`the gzip file is damaged, or not complete: ${String(error)}`);
    });
  return magic === ZSTD || isSkippable(magic) ? unpackZstd(bytes) : [bytes];
}
