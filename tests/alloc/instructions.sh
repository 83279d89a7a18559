#!/bin/sh
# instructions.sh PROGRAM COMPILER: the number of instructions of an allocation and its free on the cached path,
# compared with instructions.golden. Unlike a time, it does not depend on the machine or its load; it does depend on the
# compiler, so the file names the compiler, and others are waived. PROGRAM is count_pair.
#
# With WEIR_UPDATE_GOLDEN=1 the file is written instead: scripts/update-golden.
set -u
program=$1 compiler=$2
golden=$(dirname "$0")/instructions.golden
cases='small_pair large_pair expandable_pair moving_pair scoped_pair replace_1000 moving_1000 pinned_pair'
pairs=2000
percent=2

if ! command -v valgrind >/dev/null; then
  echo "waived: there is no valgrind"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# per_pair CASE
per_pair() {
  if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect=counted_pairs \
    "$program" "$1" $pairs >"$work/log" 2>&1; then
    cat "$work/log" >&2
    return 1
  fi
  all=$(sed -n 's/^==[0-9]*== Collected *: *\([0-9]*\)$/\1/p' "$work/log")
  echo $(((all + pairs / 2) / pairs))
}

if [ "${WEIR_UPDATE_GOLDEN:-0}" = 1 ]; then
  {
    echo "# Instructions of an allocation and its free on the cached path. Written by scripts/update-golden."
    echo "compiler $compiler"
    for case in $cases; do
      counted=$(per_pair "$case") || exit 1
      echo "$case $counted"
    done
  } >"$work/golden" || exit 1
  cat "$work/golden"
  cp "$work/golden" "$golden"
  exit
fi

recorded=$(sed -n 's/^compiler //p' "$golden")
if [ "$recorded" != "$compiler" ]; then
  echo "waived: the instructions are counted for $recorded, and this is $compiler"
  exit 77
fi

failed=0
for case in $cases; do
  expected=$(sed -n "s/^$case //p" "$golden")
  if [ -z "$expected" ]; then
    echo "$case: not in $golden; run scripts/update-golden"
    failed=1
    continue
  fi
  counted=$(per_pair "$case") || exit 1
  echo "$case: $counted instructions, expected $expected"
  if [ $((counted * 100)) -gt $((expected * (100 + percent))) ]; then
    echo "  more than $percent % above: find what was added to the cached path; if it has to be, run scripts/update-golden"
    failed=1
  elif [ $((counted * 100)) -lt $((expected * (100 - percent))) ]; then
    echo "  more than $percent % below: keep it so, with scripts/update-golden"
    failed=1
  fi
done
exit $failed
