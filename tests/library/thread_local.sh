#!/bin/sh
# thread_local.sh LIBRARY...: the thread-local variables of each are few. A library that is loaded late, as by Python's
# import after PyTorch's, has about 1600 bytes for them, which it shares with others; beyond that loading fails with
# "cannot allocate memory in static TLS block".
set -u
most=1024
failed=0
for library; do
  size=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
  size=$((${size:-0}))
  echo "$library: $size bytes"
  [ $size -le $most ] || failed=1
done
[ $failed -eq 0 ] || echo "more than $most bytes"
exit $failed
