// View data: the index, and the chunks behind it. It comes out of the page itself, from a byte string that the
// WebAssembly module made, or from `weir view --serve` by range requests. docs/tools/view.md has the format.

export interface ChunkInfo {
  name: string;
  offset: number;
  stored: number;
  bytes: number;
  encoding: string;
}

export interface LevelInfo {
  span: number;
  columns: number;
  chunk: string;
}

export interface GroupInfo {
  by: string;
  names: string[];
  keys: (number | null)[];
  levels: LevelInfo[];
}

export interface Mark {
  entry: number;
  kind: string;
  end?: number;
  name: string;
  bytes?: number;
}

export interface TileInfo {
  level: number;
  depth: number;
  index: number;
  count: number;
  chunk: string;
  at?: number;
}

export interface RecordingInfo {
  name: string;
  conf: string | null;
  setting_label: string | null;
  device: number;
  devices: number[];
  entries: number;
  dropped: number;
  ooms: number;
  first_us: number;
  last_us: number;
  is_complete: boolean;
  peak: {
    allocated: number | null;
    allocated_entry: number | null;
    reserved: number | null;
    reserved_entry: number | null;
  };
  summary: unknown;
  explain: unknown;
  explain_text: string | null;
  leaks: unknown;
  classes: unknown;
  height: number;
  spans: { y: number; address: number; units: number }[];
  streams: { name: string; handle: string }[];
  pools: { name: string; id: number[] }[];
  phases: string[];
  class_names: string[];
  times?: { chunk: string } | null;
  marks: Mark[];
  marks_total: number;
  stacks: { chunk: string; count: number };
  counters: { names: string[]; levels: LevelInfo[] };
  groups: GroupInfo[];
  blocks: { total: number; stored: number; hidden_bytes_max: number; levels: number; tiles: TileInfo[] };
  coverage: { columns: number; rows: number; chunk: string } | null;
  segments: { total: number; stored: number; chunk: string };
}

export interface ViewIndex {
  version: number;
  producer: string;
  recordings: RecordingInfo[];
  diff: unknown;
  chunks: ChunkInfo[];
}

// Damaged data. The message says what was expected at which byte.
export class DataError extends Error {
  constructor(
    message: string,
    readonly offset: number,
  ) {
    super(`${message} (byte ${offset} of the view data)`);
    this.name = "DataError";
  }
}

interface Source {
  // The stored bytes of a chunk; `from` counts from the first byte of the data.
  read(info: ChunkInfo, from: number): Promise<Uint8Array>;
}

