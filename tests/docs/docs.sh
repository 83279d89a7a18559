#!/bin/sh
# docs.sh SOURCE_DIR: the README's first program is the example that the tests run, links inside the project lead
# somewhere, and no page and no variable is forgotten.
set -eu
cd "$1"
failed=0

# Without the comment that stands above it in the file.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2016 # no command is meant
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$work/readme.c"
sed -n '/^#include/,$p' examples/first.c >"$work/first.c"
diff "$work/readme.c" "$work/first.c" || {
  echo "README.md and examples/first.c differ"
  failed=1
}

for page in *.md docs/*.md; do
  # shellcheck disable=SC2013 # a link has no spaces
  for link in $(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//; s/#.*//'); do
    case $link in
      *://*) continue ;;
    esac
    if [ ! -e "$(dirname "$page")/$link" ]; then
      echo "$page: there is no $link"
      failed=1
    fi
  done
done

for page in docs/*.md; do
  name=$(basename "$page")
  if [ "$name" != README.md ] && ! grep -q "]($name)" docs/README.md; then
    echo "docs/README.md does not mention $name"
    failed=1
  fi
done

# Every variable that the code reads is explained in docs/environment.md, and in the program's help.
variables=$(grep -rhoE '"WEIR_[A-Z_]+"' src cli --include='*.c' | grep -v _ERROR_ | tr -d '"' | sort -u)
for variable in CUDA_VISIBLE_DEVICES $variables; do
  for page in docs/environment.md cli/main.c; do
    if ! grep -q "$variable" "$page"; then
      echo "$page does not mention $variable"
      failed=1
    fi
  done
done

exit $failed
