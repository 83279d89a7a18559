#!/bin/sh
# main.sh PROGRAM VERSION: what the command line itself answers. The commands' own answers are tested beside it.
set -u
weir=$1 version=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# run CODE ARGUMENT...: runs the program, and checks its exit code.
run() {
  expected=$1
  shift
  said="weir $*"
  "$weir" "$@" >"$work/out" 2>"$work/err"
  code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}

fail() {
  failed=1
  echo "$said: $1"
  sed 's/^/  out: /' "$work/out"
  sed 's/^/  err: /' "$work/err"
}

# has FILE PATTERN, empty FILE
has() { grep -q -e "$2" "$work/$1" || fail "no '$2' on $1"; }
empty() { [ ! -s "$work/$1" ] || fail "something on $1"; }

run 0 --version
empty err
[ "$(cat "$work/out")" = "weir $version" ] || fail "expected 'weir $version'"
run 0 -V
[ "$(cat "$work/out")" = "weir $version" ] || fail "expected 'weir $version'"

for help in --help -h help; do
  run 0 "$help"
  empty err
  for word in demo info help WEIR_DRIVER WEIR_LOG WEIR_SOFT_MEMORY WEIR_SOFT_CLOCK 'Exit'; do has out "$word"; done
done

for command in info demo; do
  run 0 help "$command"
  has out "weir $command"
  empty err
  run 0 "$command" --help
  has out "weir $command"
  empty err
  run 2 "$command" --no-such-option
  empty out
  has err .
done

run 2
empty out
has err Usage

run 2 inof
empty out
has err "'inof'"
has err 'bench, demo'

run 2 --no-such-option
empty out
has err "'--no-such-option'"
has err 'weir --help'

run 2 help inof
empty out
has err "'inof'"
has err 'bench, demo'

run 2 --version now
empty out

# A failed write is a failure, not a success with half an answer.
if [ -w /dev/full ]; then
  said='weir --help >/dev/full'
  : >"$work/out"
  "$weir" --help >/dev/full 2>"$work/err"
  code=$?
  [ "$code" -eq 1 ] || fail "exit code $code, expected 1"
fi

exit $failed
