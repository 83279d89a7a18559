#!/bin/sh
# symbols.sh LIBRARY SOURCE_DIR CC: libweir_compute exports exactly the functions that the headers in
# compute/src/exports.h declare beyond those of weir/weir.h, and needs libweir and libc's libraries alone.
set -eu
library=$1 source=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The functions that a file declares; see tests/library/symbols.sh.
declared() {
  "$cc" -std=c11 -I "$source/compute/include" -I "$source/include" -E -P "$1" | tr '\n' ' ' | tr ';{}' '[\n*]' | grep -vE "typedef|static inline" |
    grep -o '\bweir_[a-z0-9_]* *([^*]' | sed 's/ *(.*//' | LC_ALL=C sort -u
}

grep '#include "weir/' "$source/compute/src/exports.h" >"$work/all.c"
echo '#include "weir/weir.h"' >"$work/base.c"
declared "$work/all.c" >"$work/all"
declared "$work/base.c" >"$work/base"
LC_ALL=C comm -23 "$work/all" "$work/base" >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 10 ] || {
  echo "only $(wc -l <"$work/declared") functions found: the search is wrong"
  exit 1
}
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u >"$work/exported"
if ! diff "$work/declared" "$work/exported" >"$work/difference"; then
  echo "'<' is declared but not exported, '>' is exported but not declared:"
  grep '^[<>]' "$work/difference"
  exit 1
fi
needs=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p' |
  grep -vE '^(libweir\.so|libc\.so|libm\.so|libdl\.so|libpthread\.so|ld-linux)' || true)
if [ -n "$needs" ]; then
  echo "it needs more than libweir and libc:"
  echo "$needs"
  exit 1
fi
