#!/bin/sh
# run.sh LIBRARY [WEIR]: builds program.c against NVIDIA's runtime and runs it on the GPU, by itself and served by
# LIBRARY (libweir_preload.so). WEIR, the program `weir`, reads the recording. CUDA is the folder of the toolkit
# (default: /usr/local/cuda). Without it or a GPU, the exit code is 77 (waived).
set -eu
library=$(realpath "$1")
weir=${2:-}
cuda=${CUDA:-/usr/local/cuda}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

if [ ! -e "$cuda/include/cuda_runtime.h" ]; then
  echo "waived: $cuda/include/cuda_runtime.h was not found"
  exit 77
fi
if ! nvidia-smi >/dev/null 2>&1; then
  echo "waived: no GPU was found"
  exit 77
fi
lib=$cuda/lib64
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# build NAME FLAGS...
build() {
  name=$1
  shift
  ${CC:-gcc} -std=c11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -I"$cuda/include" "$here/program.c" "$@" -lpthread -ldl -lrt \
    -o "$work/$name"
}

build dynamic -L"$lib" -lcudart
build static "$lib/libcudart_static.a"
build per_thread -DCUDA_API_PER_THREAD_DEFAULT_STREAM -L"$lib" -lcudart

# run NAME PROGRAM [VARIABLE=VALUE...]
run() {
  echo "-- $1"
  name=$1
  program=$2
  shift 2
  if env "$@" timeout 40 "$work/$program" >"$work/out" 2>&1; then code=0; else code=$?; fi
  cat "$work/out"
  if [ $code = 0 ] && grep -q '^program: [0-9]* passed, 0 failed$' "$work/out"; then
    passed=$((passed + 1))
  else
    echo "FAILED $name: exit code $code"
    failed=$((failed + 1))
  fi
}

run "without Weir" dynamic
run "served" dynamic LD_PRELOAD="$library" WEIR_MEMORY_LIMIT=4GiB
run "served, the runtime in the program" static LD_PRELOAD="$library" WEIR_MEMORY_LIMIT=4GiB
run "served, a default stream for each thread" per_thread LD_PRELOAD="$library" WEIR_MEMORY_LIMIT=4GiB
run "served, expandable segments" dynamic LD_PRELOAD="$library" WEIR_MEMORY_LIMIT=4GiB \
  WEIR_ALLOC_CONF=expandable_segments:True
mkdir "$work/record"
run "served and recorded" dynamic LD_PRELOAD="$library" WEIR_MEMORY_LIMIT=4GiB \
  WEIR_RECORD="$work/record" WEIR_RECORD_MB=64
ls -l "$work/record"
if [ -n "$weir" ]; then
  for file in "$work"/record/*.ring; do
    if "$weir" summary "$file" >"$work/out" 2>&1; then
      head -12 "$work/out"
      passed=$((passed + 1))
    else
      cat "$work/out"
      echo "FAILED: the recording cannot be read"
      failed=$((failed + 1))
    fi
  done
  # The program's own pages, in the file of the time before the device was reset.
  if "$weir" summary "$work"/record/*.ring 2>&1 |
    grep -qE '^ +beside +0 bytes at the end.* and 6\.00 MiB at most'; then
    passed=$((passed + 1))
  else
    echo "FAILED: memory of cuMemCreate is not counted"
    failed=$((failed + 1))
  fi
fi

echo "preload: $passed passed, $failed failed"
[ $failed = 0 ]
