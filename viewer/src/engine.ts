// The engine in WebAssembly: reads recordings and replays them under other settings, in a Worker.
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

export type Progress = (fraction: number | null, what: string) => void;

// Null if the engine can be used; otherwise the reason why it cannot.
export function engineReason(): string | null {
  return "This page was built without WebAssembly.";
}

export class Engine {
  static start(): Promise<Engine> {
    return Promise.reject(new Error(engineReason() ?? ""));
  }
  load(_name: string, _bytes: ArrayBuffer, _progress?: Progress): Promise<LoadedFile> {
    return Promise.reject(new Error(engineReason() ?? ""));
  }
  view(_device: number, _progress?: Progress): Promise<ArrayBuffer> {
    return Promise.reject(new Error(engineReason() ?? ""));
  }
  whatif(_conf: string, _device: number, _memory: number | null, _progress?: Progress): Promise<WhatifAnswer> {
    return Promise.reject(new Error(engineReason() ?? ""));
  }
  stop(): void {}
}

export function runWorker(): void {}
