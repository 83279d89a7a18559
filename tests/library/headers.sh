#!/bin/sh
# headers.sh INCLUDE_DIR CC [CXX]: the public headers compile as C17 and C++20 without warnings, all together; the build
# compiles each alone as C11 and C++17. With WEIR_TEST_LONG set, each compiles alone in every version of both languages,
# with every compiler that is installed.
set -eu
include=$1 cc=$2 cxx=${3:-}
warnings='-Wall -Wextra -Wpedantic -Wshadow -Werror'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile COMPILER STANDARD LANGUAGE FILE
compile() {
  # shellcheck disable=SC2086 # flags are words
  "$1" -std="$2" $warnings -I "$include" -fsyntax-only -x "$3" "$4" || {
    echo "$1 -std=$2: $(cat "$4")"
    exit 1
  }
}

# driver_entries.h is a list, not a header.
for header in "$include"/weir/*.h "$include"/weir/*.hpp; do
  name=$(basename "$header")
  [ "$name" = driver_entries.h ] || printf '#include "weir/%s"\n' "$name" >"$work/$name"
done
cat "$work"/*.h >"$work/all.c"
cat "$work"/*.hpp "$work"/*.h >"$work/all.cpp"
compile "$cc" c17 c "$work/all.c"
[ -z "$cxx" ] || compile "$cxx" c++20 c++ "$work/all.cpp"

[ -n "${WEIR_TEST_LONG:-}" ] || exit 0
for file in "$work"/*.h "$work"/*.hpp; do
  for compiler in gcc clang; do
    case $file in *.hpp) continue ;; esac
    command -v $compiler >/dev/null || continue
    for standard in c11 c17 c2x; do compile $compiler $standard c "$file"; done
  done
  for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    for standard in c++17 c++20 c++2b; do compile $compiler $standard c++ "$file"; done
  done
done
