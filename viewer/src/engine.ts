// The engine in WebAssembly: reads recordings and replays them under other settings, in a Worker.
import { Module, type LoadedFile, type WhatifAnswer } from "./module";
import { unpack } from "./unpack";

export type { LoadedFile, WhatifAnswer };

export type Progress = (fraction: number | null, what: string) => void;

type Call = "start" | "load" | "view" | "prepare" | "whatif" | "pickle";

interface Request {
  id: number;
  call: Call;
  values: unknown[];
}

interface Reply {
  id: number;
  value?: unknown;
  error?: string;
  fraction?: number | null;
  what?: string;
}

// ---- The page's side ----

const CODE = "weir-wasm";
const RECORDING = "weir-recording";

// Whether the page contains its recording, beside the picture of it.
export const hasRecording = (): boolean => document.getElementById(RECORDING) !== null;

export const embeddedRecording = (): Promise<ArrayBuffer> => unpackElement(RECORDING);

// Null if the engine can be used; otherwise the reason why it cannot.
export function engineReason(): string | null {
  if (!document.getElementById(CODE))
    return "This page was built without WebAssembly, since clang or wasi-libc was not there.";
  if (typeof WebAssembly !== "object") return "This browser has no WebAssembly.";
  if (typeof Worker !== "function" || typeof DecompressionStream !== "function")
    return "This browser has no Workers, or cannot unpack data (DecompressionStream).";
  return null;
}

async function unpackElement(id: string): Promise<ArrayBuffer> {
  const element = document.getElementById(id);
  const text = atob((element?.textContent ?? "").trim());
  const packed = Uint8Array.from(text, (character) => character.charCodeAt(0));
  if (element?.dataset["encoding"] === "raw") return packed.buffer;
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

interface Waiting {
  resolve: (value: never) => void;
  reject: (error: Error) => void;
  progress: Progress | undefined;
}

export class Engine {
  private readonly waiting = new Map<number, Waiting>();
  private next = 1;

  private constructor(private readonly worker: Worker) {
    worker.onmessage = ({ data }: MessageEvent<Reply>) => this.take(data);
    worker.onerror = (event) => this.fail(event.message || "The Worker of this page failed.");
  }

  // Unpacks the module and starts the Worker, which runs the page's own script.
  static async start(): Promise<Engine> {
    const reason = engineReason();
    if (reason) throw new Error(reason);
    const bytes = await unpackElement(CODE);
    const script = document.getElementById("weir-script")?.textContent ?? "";
    const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    const engine = new Engine(new Worker(address));
    try {
      await engine.ask("start", [bytes], undefined, [bytes]);
    } finally {
      URL.revokeObjectURL(address);
    }
    return engine;
  }

  // Rejects with an Error whose message names the byte. The bytes are moved to the Worker.
  load(name: string, bytes: ArrayBuffer, progress?: Progress): Promise<LoadedFile> {
    return this.ask("load", [name, bytes], progress, [bytes]);
  }

  view(device: number, progress?: Progress): Promise<ArrayBuffer> {
    return this.ask("view", [device], progress);
  }

  // Prepares for the first what-if of a device, so that it does not take longer than others.
  prepare(device: number): Promise<null> {
    return this.ask("prepare", [device]);
  }

  // `memory` is that of the device in bytes; null for what the recording shows.
  whatif(conf: string, device: number, memory: number | null, progress?: Progress): Promise<WhatifAnswer> {
    return this.ask("whatif", [conf, device, memory ?? 0], progress);
  }

  // The predicted history as a pickle, as `weir whatif --write` has it.
  pickle(conf: string, device: number, memory: number | null, progress?: Progress): Promise<ArrayBuffer> {
    return this.ask("pickle", [conf, device, memory ?? 0], progress);
  }

  stop(): void {
    this.worker.terminate();
    this.fail("The Worker was stopped.");
  }

  private ask<T>(call: Call, values: unknown[], progress?: Progress, moved: Transferable[] = []): Promise<T> {
    const id = this.next++;
    return new Promise<T>((resolve, reject) => {
      this.waiting.set(id, { resolve, reject, progress });
      this.worker.postMessage({ id, call, values } satisfies Request, moved);
    });
  }

  private take(reply: Reply): void {
    const one = this.waiting.get(reply.id);
    if (!one) return;
    if (reply.what !== undefined) {
      one.progress?.(reply.fraction ?? null, reply.what);
      return;
    }
    this.waiting.delete(reply.id);
    if (reply.error !== undefined) one.reject(new Error(reply.error));
    else one.resolve(reply.value as never);
  }

  private fail(message: string): void {
    const all = [...this.waiting.values()];
    this.waiting.clear();
    for (const one of all) one.reject(new Error(message));
  }
}

// ---- The Worker's side ----

interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(message: Reply, moved?: Transferable[]): void;
}

const TOO_LARGE = "It needs more memory than WebAssembly has, which is 4 GiB: use `weir view FILE` on a command line.";

class Server {
  private bytes = new ArrayBuffer(0);
  private module: Module | null = null;
  private queue = Promise.resolve();

  constructor(private readonly scope: Scope) {
    scope.onmessage = ({ data }) => {
      this.queue = this.queue.then(() => this.answer(data));
    };
  }

  private async answer({ id, call, values }: Request): Promise<void> {
    try {
      const value = await this.run(id, call, values);
      const moved = value instanceof ArrayBuffer ? [value] : isAnswer(value) ? [value.view] : [];
      this.scope.postMessage({ id, value }, moved);
    } catch (error) {
      this.scope.postMessage({ id, error: this.describe(error) });
    }
  }

  // A module that trapped is in no known state; it is made anew for the next file.
  private describe(error: unknown): string {
    if (error instanceof WebAssembly.RuntimeError || error instanceof RangeError) {
      this.module = null;
      return `The WebAssembly module failed (${error.message}). ${TOO_LARGE}`;
    }
    return error instanceof Error ? error.message : String(error);
  }

  private async run(id: number, call: Call, values: unknown[]): Promise<unknown> {
    if (call === "start") {
      this.bytes = values[0] as ArrayBuffer;
      this.module = await Module.make(this.bytes);
      return null;
    }
    this.module ??= await Module.make(this.bytes);
    const module = this.module;
    if (call === "load") {
      const [name, bytes] = values as [string, ArrayBuffer];
      const pieces = await unpack(bytes);
      return module.load(name, pieces, this.stepper(id, "Reading the file"));
    }
    if (call === "view") return module.view(values[0] as number, this.stepper(id, "Making the picture"));
    if (call === "prepare") {
      module.prepare(values[0] as number);
      return null;
    }
    const [conf, device, memory] = values as [string, number, number];
    this.scope.postMessage({ id, fraction: null, what: "Replaying" });
    if (call === "pickle") return module.pickle(conf, device, memory, this.stepper(id, "Writing the file"));
    return module.whatif(conf, device, memory, this.stepper(id, "Making the picture"));
  }

  // Reports progress at most every 50 ms.
  private stepper(id: number, what: string): (fraction: number | null) => void {
    let last = 0;
    return (fraction) => {
      const now = performance.now();
      if (now - last < 50) return;
      last = now;
      this.scope.postMessage({ id, fraction, what });
    };
  }
}

function isAnswer(value: unknown): value is WhatifAnswer {
  return typeof value === "object" && value !== null && "view" in value;
}

export function runWorker(): void {
  new Server(globalThis as unknown as Scope);
}
