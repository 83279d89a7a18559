// The WebAssembly module (viewer/wasm/module.c): its imports, and its calls. It runs in the page's Worker, and in
// Node.js for the tests.
export interface LoadedFile {
  name: string;
  device: number;
  devices: number[];
  conf: string | null;
  entries: number;
}

export interface WhatifAnswer {
  view: ArrayBuffer;
  result: unknown; // the object of `weir whatif --json`
}

// null: it is not known how far it is.
export type Step = (fraction: number | null) => void;

interface Exports {
  memory: WebAssembly.Memory;
  _initialize(): void;
  weir_page_alloc(bytes: number): number;
  weir_page_free(address: number): void;
  weir_page_error(): number;
  weir_page_part_count(): number;
  weir_page_part(part: number): number;
  weir_page_part_size(part: number): number;
  weir_page_load(name: number): number;
  weir_page_info(): number;
  weir_page_view(device: number): number;
  weir_page_prepare(device: number): number;
  weir_page_whatif(conf: number, device: number, memory: number): number;
  weir_page_pickle(conf: number, device: number, memory: number): number;
}

// Errors of WASI.
const BAD_FILE = 8;
const NOT_SUPPORTED = 52;

export class Module {
  private readonly exports: Exports;
  private pieces: Uint8Array[] = []; // of the file that is being read
  private piece = 0;
  private offset = 0; // in the piece
  private read = 0; // bytes of the file
  private total = 0;
  private step: Step = () => {};
  private out = ""; // what the module prints, up to the end of the line

  private constructor(module: WebAssembly.Module) {
    const instance = new WebAssembly.Instance(module, this.imports(module));
    this.exports = instance.exports as unknown as Exports;
    this.exports._initialize();
  }

  static async make(code: BufferSource): Promise<Module> {
    return new Module(await WebAssembly.compile(code));
  }

  // ---- Calls ----

  // Reads a file: a pickle or a ring file, unpacked. Throws an Error that names the byte.
  load(name: string, pieces: Uint8Array[], step: Step = () => {}): LoadedFile {
    this.pieces = pieces;
    this.piece = this.offset = this.read = 0;
    this.total = pieces.reduce((sum, piece) => sum + piece.length, 0);
    this.step = step;
    try {
      this.check(this.withText(name, (text) => this.exports.weir_page_load(text)));
    } finally {
      this.pieces = [];
    }
    this.check(this.exports.weir_page_info());
    return JSON.parse(this.text(0)) as LoadedFile;
  }

  // The view data of a device.
  view(device: number, step: Step = () => {}): ArrayBuffer {
    this.step = step;
    this.check(this.exports.weir_page_view(device));
    return this.join(0);
  }

  // Does what the first replay of a device needs, so that it does not take longer than others.
  prepare(device: number): void {
    this.check(this.exports.weir_page_prepare(device));
  }

  // Replays a device under settings, with `memory` bytes (0: as the recording shows).
  whatif(conf: string, device: number, memory: number, step: Step = () => {}): WhatifAnswer {
    this.step = step;
    this.check(this.withText(conf, (text) => this.exports.weir_page_whatif(text, device, memory)));
    return { result: JSON.parse(this.text(0)) as unknown, view: this.join(1) };
  }

  // The predicted history as a pickle, as `weir whatif --write` has it.
  pickle(conf: string, device: number, memory: number, step: Step = () => {}): ArrayBuffer {
    this.step = step;
    this.check(this.withText(conf, (text) => this.exports.weir_page_pickle(text, device, memory)));
    return this.join(0);
  }

  // Bytes of WebAssembly's memory, which never shrinks.
  memory(): number {
    return this.exports.memory.buffer.byteLength;
  }

  // ---- Texts and results ----

  private bytes(): Uint8Array {
    return new Uint8Array(this.exports.memory.buffer); // growing replaces the buffer
  }

