#!/bin/sh
# Builds the page: viewer/build.sh OUT.html. Needs esbuild, and fzstd in node_modules (viewer/fetch.sh), without which
# the page cannot read files that are compressed with zstd. Needs nothing of Node.js.
#
# The script and the style are inlined. The Content-Security-Policy of the page names the hash of the script, so the
# browser runs no other script even if one got into the data.
set -eu
cd "$(dirname "$0")"
case $1 in /*) out=$1 ;; *) out=$OLDPWD/$1 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

without=
[ -d node_modules/fzstd ] || without=--alias:fzstd=./src/unpack_no_zstd.ts
esbuild src/main.ts $without --bundle --minify --format=iife --target=es2021 --charset=utf8 --log-level=warning \
  --legal-comments=none --outfile="$work/page.js"
esbuild src/style.css --bundle --minify --target=chrome100,firefox113,safari16 --log-level=warning --outfile="$work/page.css"

# The hash covers exactly the text between the tags, so the final newline of esbuild is dropped.
printf %s "$(cat "$work/page.js")" >"$work/script"
printf %s "$(cat "$work/page.css")" >"$work/style"
octal=$(sha256sum "$work/script" | awk '{
  hex = "0123456789abcdef"
  for (i = 1; i <= 64; i += 2) {
    byte = (index(hex, substr($1, i, 1)) - 1) * 16 + index(hex, substr($1, i + 1, 1)) - 1
    printf "\\%03o", byte
  }
}')
# shellcheck disable=SC2059 # the format is the escaped bytes
hash=$(printf "$octal" | base64)

mkdir -p "$(dirname "$out")"
while IFS= read -r line; do
  case $line in
    @STYLE@)
      cat "$work/style"
      echo
      ;;
    *@SCRIPT@*)
      printf %s "${line%%@SCRIPT@*}"
      cat "$work/script"
      printf '%s\n' "${line#*@SCRIPT@}"
      ;;
    *@HASH@*) printf '%s\n' "${line%%@HASH@*}$hash${line#*@HASH@}" ;;
    *) printf '%s\n' "$line" ;;
  esac
done <index.html >"$out.part"
mv "$out.part" "$out"
