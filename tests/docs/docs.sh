#!/bin/sh
# docs.sh SOURCE_DIR: links within the project are valid, and no page and no variable is missing. extract.py checks the
# code of the pages, and site.py the anchors.
set -eu
cd "$1"
failed=0

pages=$(find docs compute/docs -name '*.md' | sort)
for page in *.md $pages; do
  # shellcheck disable=SC2013 # a link has no spaces
  for link in $(grep -oE '\]\([^)]*\)|(src|srcset|href)="[^"]*"' "$page" |
    sed -E 's/^\]\(//; s/\)$//; s/^[a-z]+="//; s/"$//; s/#.*//'); do
    case $link in
      *://*) continue ;;
    esac
    if [ ! -e "$(dirname "$page")/$link" ]; then
      echo "$page: there is no $link"
      failed=1
    fi
  done
done

for picture in docs/pictures/*; do
  name=$(basename "$picture")
  if ! grep -q "pictures/$name" README.md $pages; then
    echo "$picture is on no page"
    failed=1
  fi
  if [ $(($(wc -c <"$picture"))) -gt 300000 ]; then
    echo "$picture has more than 300 KB"
    failed=1
  fi
  name=${name%.*}
  if ! grep -qE "$name|${name%%-*} ${name#*-}( |$)" scripts/make-pictures viewer/test/pictures.mjs; then
    echo "$picture: scripts/make-pictures does not make it"
    failed=1
  fi
done

for page in $pages; do
  index=docs/README.md
  case $page in
    docs/README.md) continue ;;
    compute/docs/README.md) name=../$page ;;
    compute/*) index=compute/docs/README.md name=${page#compute/docs/} ;;
    *) name=${page#docs/} ;;
  esac
  if ! grep -q "]($name)" $index; then
    echo "$index does not mention $name"
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
# In the libraries, the files of the two tables alone read the environment.
others=$(grep -rlE '(^|[^_a-z])(secure_)?getenv\(' src cli compute/src compute/python compute/tools --include='*.[ch]' |
  grep -vxE 'src/base/(environment|system)\.c|compute/src/environment\.c|compute/.*/tests/.*') || true
[ -z "$others" ] || { echo "read the environment past its table: $others"; failed=1; }
# The table of environment variables, which `weir help environment` and docs/tools/environment.md print, has all that
# any code reads: the arguments of getenv(), and names with an underscore in files that call it, where they may be in a
# list.
readers=$(grep -rlE 'getenv\(|os\.environ' cli adapters python --include='*.c' --include='*.cpp' --include='*.py' |
  grep -vE '/tests/|/build.py$|^python/parts.py$')
# shellcheck disable=SC2046,SC2086
missing src/base/environment_table.h $(grep -hoE 'getenv\("[A-Z_]+"|environ.*"[A-Z_]+"|"[A-Z]+(_[A-Z]+)+"' $readers |
  grep -oE '"[A-Z_]+"' | tr -d '"' | grep -vxE 'LAZY|TYPE_CHECKING|CUDA_SUCCESS|CUBLAS_STATUS_[A-Z_]+|[A-Z]+_VERSION' | sort -u)

exit $failed