  private withText(text: string, call: (address: number) => number): number {
    const encoded = new TextEncoder().encode(text.replaceAll("\0", " ") + "\0");
    const address = this.exports.weir_page_alloc(encoded.length);
    if (!address) throw new Error("WebAssembly has no memory left.");
    this.bytes().set(encoded, address);
    const result = call(address);
    this.exports.weir_page_free(address);
    return result;
  }

  private check(ok: number): void {
    if (ok) return;
    const begin = this.exports.weir_page_error();
    const bytes = this.bytes();
    throw new Error(new TextDecoder().decode(bytes.subarray(begin, bytes.indexOf(0, begin))));
  }

  private part(number: number): Uint8Array {
    const begin = this.exports.weir_page_part(number) >>> 0; // addresses above 2 GiB are not negative
    return this.bytes().subarray(begin, begin + (this.exports.weir_page_part_size(number) >>> 0));
  }

  private text(number: number): string {
    return new TextDecoder().decode(this.part(number));
  }

  // The parts from `first` on, one behind the other.
  private join(first: number): ArrayBuffer {
    const parts: Uint8Array[] = [];
    for (let i = first; i < this.exports.weir_page_part_count(); i++) parts.push(this.part(i));
    const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      joined.set(part, at);
      at += part.length;
    }
    return joined.buffer;
  }

  // ---- Imports ----

  private readFile(to: number, room: number): number {
    while (this.piece < this.pieces.length && this.offset === this.pieces[this.piece]!.length) {
      this.pieces[this.piece++] = new Uint8Array(0); // it is not needed any more
      this.offset = 0;
    }
    const piece = this.pieces[this.piece];
    if (!piece) return 0;
    const size = Math.min(room >>> 0, piece.length - this.offset);
    this.bytes().set(piece.subarray(this.offset, this.offset + size), to >>> 0);
    this.offset += size;
    this.read += size;
    this.step(this.total ? this.read / this.total : null);
    return size;
  }

  // What the module prints goes to the console, line by line.
  private print(vectors: number, count: number, written: number): number {
    const view = new DataView(this.exports.memory.buffer);
    let total = 0;
    for (let i = 0; i < count; i++) {
      const begin = view.getUint32(vectors + 8 * i, true);
      const size = view.getUint32(vectors + 8 * i + 4, true);
      this.out += new TextDecoder().decode(this.bytes().subarray(begin, begin + size));
      total += size;
    }
    view.setUint32(written, total, true);
    const lines = this.out.split("\n");
    this.out = lines.pop() ?? "";
    for (const line of lines) console.warn(line);
    return 0;
  }

  private imports(module: WebAssembly.Module): WebAssembly.Imports {
    const memory = (): DataView => new DataView(this.exports.memory.buffer);
    const system: Record<string, (...values: never[]) => number> = {
      clock_time_get: (_clock: number, _precision: bigint, to: number) => {
        memory().setBigUint64(to, BigInt(Math.round(performance.now() * 1e6)), true);
        return 0;
      },
      environ_sizes_get: (count: number, size: number) => {
        memory().setUint32(count, 0, true);
        memory().setUint32(size, 0, true);
        return 0;
      },
      environ_get: () => 0,
      random_get: (to: number, size: number) => {
        crypto.getRandomValues(this.bytes().subarray(to, to + size));
        return 0;
      },
      fd_prestat_get: () => BAD_FILE, // there are no folders
      fd_write: (_file: number, vectors: number, count: number, written: number) => this.print(vectors, count, written),
      proc_exit: (code: number) => {
        throw new Error(`The WebAssembly module ended with code ${code}.`);
      },
    };
    const weir = {
      read: (to: number, room: number) => this.readFile(to, room),
      progress: (done: number, count: number) => this.step(count ? (done >>> 0) / (count >>> 0) : null),
    };
    const wasi: Record<string, WebAssembly.ImportValue> = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module))
      if (from !== "weir") wasi[name] = (system[name] as WebAssembly.ImportValue) ?? (() => NOT_SUPPORTED);
    return { weir, wasi_snapshot_preview1: wasi };
  }
}
