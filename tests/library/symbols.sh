#!/bin/sh
# symbols.sh LIBRARY INCLUDE_DIR CC [HEADER PREFIX]: the library exports exactly the functions that the public headers
# declare: all of them, or those of one header that begin with a prefix.
set -eu
library=$1 include=$2 cc=$3 header=${4:-weir/weir.h} prefix=${5:-weir_}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The absolute symbol is the name of the version node.
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort -u >"$work/exported"

foreign=$(grep -v "^${prefix}[a-z]" "$work/exported" || true)
if [ -n "$foreign" ]; then
  echo "exported, but no public name:"
  echo "$foreign"
  exit 1
fi

# Preprocessed text has no comments; a name before a parenthesis is a function, unless "(*" follows it.
printf '#include "%s"\n' "$header" | "$cc" -std=c11 -I "$include" -E -P - | tr '\n' ' ' | tr ';{}' '[\n*]' |
  grep -vE 'typedef|static inline' | grep -o "\\b${prefix}[a-z0-9_]* *([^*]" | sed 's/ *(.*//' | LC_ALL=C sort -u >"$work/declared"

if ! diff "$work/declared" "$work/exported" >"$work/difference"; then
  echo "'<' is declared but not exported, '>' is exported but not declared:"
  grep '^[<>]' "$work/difference"
  exit 1
fi
[ -s "$work/exported" ] || {
  echo "$library exports nothing"
  exit 1
}
