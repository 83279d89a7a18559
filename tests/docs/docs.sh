#!/bin/sh
# docs.sh SOURCE_DIR: the programs of the README and of docs/fragmentation.md are examples that the tests run, links
# within the project are valid, and no page and no variable is missing.
set -eu
cd "$1"
failed=0

# Without the comment at the top of the file.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2016 # no command is meant
sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' >"$work/readme.c"
sed -n '/^#include/,$p' examples/first.c >"$work/first.c"
diff "$work/readme.c" "$work/first.c" || {
  echo "README.md and examples/first.c differ"
  failed=1
}

# The program in docs/fragmentation.md is a part of an example.
# shellcheck disable=SC2016 # no command is meant
sed -n '/^```c$/,/^```$/p' docs/fragmentation.md | sed '/^```/d; /^$/d' >"$work/moving.c"
[ -s "$work/moving.c" ] || {
  echo "docs/fragmentation.md has no program any more"
  failed=1
}
grep -vxFf examples/moving_pages.c "$work/moving.c" && {
  echo "docs/fragmentation.md: examples/moving_pages.c does not have these lines"
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

# missing PAGE VARIABLE...: the page explains every variable.
missing() {
  page=$1
  shift
  for variable in "$@"; do
    grep -qE "(^|[^A-Z_])$variable([^A-Z_]|$)" "$page" || {
      echo "$page does not mention $variable"
      failed=1
    }
  done
}
# docs/environment.md explains the variables of Weir, and `weir help environment` all variables that any code reads: the
# arguments of getenv(), and names with an underscore in files that call it, where they may be in a list.
# shellcheck disable=SC2046 # words are meant
missing docs/environment.md CUDA_VISIBLE_DEVICES $(grep -rhoE '"WEIR_[A-Z_]+"' src cli --include='*.c' --exclude=environment.c |
  grep -vE '_ERROR_|"WEIR_VERSION"' | tr -d '"' | sort -u)
readers=$(grep -rlE 'getenv\(|os\.environ' src cli adapters python --include='*.c' --include='*.cpp' --include='*.py' |
  grep -vE '/tests/|/build.py$')
# shellcheck disable=SC2046,SC2086
missing cli/environment.c $(grep -hoE 'getenv\("[A-Z_]+"|environ.*"[A-Z_]+"|"[A-Z]+(_[A-Z]+)+"' $readers |
  grep -oE '"[A-Z_]+"' | tr -d '"' | grep -vxE 'LAZY|CUDA_SUCCESS|CUBLAS_STATUS_[A-Z_]+|[A-Z]+_VERSION' | sort -u)

exit $failed
