#!/bin/sh
# Digests and compares the recordings of a job on one machine, on all its cores:
#
#     local.sh OUT RECORDING...
#
# OUT is a folder for the digests. A digest that is there is not made again. The shell between xargs and weir keeps
# xargs going if one is killed.
set -eu
out=$1
shift
mkdir -p "$out"
# shellcheck disable=SC2016 # the inner shell expands $0 and $1
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -n 1 sh -c \
  'to=$0/$(basename "$1").json; [ -s "$to" ] || "${WEIR:-weir}" digest -o "$to" "$1" || :' "$out"
exec "${WEIR:-weir}" ranks ${RANKS:+--ranks "$RANKS"} "$out"
