#!/bin/sh
# hardening.sh FILE...: each program or library is position independent, has a stack and data that are not executable,
# is relocated fully at its start, has no path to look for libraries but its own folder, and no text relocations. Code
# that reads files of others checks its stack frames.
set -eu
export LC_ALL=C
failed=0

# expect FILE WHAT COMMAND...: the command succeeds.
expect() {
  file=$1 what=$2
  shift 2
  if ! "$@"; then
    echo "$file: $what"
    failed=1
  fi
}

contains() { printf '%s\n' "$1" | grep -Eq -- "$2"; }
lacks() { ! contains "$1" "$2"; }

for file; do
  dynamic=$(readelf -dW "$file") segments=$(readelf -lW "$file") header=$(readelf -hW "$file")
  symbols=$(readelf -sW --dyn-syms "$file")
  expect "$file" "it is not position independent" contains "$header" 'Type: +DYN'
  expect "$file" "its relocated data is not read-only" contains "$segments" 'GNU_RELRO'
  expect "$file" "its functions are bound lazily" contains "$dynamic" 'BIND_NOW|FLAGS.*NOW'
  expect "$file" "its stack is executable" contains "$segments" 'GNU_STACK.* RW +0x'
  expect "$file" "it has a segment that is writable and executable" lacks "$segments" 'LOAD.* RWE '
  expect "$file" "it has text relocations" lacks "$dynamic" 'TEXTREL'
  # shellcheck disable=SC2016 # the text of the file
  expect "$file" "it looks for libraries in a folder of the build" \
    lacks "$(printf '%s\n' "$dynamic" | grep -v '\[\$ORIGIN:*\]')" 'RPATH|RUNPATH'
  expect "$file" "its stack frames are not checked" contains "$symbols" '__stack_chk_fail'
done
[ "$failed" -eq 0 ]
