#!/bin/sh
# tool.sh PROGRAM: weir-compute on the software device.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export WEIR_DRIVER=soft WEIR_SOFT_DEVICES=2

# run CODE ARGUMENT...
run() {
  code=0 expected=$1
  shift
  "$program" "$@" >"$work/out" 2>"$work/err" || code=$?
  [ $code = "$expected" ] || { echo "weir-compute $* ended with $code, expected $expected"; cat "$work/err"; exit 1; }
}

program=$1
run 0
[ "$(grep -cE '^(nvrtc|cublas|nccl) +(/.* \(.*\)|not found)$' "$work/out")" = 3 ]
[ ! -s "$work/err" ]
run 0 --nccl
[ "$(grep -cE '^device [01]: a communicator .* of NCCL 2\.[0-9.]+ takes 0\.00 MiB of the device, [0-9.]+ MiB of the host$' "$work/out")" = 2 ]
export WEIR_NVRTC_LIBRARY=/nonexistent
run 0
grep -q '^nvrtc  *not found$' "$work/out"
run 0 --environment
grep -q '^  WEIR_NCCL_TIMEOUT$' "$work/out"
run 2 --other
grep -q '^usage: ' "$work/err"
