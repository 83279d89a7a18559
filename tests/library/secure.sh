#!/bin/sh
# secure.sh PROGRAM: in a set-user-ID program, variables that name files to write are ignored. The program makes an
# allocator, as make_snapshot FILE does. Waived unless it runs as root, on a file system with set-user-ID programs.
set -u
program=$1
if [ "$(id -u)" -ne 0 ] || ! id nobody >/dev/null 2>&1; then
  echo "skipped: a set-user-ID program of another user needs root"
  exit 77
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/out" && chmod 777 "$work/out" || exit 1

# Recorded as it is, and not with the rights of another user.
WEIR_LOG=error WEIR_DRIVER=soft WEIR_RECORD=$work/out/plain "$program" "$work/out/plain.pickle" >/dev/null || exit 1
files=$(find "$work/out/plain" -name '*.ring' | wc -l)
if [ "$files" -eq 0 ]; then
  echo "nothing was recorded"
  exit 1
fi
if [ -n "$(find "$work/out/plain" \( -type d -o -name '*.ring' \) -perm /077)" ]; then
  echo "other users can read a recording, or its folder:"
  ls -ld "$work/out/plain" "$work/out/plain"/*
  exit 1
fi

cp "$program" "$work/program" && chown nobody "$work/program" && chmod 4755 "$work/program" || exit 1
WEIR_LOG=error WEIR_DRIVER=soft WEIR_RECORD=$work/out/secure "$work/program" "$work/out/secure.pickle" >/dev/null || exit 1
if [ "$(stat -c %U "$work/out/secure.pickle")" != nobody ]; then
  echo "skipped: set-user-ID programs have no effect on this file system"
  exit 77
fi
if [ -e "$work/out/secure" ]; then
  echo "a set-user-ID program has recorded to a folder that its user named"
  exit 1
fi
