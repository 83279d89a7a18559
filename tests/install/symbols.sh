#!/bin/sh
# symbols.sh FILE LIBRARY...: the symbols file of the Debian package lists exactly what the libraries export, with
# the versions of the symbols.
set -eu
file=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for library in "$@"; do
  soname=$(LC_ALL=C readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
  awk -v soname="$soname" '/^lib/ { inside = $1 == soname }
    inside && /^ weir_/ { print $1 }' "$file" | sort >"$work/listed"
  nm -D --defined-only "$library" | awk '$3 ~ /^weir_/ { sub("@@", "@", $3); print $3 }' | sort >"$work/exported"
  if [ ! -s "$work/exported" ]; then
    echo "$library exports no symbol"
    failed=1
  elif ! diff "$work/listed" "$work/exported"; then
    echo "$file and $soname differ: run make && scripts/build-deb --update-symbols"
    failed=1
  fi
done
exit $failed
