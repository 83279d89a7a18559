#!/bin/sh
# bad_input.sh INCLUDE_DIR CC TESTS_DIR: for every public function with arguments, a test named test_bad_input.c or
# test_bad_calls.c passes invalid ones, and every public struct with a size field has an _init function.
set -eu
include=$1 cc=$2 tests=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# One declaration per line, without comments, as in symbols.sh.
printf '#include "weir/weir.h"\n' | "$cc" -std=c11 -I "$include" -E -P - | tr '\n' ' ' | sed 's/;/;\n/g' >"$work/declarations"
tr '{}' '[\n*]' <"$work/declarations" | grep -v typedef | grep -v '( *void *)' | grep -o '\bweir_[a-z0-9_]* *([^*]' |
  sed 's/ *(.*//' | LC_ALL=C sort -u >"$work/functions"
[ "$(wc -l <"$work/functions")" -gt 200 ] || {
  echo "only $(wc -l <"$work/functions") functions found in $include: the search is wrong"
  exit 1
}

find "$tests" \( -name test_bad_input.c -o -name test_bad_calls.c \) -exec cat {} + >"$work/calls"
while read -r function; do
  grep -q "\b$function(" "$work/calls" || {
    echo "$function: no test_bad_input.c calls it with wrong arguments"
    failed=1
  }
done <"$work/functions"

grep -o 'struct weir_[a-z_]* *{ *size_t size;' "$work/declarations" | sed 's/struct \(weir_[a-z_]*\).*/\1/' |
  LC_ALL=C sort -u >"$work/structs"
[ -s "$work/structs" ] || {
  echo "no struct with a size found in $include: the search is wrong"
  exit 1
}
while read -r struct; do
  grep -q "^${struct}_init$" "$work/functions" || {
    echo "$struct carries its size, and has no ${struct}_init"
    failed=1
  }
done <"$work/structs"
exit $failed
