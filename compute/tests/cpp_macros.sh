#!/bin/sh
# cpp_macros.sh SOURCE_DIR CXX: kernel.hpp compiles alone, and leaves no macro defined but include guards.
set -eu
source=$1 cxx=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
include="-I$source/include -I$source/compute/include"

# macros TEXT: the names of the macros that these includes define.
macros() {
  # shellcheck disable=SC2086 # flags are words
  printf '%s\n' "$1" | "$cxx" -std=c++17 $include -dM -E -x c++ - | sed 's/^#define \([A-Za-z0-9_]*\).*/\1/' | LC_ALL=C sort
}

macros '#include "weir/compute/kernel.hpp"' >"$work/with"
macros "#include \"weir/weir.hpp\"
$(grep -hE '^#include' "$source/compute/include/weir/compute/kernel.hpp")" >"$work/without"
left=$(LC_ALL=C comm -13 "$work/without" "$work/with" | grep -v '^WEIR_[A-Z_]*_HPP$' || true)
[ -z "$left" ] || {
  echo "kernel.hpp leaves macros defined: $left"
  exit 1
}
