#!/bin/sh
# linked.sh PROGRAM [WEIR]: runs a program that knows nothing of Weir with the variables that a user may set. PRELOAD is
# the value of LD_PRELOAD for this program. WEIR is the program `weir`.
set -eu
program=$1
weir=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# run ENDING [NAME=VALUE...]: runs the program with its output in $work/out
run() {
  ending=$1
  shift
  env LD_PRELOAD="$PRELOAD" "$@" "$program" "$ending" >"$work/out" 2>&1 || echo "exit code $?" >>"$work/out"
}

expect() {
  if ! grep -qE -- "$1" "$work/out"; then
    echo "expected: $1"
    sed 's/^/  got: /' "$work/out"
    failed=1
  fi
}

run plain
expect '^total 16384 MiB, the driver was called 1 times$'
expect '^at the end: 0$'
run atexit
expect '^at exit: 0$'
expect '^at the end: 1$' # a double free
run early
expect '^early: (3|201)$' # before cuInit, without a context

run plain WEIR_MEMORY_LIMIT=2GiB
expect '^total 2048 MiB,'
run plain WEIR_MEMORY_FRACTION=0.5
expect '^total 8192 MiB,'
run plain WEIR_ALLOC_CONF=per_process_memory_fraction:0.25
expect '^total 4096 MiB,'
run plain WEIR_MEMORY_LIMIT=2GiB WEIR_MEMORY_FRACTION=0.5
expect '^total 2048 MiB,'
run plain WEIR_MEMORY_LIMIT=lots
expect 'ignoring WEIR_MEMORY_LIMIT=lots'
expect '^total 16384 MiB,'
run plain WEIR_MEMORY_FRACTION=2
expect 'ignoring WEIR_MEMORY_FRACTION=2'
run plain WEIR_ALLOC_CONF=expandable_segments:True
expect '^total 16384 MiB, the driver was called 0 times$'

# Unsupported settings are reported, and the program runs as without Weir.
run plain WEIR_ALLOC_CONF=no_such_key:1
expect 'the program runs without Weir: .*no_such_key'
expect '^total 16384 MiB, the driver was called 100 times$'
run plain WEIR_NO_MEMORY_CACHING=1
expect '^total 16384 MiB, the driver was called 100 times$'

run plain WEIR_ALLOC_CONF=backend:cudaMallocAsync
expect 'the program runs without Weir: .*backend'
expect '^total 16384 MiB, the driver was called 100 times$'
# PyTorch's variables are for PyTorch in the program.
run plain PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync PYTORCH_NO_CUDA_MEMORY_CACHING=1
expect '^total 16384 MiB, the driver was called 1 times$'

# Other programs are not affected.
env LD_PRELOAD="$PRELOAD" sh -c 'ls / | wc -l' >"$work/out" 2>&1
expect '^[0-9]+$'

# The recording is complete for every way to end.
for ending in plain atexit _exit; do
  mkdir "$work/$ending"
  run $ending WEIR_RECORD="$work/$ending" WEIR_RECORD_MB=16
  expect '^total'
  if [ -n "$weir" ]; then
    "$weir" summary --json "$work/$ending"/* >"$work/out" 2>&1 || echo "weir: exit code $?" >>"$work/out"
    expect '"alloc": 100,'
  else
    ls "$work/$ending" >"$work/out"
    expect .
  fi
done
# Native stacks, with libunwind and without it.
mkdir "$work/none"
: >"$work/none/libunwind.so.8"
: >"$work/none/libunwind.so"
for path in "$LD_LIBRARY_PATH" "$work/none:$LD_LIBRARY_PATH"; do
  rm -rf "$work/stacks"
  run plain WEIR_RECORD="$work/stacks" WEIR_RECORD_MB=16 WEIR_RECORD_STACKS=alloc LD_LIBRARY_PATH="$path"
  expect '^total'
  if grep weir "$work/out"; then
    echo "expected no message of Weir"
    failed=1
  fi
  if [ -n "$weir" ]; then
    "$weir" summary "$work/stacks"/* >"$work/out" 2>&1 || echo "weir: exit code $?" >>"$work/out"
    expect '100 blocks main '
  fi
done

# Memory that the program creates itself is counted in the recording, and Weir's own pages are not.
for ending in created created_only; do
  mkdir "$work/$ending"
  run $ending WEIR_RECORD="$work/$ending" WEIR_RECORD_MB=16 WEIR_ALLOC_CONF=expandable_segments:True
  for command in summary explain; do
    [ -n "$weir" ] || continue
    [ $command-$ending != explain-created_only ] || continue # there is no entry to explain
    "$weir" $command "$work/$ending"/* >"$work/out" 2>&1 || echo "weir: exit code $?" >>"$work/out"
    expect '^ +beside +40\.00 MiB at the end.* and 60\.00 MiB at most'
    "$weir" $command --json "$work/$ending"/* >"$work/out" 2>&1 || echo "weir: exit code $?" >>"$work/out"
    expect '"outside": *\{"end": *41943040, *"peak": *62914560\}'
  done
done
exit $failed
