#!/bin/sh
# lint.sh FOLDER: scripts/check-layers and scripts/check-text find each kind of mistake. FOLDER is the project.
# shellcheck disable=SC2016 # the text of pages
set -u
project=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
cd "$project" || exit 1
mkdir "$work/copy" && cp -r --parents Makefile README.md CONTRIBUTING.md src include cli docs scripts compute/include \
  compute/src compute/kernels compute/docs viewer/src python/src examples "$work/copy" || exit 1
cd "$work/copy" || exit 1

# run CODE SCRIPT
run() {
  scripts/"$2" >"$work/$2" 2>&1
  [ $? -eq "$1" ] || {
    echo "$2 does not exit with $1:"
    cat "$work/$2"
    failed=1
  }
}

# plant SCRIPT FILE LINE EXPECTED: adds a line with a mistake to a file. What the scripts say of them is in check.
: >"$work/expected"
plant() {
  printf '%s\n' "$3" >>"$2"
  printf '%s\t%s\n' "$1" "$4" >>"$work/expected"
}
layers() { plant check-layers "$@"; }
layers src/base/base.h '#include "weir/compute/array.h"' 'base.h: includes compute/include/weir/compute/array.h$'
layers src/alloc/memory/pages.h '#include "alloc/cache/arena.h"' 'pages.h: includes src/alloc/cache/arena.h$'
layers src/alloc/host/host.c '#include "alloc/memory/pages.h"' 'host.c: includes src/alloc/memory/pages.h$'
layers src/offline/read/input.c '#include "offline/replay/plan.h"' 'input.c: includes src/offline/replay/plan.h$'
layers src/inspect/symbols.h '#include "alloc/cache/heap.h"' 'offline/read/.*includes .* src/alloc/cache/heap.h$'
layers src/offline/replay/plan.c '#include "alloc/cache/heap.h"' 'plan.c: includes src/alloc/cache/heap.h$'
layers src/record/ring.c '#include <pthread.h>' 'ring.c: includes <pthread.h>'
layers cli/main.c 'static const char *text(void) { return getenv("HOME"); }' 'cli/main.c: calls getenv;'
layers compute/src/array.c '#include "base/array.h"' 'compute/src/array.c: includes src/base/array.h$'

text() { plant check-text "$@"; }
long=$(printf '%0110d' 0)
text src/base/base.h "/* A comment of 133 bytes: $long */" 'base.h:[0-9]*: 1[0-9]* characters'
text scripts/setup "# A comment of 133 bytes: $long" 'setup:[0-9]*: 1[0-9]* characters'
text src/base/base.h '/* The caller takes the lock. */' 'base.h:.*`takes the lock`'
text src/base/base.h 'enum { WEIR__MOST_BYTES = 1 };' 'base.h:.*`MOST_`'
text docs/inside/architecture.md '| `src/nothing` | `base.c` |' 'there is no src/nothing$'
text docs/inside/architecture.md '| `src/base` | `nothing.c` |' 'there is no src/base/nothing.c$'
text docs/inside/guide-source.md '[x](../../src/nothing.c), `weir__no_function`' 'there is no src/nothing.c$'
text docs/inside/guide-source.md '`weir__no_such_function`' 'no linked file has weir__no_such_function$'
text docs/inside/guide-source.md '## Wrong order' 'Wrong order: refill_with_driver calls weir__refill, which is named before it$'
text docs/inside/guide-source.md '`weir_allocator_alloc`, `weir__refill`, `refill_with_driver`, `weir__arena_find`, `weir__round_bytes`' \
  'Wrong order: weir_allocator_alloc calls weir__round_bytes, weir__arena_find in this order$'
text README.md 'make test  # in 77 minutes' 'minutes of `make test`'

run 1 check-layers
run 1 check-text
while IFS='	' read -r script expected; do
  grep -q -e "$expected" "$work/$script" || {
    echo "$script does not say: $expected"
    failed=1
  }
done <"$work/expected"
[ $failed -eq 0 ] || cat "$work/check-layers" "$work/check-text"
exit $failed