async function inflate(stored: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([stored as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export class ViewData {
  private shared = new Map<string, Promise<Uint8Array>>();
  private infos = new Map<string, ChunkInfo>();

  private constructor(
    readonly index: ViewIndex,
    private readonly start: number,
    private readonly source: Source,
  ) {
    for (const info of index.chunks) this.infos.set(info.name, info);
  }

  // The unpacked bytes of a chunk. Two readers at the same time share the work; nothing is kept afterwards.
  chunk(name: string): Promise<Uint8Array> {
    let work = this.shared.get(name);
    if (!work) {
      work = this.unpack(name).finally(() => this.shared.delete(name));
      this.shared.set(name, work);
    }
    return work;
  }

  // Where the chunk lies, for messages about its content.
  offsetOf(name: string): number {
    return this.start + (this.infos.get(name)?.offset ?? 0);
  }

  private async unpack(name: string): Promise<Uint8Array> {
    const info = this.infos.get(name);
    if (!info) throw new DataError(`chunk "${name}" is missing from the index`, 16);
    const from = this.start + info.offset;
    const stored = await this.source.read(info, from);
    if (stored.length !== info.stored)
      throw new DataError(`chunk "${name}" should have ${info.stored} bytes, but has ${stored.length}`, from);
    let result = stored;
    if (info.encoding === "deflate") {
      try {
        result = await inflate(stored);
      } catch {
        throw new DataError(`chunk "${name}" is damaged: it does not unpack`, from);
      }
    } else if (info.encoding !== "raw") {
      throw new DataError(`chunk "${name}" has the unknown encoding "${info.encoding}"`, from);
    }
    if (result.length !== info.bytes)
      throw new DataError(`chunk "${name}" should unpack to ${info.bytes} bytes, but gives ${result.length}`, from);
    // Typed arrays over a chunk need its first byte at a multiple of 8.
    return result.byteOffset % 8 === 0 ? result : result.slice();
  }

  static fromBytes(buffer: ArrayBuffer): ViewData {
    const { index, start } = readHead(new Uint8Array(buffer), buffer.byteLength);
    return new ViewData(index, start, {
      read: async (info, from) =>
        new Uint8Array(buffer, from, Math.max(0, Math.min(info.stored, buffer.byteLength - from))),
    });
  }

  // The data inside the page, or null if it has none. Elements are removed as they are read, to free their text.
  static fromPage(): ViewData | null {
    const element = document.getElementById("weir-index");
    if (!element) return null;
    const text = element.textContent ?? "";
    const index = parseIndex(text);
    element.remove();
    const elements = new Map<string, HTMLElement>();
    for (const script of document.querySelectorAll<HTMLElement>("script.weir-chunk"))
      elements.set(script.dataset.chunk ?? "", script);
    return new ViewData(index, 16 + new TextEncoder().encode(text).length, {
      read: async (info, from) => {
        const script = elements.get(info.name);
        if (!script) throw new DataError(`chunk "${info.name}" is missing from the page`, from);
        try {
          return decodeBase64((script.textContent ?? "").trim());
        } catch {
          throw new DataError(`chunk "${info.name}" is damaged: it is not base64`, from);
        }
      },
    });
  }

  static async fromServer(url: string): Promise<ViewData> {
    let whole: Uint8Array | null = null;
    const get = async (from: number, length: number): Promise<Uint8Array> => {
      if (whole) return whole.subarray(from, from + length);
      if (length === 0) return new Uint8Array(0);
      const answer = await fetch(url, { headers: { Range: `bytes=${from}-${from + length - 1}` } });
      if (!answer.ok) throw new Error(`${url}: the server answers ${answer.status} ${answer.statusText}`);
      const body = new Uint8Array(await answer.arrayBuffer());
      if (answer.status === 206) return body;
      whole = body;
      return body.subarray(from, from + length);
    };
    const head = await get(0, 16);
    const length = head.length === 16 ? new DataView(head.buffer, head.byteOffset).getUint32(12, true) : 0;
    const rest = await get(16, length);
    const both = new Uint8Array(head.length + rest.length);
    both.set(head);
    both.set(rest, head.length);
    const { index, start } = readHead(both, both.length);
    return new ViewData(index, start, { read: (info, from) => get(from, info.stored) });
  }
}

function readHead(data: Uint8Array, size: number): { index: ViewIndex; start: number } {
  if (size < 16) throw new DataError(`the data ends in its head of 16 bytes`, size);
  const magic = String.fromCharCode(...data.subarray(0, 8));
  if (magic !== "WEIRVIEW") throw new DataError("this is not view data: it does not begin with WEIRVIEW", 0);
  const view = new DataView(data.buffer, data.byteOffset);
  const version = view.getUint32(8, true);
  if (version !== 1)
    throw new DataError(`this page reads version 1 of the view data, and this is version ${version}`, 8);
  const length = view.getUint32(12, true);
  if (16 + length > size) throw new DataError(`the index should have ${length} bytes, but the data ends before`, size);
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(data.subarray(16, 16 + length));
  } catch {
    throw new DataError("the index is not UTF-8", 16);
  }
  return { index: parseIndex(text), start: 16 + length };
}

function parseIndex(text: string): ViewIndex {
  let index: ViewIndex;
  try {
    index = JSON.parse(text) as ViewIndex;
  } catch (error) {
    const at = /position (\d+)/.exec(String(error));
    throw new DataError("the index is not JSON", 16 + Number(at?.[1] ?? 0));
  }
  if (index.version !== 1)
    throw new DataError(`this page reads version 1 of the view data, and this is version ${index.version}`, 8);
  if (!Array.isArray(index.recordings) || index.recordings.length === 0 || !Array.isArray(index.chunks))
    throw new DataError("the index names no recording", 16);
  return index;
}

function decodeBase64(text: string): Uint8Array {
  const from = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (from) return from(text);
  const characters = atob(text);
  const result = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) result[i] = characters.charCodeAt(i);
  return result;
}
