#!/bin/sh
# stacks.sh LIBRARY INCLUDE WEIR CC: a C program that is linked to libweir.so records its stacks; after it has exited,
# the first frame of each is the named function that called Weir, with and without debug information.
set -eu
library=$1 include=$2 weir=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/program.c" <<'END'
#include <weir/weir.h>
__attribute__((noinline)) void *innermost_caller(weir_allocator *allocator) {
  void *pointer = NULL;
  if (weir_allocator_alloc(allocator, 0, 1 << 20, NULL, &pointer))
    return NULL;
  __asm__ volatile("" : : : "memory");
  return pointer;
}
int main(void) {
  weir_driver *driver;
  weir_allocator *allocator;
  if (weir_device_set_current(0) || weir_get_driver(&driver) || weir_allocator_create(driver, NULL, &allocator))
    return 1;
  for (int i = 0; i < 100; i++) {
    void *pointer = innermost_caller(allocator);
    if (!pointer || weir_allocator_free(allocator, pointer))
      return 1;
  }
  return 0;
}
END
failed=0
# check NAME EXPECTED FLAG...
check() {
  name=$1 expected=$2
  shift 2
  "$cc" -O2 "$@" "-I$include" "$work/program.c" "$library" "-Wl,-rpath,$(dirname "$library")" -o "$work/$name"
  WEIR_DRIVER=soft WEIR_RECORD="$work/record-$name" WEIR_RECORD_MB=4 WEIR_RECORD_STACKS=all "$work/$name" 2>"$work/errors"
  if grep -q 'no native stacks' "$work/errors"; then
    echo "waived: there is no libunwind"
    exit 77
  fi
  "$weir" export --to csv --table stacks "$work/record-$name"/*.ring >"$work/stacks.csv"
  "$weir" export --to csv --table frames "$work/record-$name"/*.ring >"$work/frames.csv"
  # The functions of the innermost frames of all stacks.
  awk -F, 'FNR == 1 { next } NR == FNR { if ($2 == 0) wanted[$3 + 0] = 1; next } ($1 + 0) in wanted' "$work/stacks.csv" "$work/frames.csv" \
    >"$work/first"
  grep -q "$expected" "$work/first" || {
    echo "$name: no stack begins at the caller:"
    cat "$work/first"
    failed=1
  }
  if grep -q 'weir_allocator\|weir__\|libweir' "$work/first"; then
    echo "$name: a stack begins inside of Weir:"
    cat "$work/first"
    failed=1
  fi
  "$weir" summary "$work/record-$name"/*.ring >"$work/summary"
  "$weir" explain "$work/record-$name"/*.ring >"$work/explain"
  for text in summary explain; do
    grep -q "$expected" "$work/$text" || {
      echo "$name: weir $text does not name the caller:"
      cat "$work/$text"
      failed=1
    }
  done
}
check debug innermost_caller -g
check plain innermost_caller
check stripped '0x[0-9a-f]*.*stripped' -s
exit $failed
