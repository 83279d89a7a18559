#!/bin/sh
# wasm.sh PROGRAM MODULE: the page's WebAssembly module predicts what the program predicts, entry for entry, for the
# shipped histories: the predicted history as a pickle has the same bytes, and the answer the same numbers. By default
# one history of each job is replayed under one of the settings, with WEIR_TEST_LONG=1 every history under all of them.
set -u
weir=$1 module=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
failed=0
for tool in node esbuild; do
  command -v $tool >/dev/null || {
    echo "skipped: there is no $tool (Debian: nodejs, esbuild)"
    exit 77
  }
done
[ -f "$module" ] || {
  echo "skipped: built without the WebAssembly module: there is no clang with wasi-libc, or no esbuild"
  exit 77
}
# The page reads .zst by fzstd, which viewer/test/unpack.test.mjs tests.
command -v zstd >/dev/null || {
  echo "skipped: there is no zstd"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
esbuild "$root/viewer/test/replay.ts" --alias:fzstd="$root/viewer/src/unpack_no_zstd.ts" --bundle --platform=node --target=node18 --outfile="$work/replay.js" \
  --log-level=warning || exit 1

fail() {
  failed=1
  echo "$1"
}

# same FILE SETTINGS...: both predict the same. Settings may end in @BYTES of memory.
same() {
  file=$1
  shift
  node "$work/replay.js" "$module" "$file" "$work/page" "$@" || fail "$file: the module failed"
  number=0
  for settings; do
    memory=
    case $settings in *@*) memory=--memory=${settings#*@} ;; esac
    rm -f "$work/own.pickle"
    "$weir" whatif --json ${memory:+"$memory"} --conf "${settings%@*}" --write "$work/own.pickle" "$file" >"$work/own.json" \
      2>"$work/err" || fail "$file: weir whatif --conf '$settings': $(cat "$work/err")"
    cmp "$work/own.pickle" "$work/page.$number.pickle" || fail "$file: another history under '$settings'"
    node "$work/replay.js" --same "$work/own.json" "$work/page.$number.json" || fail "$file: other figures under '$settings'"
    rm -f "$work/page.$number.pickle"
    number=$((number + 1))
  done
}

turn=0
for file in "$root"/tests/data/traces/*.zst; do
  case ${WEIR_TEST_LONG:-}$(basename "$file") in
    # Recorded from the same jobs as others, under other settings. cuda_graphs_expandable has expandable segments.
    llama_lora_gc.* | llama_varlen_expandable.* | llama_varlen_split200.* | \
      llama_varlen_*_capped.* | resnet_roundup.* | streams_prefetch_expandable.*) continue ;;
  esac
  set -- '' expandable_segments:True moving_pages:True max_split_size_mb:200 \
    garbage_collection_threshold:0.8@12884901888
  [ -n "${WEIR_TEST_LONG:-}" ] || {
    shift $((turn % 5))
    set -- "$1"
  }
  zstd -qdf "$file" -o "$work/$(basename "$file" .zst)"
  same "$work/$(basename "$file" .zst)" "$@"
  rm "$work/$(basename "$file" .zst)"
  turn=$((turn + 1))
done

# The same from gzip, which the browser unpacks, and from a file that is not compressed.
small=$root/tests/data/small_snapshot.pickle
gzip -c "$small" >"$work/small.pickle.gz"
same "$small" '' expandable_segments:True
same "$work/small.pickle.gz" ''

# Addresses above 2^46, blocks of more than 4 GiB, and streams that differ in the upper half of their handles only.
if command -v python3 >/dev/null; then
  python3 "$here/make_wide.py" "$work/wide.pickle" || exit 1
  "$weir" replay --check "$work/wide.pickle" >"$work/out" || fail "wide: $(cat "$work/out")"
  same "$work/wide.pickle" '' expandable_segments:True moving_pages:True max_split_size_mb:200
fi

# Errors name the byte, and what is missing.
head -c 1000 "$small" >"$work/short.pickle"
node "$work/replay.js" "$module" "$work/short.pickle" "$work/page" 2>"$work/err" && fail "a short file was accepted"
grep -q 'short.pickle: byte [0-9]*: ' "$work/err" || fail "no byte in: $(cat "$work/err")"
node "$work/replay.js" "$module" "$root/tests/data/traces/llama_oom.pickle.zst" "$work/page" 2>"$work/err" &&
  fail "a page without fzstd read a .zst"
grep -q 'this page was built without fzstd' "$work/err" || fail "no reason in: $(cat "$work/err")"
node "$work/replay.js" "$module" "$small" "$work/page" no_such_key:1 2>"$work/err" && fail "unknown settings were accepted"
grep -q 'no_such_key' "$work/err" || fail "no key in: $(cat "$work/err")"
exit $failed
