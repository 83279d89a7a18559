#!/bin/sh
# bench.sh ALLOC VERSION OBSERVE: the benchmarks of one allocation measure, name a missing allocator, and reject unknown
# arguments.
set -u
observe=$3
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# Neither changes the measurement.
export WEIR_ALLOC_CONF=no_such_key:1 WEIR_NO_MEMORY_CACHING=1

# Errors in the command line are named, and nothing is measured.
wrong "a comma-separated list of pair, live, threads, stream, curve and metadata" --patterns pair,pears
wrong "a comma-separated list" --patterns pair,
wrong "1 to 64 (got '0')" --threads 0
wrong "1 to 64 (got '4x')" --threads 4x
wrong 'requires an argument' --driver
wrong 'usage: alloc' --fast
wrong "takes no arguments (got 'now')" now
run 1 --driver abacus
has err abacus

# All patterns.
run 0 --quick
empty err
has out " core.*; Weir $version on ledger; median of 3 rounds"
count 6 '^pairs of '
count 3 ' live, up to '
count 5 ', own streams* '
count 5 ', one stream '
count 1 '^free blocks'
count 3 '^1[0-9]*  *[0-9.]*  *[0-9.]*$'
has out '^Weir  *1[0-9][0-9][0-9][0-9][0-9] '
# Both of Weir's columns have a number in every row.
count 19 '^[a-zA-Z0-9, ]* [0-9][0-9]*\.[0-9]  *[0-9][0-9]*\.[0-9] '
# mimalloc has one too, or the reason is printed.
if ! grep -q '^mimalloc: absent: ' "$work/out"; then
  count 19 '^[a-zA-Z0-9, ]*\( [0-9][0-9]*\.[0-9] *\)\{3\} '
fi

# Threads have one in scopes of their own, and its ratio to the time without.
count 5 '^[0-9]* threads*, own stream.* [0-9][0-9]*\.[0-9]  *[0-9][0-9]*\.[0-9][0-9]x '

# Some patterns.
run 0 --quick --patterns threads,stream --threads 2
empty err
count 2 ' threads*, own streams* '
count 2 ' threads*, one stream '
hasnt out '^pairs'
hasnt out '^free blocks'
hasnt out '^metadata'

# On a device, with settings.
run 0 --quick --driver soft --patterns pair --conf max_split_size_mb:100
empty err
has out ' on soft; '
has out '^settings: max_split_size_mb:100$'
run 1 --quick --patterns pair --conf no_such_key:1
empty out
has err 'no_such_key'
export WEIR_SOFT_MEMORY=100MiB
run 1 --quick --driver soft --patterns live
empty out
has err 'live_1000_1MiB: an allocation failed: .*out of memory'
unset WEIR_SOFT_MEMORY

# The cost of recording.
weir=$observe
wrong 'usage: observe' --fast
wrong 'usage: observe' now
run 0 --quick
empty err
for way in 'off' 'entries, no stacks' 'the same to a file' 'native stacks of allocations' 'native stacks of frees too'; do
  count 1 "^$way  "
done

exit $failed
