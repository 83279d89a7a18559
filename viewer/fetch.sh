#!/bin/sh
# Fetches what the page contains of others, fzstd, by npm and as package-lock.json pins it: viewer/fetch.sh
#
# Does nothing without npm: the page cannot read files that are compressed with zstd.
set -u
cd "$(dirname "$0")" || exit 1
[ ! -d node_modules/fzstd ] || exit 0
command -v npm >/dev/null 2>&1 || exit 0
if npm ci --omit=dev --no-audit --no-fund --fetch-retries=0 --fetch-timeout=20000 >npm.log 2>&1; then
  echo 'Fetched fzstd for the page.'
else
  rm -rf node_modules
  echo 'Continuing without fzstd: the page will not read files that are compressed with zstd.' >&2
fi
rm -f npm.log
