#!/bin/sh
# abi.sh SOURCE_DIR BUILD_DIR: scripts/check-abi records the ABI of this build, finds the build compatible with it,
# allows additions, and rejects incompatible changes with a sentence for each. With WEIR_TEST_LONG set, libabigail
# compares the libraries too. Once a release has recorded its ABI, the build must be compatible with that.
set -eu
source=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# check CODE OPTION...: runs it, and compares its exit code. Exit code 77 means waived.
check() {
  expected=$1
  shift
  code=0
  "$source/scripts/check-abi" --build "$build" "$@" >"$work/out" 2>&1 || code=$?
  [ $code -ne 77 ] || {
    cat "$work/out"
    exit 77
  }
  [ $code -eq "$expected" ] || {
    echo "check-abi $*: exit code $code, expected $expected"
    cat "$work/out"
    failed=1
  }
}
says() {
  grep -qF "$1" "$work/out" || {
    echo "check-abi does not say: $1"
    cat "$work/out"
    failed=1
  }
}

# edit HEADER COMMAND: changes a copy of a header, and fails if nothing changed.
edit() {
  sed -i.before "$2" "$work/include/weir/$1"
  ! cmp -s "$work/include/weir/$1" "$work/include/weir/$1.before" || {
    echo "$1: '$2' changed nothing"
    failed=1
  }
  rm "$work/include/weir/$1.before"
}

abidiff=--no-abidiff
[ -z "${WEIR_TEST_LONG:-}" ] || abidiff=
check 0 $abidiff
mkdir "$work/recorded"
check 0 $abidiff --update --baseline "$work/recorded"
says 'recorded '
check 0 $abidiff --baseline "$work/recorded"
says 'compatible with the recorded ABI; 0 additions'

# version NUMBER NUMBER: changes that of the copied headers.
version() {
  sed -i "s/\(#define WEIR_VERSION_MAJOR\) .*/\1 $1/; s/\(#define WEIR_VERSION_MINOR\) .*/\1 $2/" \
    "$work/include/weir/runtime.h"
}

# Additions.
cp -R "$source/include" "$work/include"
version 1 0
edit status.h 's/\(  X(20, .*[^ ]\) *$/\1 X(21, ERROR_NEW, "new")/'
edit alloc.h 's/^  int is_expandable;$/&\n  uint64_t later;/'
edit driver_entries.h '/^#undef WEIR_DRIVER_ENTRY$/i WEIR_DRIVER_ENTRY0(NewCall, cuNewCall, 13000, OPTIONAL)'
edit memory.h 's/^weir_status weir_free/weir_status weir_new(void);\n&/'
check 0 --no-abidiff --include "$work/include" --include "$source/compute/include" --baseline "$work/recorded"
says 'compatible with the recorded ABI; 5 additions'

# Incompatible changes, of the headers and of the libraries.
edit history.h '/^  int line;/d'
edit pool.h 's/^  int use_on_oom;/  int inserted;\n&/'
edit event.h 's/WEIR_EVENT_BLOCKING = 2/WEIR_EVENT_BLOCKING = 8/'
edit memory.h 's/weir_malloc(uint64_t bytes/weir_malloc(int bytes/'
edit offline.h '/^  uint64_t ooms;     /d'
edit host.h 's/^  int64_t total, max, min, count;/  int64_t total, max, min, count, last;/'
cp -R "$work/recorded" "$work/baseline"
echo 'symbol weir_gone@WEIR_1.0 libweir' >>"$work/baseline/abi.txt"
check 1 --no-abidiff --include "$work/include" --include "$source/compute/include" --baseline "$work/baseline"
says 'weir_stack_frame: the field line was removed (it was at offset 8, int)'
says 'weir_pool_options: the field use_on_oom moved from offset 8 to 12'
says 'weir_pool_options: the new field inserted is at offset 8, within'
says 'WEIR_EVENT_BLOCKING: the constant was 2 and is 8'
says 'weir_malloc: the function was weir_status (uint64_t, weir_stream, void **) and is weir_status (int,'
says 'weir_offline_info: the field ooms was removed'
says 'weir_host_time: the struct grew from 32 to 40 bytes, and has no field size'
says 'weir_gone@WEIR_1.0: the symbol was removed from libweir'
says 'The ABI changed in a way that existing programs do not survive.'

# In a later version, new functions have a version node of their own.
rm -rf "$work/include"
cp -R "$source/include" "$work/include"
edit offline.h 's/^  uint64_t segments; .*/&\n  uint64_t later;/'
version 1 1
grep -v '^symbol \(weir_free\|weir_gone\)@' "$work/baseline/abi.txt" >"$work/less"
mv "$work/less" "$work/baseline/abi.txt"
check 1 --no-abidiff --include "$work/include" --include "$source/compute/include" --baseline "$work/baseline"
says 'weir_free: the function is new, and its version node is WEIR_1.0: list it in a node for 1.1 in libweir.map'
! grep -q weir_offline_info "$work/out" || {
  echo "a struct with a size may grow at its end:"
  cat "$work/out"
  failed=1
}

# libabigail finds a change on its own.
if [ -z "$abidiff" ] && command -v abidiff >/dev/null; then
  cp "$work/recorded/abi.txt" "$work/baseline/abi.txt"
  gzip -dc "$work/recorded/libweir_offline.abi.gz" |
    sed "/class-decl name='weir_offline_info'/,/class-decl>/s/layout-offset-in-bits='128'/layout-offset-in-bits='160'/" |
    gzip >"$work/baseline/libweir_offline.abi.gz"
  check 1 --baseline "$work/baseline"
  says 'libweir_offline.so, according to abidiff:'
  says 'offset changed from 160 to 128'
fi

# The newest release.
if [ -z "$abidiff" ] && tag=$(git -C "$source" describe --tags --abbrev=0 --match 'v[1-9]*' 2>/dev/null); then
  check 0 "$tag"
  says "compatible with $tag"
fi
exit $failed
