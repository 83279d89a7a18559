#!/bin/sh
# pictures.sh PROGRAM VERSION: the plots and terminals in docs/pictures show what the program prints now.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$(dirname "$0")/../support/terminal.sh"
root=$(dirname "$0")/../..

has_terminal || finish
[ "$(basename "$weir")" = weir ] || {
  echo "waived: the program has another name"
  exit 77
}
if "$weir" summary "$root/tests/data/traces/llama_oom.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  echo "waived: built without libzstd"
  exit 77
fi
WEIR=$weir "$root/scripts/make-pictures" --svg "$work/made" >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}
for picture in "$work"/made/*.svg; do
  cmp "$picture" "$root/docs/pictures/$(basename "$picture")" || {
    echo "docs/pictures is not up to date: run scripts/make-pictures"
    failed=1
  }
done
for picture in "$root"/docs/pictures/*.svg; do
  [ -f "$work/made/$(basename "$picture")" ] || {
    echo "$picture: scripts/make-pictures does not make it"
    failed=1
  }
done
exit $failed
