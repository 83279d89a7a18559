#!/bin/sh
# probes.sh LIBRARY CC: the library has the tracepoints malloc and free, with four arguments each.
set -eu
library=$1 cc=$2
if ! printf '#include <sys/sdt.h>\n' | "$cc" -E - >/dev/null 2>&1; then
  echo "waived: there is no sys/sdt.h; Debian has it in systemtap-sdt-dev"
  exit 77
fi
notes=$(readelf -n "$library")
failed=0
for name in malloc free; do
  # The note of a tracepoint: its provider, name, address and arguments, one per line.
  arguments=$(echo "$notes" | grep -A 3 '^ *Provider: weir$' | grep -A 2 "^ *Name: $name\$" | sed -n 's/^ *Arguments: //p')
  if [ -z "$arguments" ]; then
    echo "weir:$name is not among the notes of $library"
    failed=1
    continue
  fi
  echo "$arguments" | while read -r line; do
    [ "$(echo "$line" | wc -w)" -eq 4 ] || {
      echo "weir:$name has other arguments than pointer, device, bytes and stream: $line"
      exit 1
    }
  done || failed=1
done
exit $failed
