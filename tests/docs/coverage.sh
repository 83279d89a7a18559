#!/bin/sh
# coverage.sh SOURCE_DIR: every test that docs/evidence/coverage.md and compute/docs/compute-coverage.md name exists,
# and its program runs it. The core's page names none of compute's.
# shellcheck disable=SC2016 # the backticks are those of the page
set -eu
cd "$1"
failed=0
number=0

# file_of PROGRAM: `stream` is tests/runtime/test_stream.c, `alloc/pools` tests/alloc/test_pools.c, `python/graph`
# python/tests/test_graph.py or the file of this name in compute/python/tests.
file_of() {
  case $1 in
    python/*)
      test_file=python/tests/test_${1#python/}.py
      [ -e "$test_file" ] || test_file=compute/$test_file
      echo "$test_file"
      ;;
    compute/*) echo "compute/tests/test_${1#*/}.c" ;;
    */*) echo "tests/${1%%/*}/test_${1#*/}.c" ;;
    *) echo "tests/runtime/test_$1.c" ;;
  esac
}

complain() {
  echo "$page: $1"
  failed=1
}

# check PROGRAM TEST
check() {
  file=$(file_of "$1")
  if [ ! -e "$file" ]; then
    complain "\`$1: $2\`: there is no $file"
    return
  fi
  case $page:$file in
    docs/*:compute/*) complain "\`$1: $2\` is a test of compute, which has a page of its own" ;;
    *.py) grep -q "^def $2(" "$file" || complain "\`$1: $2\`: no such test in $file" ;;
    *)
      # TEST(name), or a macro of the file that ends in one.
      grep -qE "^[A-Z_]+\(${2#test_}[,)]" "$file" || complain "\`$1: $2\`: no such test in $file"
      ;;
  esac
}

for page in docs/evidence/coverage.md compute/docs/compute-coverage.md; do
  tests=$(grep -oE '`[a-z_/]+: test_[A-Za-z0-9_]+`' "$page" | tr -d '`:' | sort -u | tr ' ' ':')
  for pair in $tests; do
    check "${pair%%:*}" "${pair#*:}"
    number=$((number + 1))
  done
  # `test_x` in `a`, `b` and `c`: each of the three has it.
  several=$(tr '\n' ' ' <"$page" | tr -s ' ' |
    grep -oE '`test_[A-Za-z0-9_]+` in (`[a-z_/]+`(, | and )?)+' | sed 's/` in `/:/; s/, `/:/g; s/ and `/:/g; s/[`, ]//g')
  for list in $several; do
    test=${list%%:*}
    for program in $(echo "${list#*:}" | tr ':' ' '); do
      check "$program" "$test"
    done
  done

  # `name`, all of it; all of `name`.
  for program in $(tr '\n' ' ' <"$page" | tr -s ' ' | grep -oE '`[a-z_/]+`, all of it|all of `[a-z_/]+`' |
    grep -oE '`[^`]+`' | tr -d '`' | sort -u); do
    [ -e "$(file_of "$program")" ] || complain "\`$program\`: there is no $(file_of "$program")"
  done
done
[ "$number" -ge 300 ] || complain "$number tests are named: they are no longer found"
exit $failed
