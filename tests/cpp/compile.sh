#!/bin/sh
# compile.sh SOURCE_DIR LIBRARY_DIR CXX: what the compiler makes of the C++ headers: a buffer costs no more than the C
# calls, a function that throws is refused with -fno-exceptions, no macro is left defined, each header compiles alone,
# and a result converts to std::expected. With WEIR_TEST_LONG set, the tests also run as C++17, C++20 and C++23 of every
# compiler that is installed.
set -eu
source=$1 libraries=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warnings='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'
include="-I$source/include"
cd "$source/tests/cpp"

fail() {
  echo "$@"
  exit 1
}

# calls FUNCTION: the calls in its hot part, from its label to the first return.
calls() {
  sed -n "/^$1:/,/ret/p" "$work/overhead.s" | grep -oE '(call|jmp)q?[[:space:]]+[A-Za-z_][A-Za-z_0-9]*' |
    sed 's/.*[[:space:]]//' | tr '\n' ' '
}

# shellcheck disable=SC2086 # flags are words
case $(uname -m) in
  x86_64)
    "$cxx" -std=c++17 -O2 -fno-asynchronous-unwind-tables $include -S overhead.cpp -o "$work/overhead.s"
    wanted='weir_malloc weir_malloc _Z3usePv weir_free weir_free '
    for function in with_c with_buffer; do
      got=$(calls $function)
      [ "$got" = "$wanted" ] || fail "$function calls '$got', expected '$wanted'"
    done
    echo "ok: a buffer makes the calls of the C interface and no others"
    ;;
esac

# shellcheck disable=SC2086
if "$cxx" -std=c++17 -fno-exceptions $include -c throws.cpp -o "$work/throws.o" 2>"$work/log"; then
  fail "throws.cpp compiles with -fno-exceptions"
fi
grep -q 'exceptions are off: call the one with try_' "$work/log" || {
  cat "$work/log"
  fail "throws.cpp: another error was expected"
}
echo "ok: a function that throws is refused without exceptions"

# Only include guards are new, compared with the headers that they include.
grep -hE '^#include <|^#include "weir/[a-z/]*\.h"' "$source"/include/weir/*.hpp |
  grep -v expected >"$work/c.cpp"
{
  cat "$work/c.cpp"
  printf '#include "weir/%s.hpp"\n' offline weir
} >"$work/cpp.cpp"
for file in c cpp; do
  # shellcheck disable=SC2086
  "$cxx" -std=c++17 $include -dM -E "$work/$file.cpp" | sed 's/^#define \([A-Za-z0-9_]*\).*/\1/' |
    LC_ALL=C sort >"$work/$file.macros"
done
left=$(LC_ALL=C comm -13 "$work/c.macros" "$work/cpp.macros" | grep -v '^WEIR_[A-Z]*_HPP$' || true)
[ -z "$left" ] || fail "the C++ headers leave macros defined: $left"
echo "ok: no macro is left defined"

# newest COMPILER: the name that it has for C++23.
newest() {
  if echo 'int main() {}' | "$1" -std=c++23 -x c++ - -o "$work/empty" 2>/dev/null; then echo c++23; else echo c++2b; fi
}

# expected COMPILER: a result converts to std::expected, if its library has that.
expected() {
  standard=$(newest "$1")
  # shellcheck disable=SC2086
  "$1" -std=$standard $warnings $include expected.cpp -o "$work/expected"
  status=0
  "$work/expected" || status=$?
  case $status in
    0) echo "ok: expected.cpp, $1 -std=$standard" ;;
    77) echo "not run: expected.cpp: the library of $1 -std=$standard has no std::expected" ;;
    *) fail "$1 -std=$standard: expected.cpp" ;;
  esac
}
expected "$cxx"

[ -n "${WEIR_TEST_LONG:-}" ] || exit 0

compilers=$cxx
for other in g++ clang++; do
  command -v $other >/dev/null && compilers="$compilers $other"
done
for compiler in $(echo "$compilers" | tr ' ' '\n' | sort -u); do
  expected "$compiler"
  for standard in c++17 c++20 "$(newest "$compiler")"; do
    # shellcheck disable=SC2086
    for header in "$source"/include/weir/*.hpp; do
      "$compiler" -std=$standard $warnings $include -fsyntax-only -x c++ -include "$header" /dev/null
    done
    for test in exceptions results; do
      flags=
      [ $test = exceptions ] || flags='-fno-exceptions -fno-rtti'
      # shellcheck disable=SC2086
      "$compiler" -std=$standard $warnings $flags -O1 $include -DWEIR_TEST_DATA="\"$source/tests/data\"" test_$test.cpp \
        -L"$libraries" -lweir -lweir_offline -Wl,-rpath,"$libraries" -o "$work/test"
      "$work/test" >"$work/log" || {
        cat "$work/log"
        fail "$compiler -std=$standard: test_$test.cpp"
      }
      echo "ok: test_$test.cpp, $compiler -std=$standard"
    done
  done
done
