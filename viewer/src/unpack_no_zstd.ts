// In place of fzstd where viewer/build.sh did not find it.
export class Decompress {
  constructor(_ondata: (piece: Uint8Array) => void) {
    throw new Error(
      "this page was built without fzstd and cannot read files compressed with zstd: unpack the file first (zstd -d)",
    );
  }

  push(_chunk: Uint8Array, _final: boolean): void {}
}
