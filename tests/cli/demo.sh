#!/bin/sh
# demo.sh PROGRAM VERSION: `weir demo` runs through on the software device, in both clocks, and fails as it should.
set -u
weir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
unset CUDA_VISIBLE_DEVICES
export WEIR_DRIVER=soft

# run CODE ARGUMENT...: runs the command, and checks its exit code.
run() {
  expected=$1
  shift
  said="weir demo $*"
  "$weir" demo "$@" >"$work/out" 2>"$work/err"
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

for clock in threads stepped; do
  export WEIR_SOFT_CLOCK=$clock
  run 0
  empty err
  for word in pipeline overlap graph 'All results are right'; do has out "$word"; done

  run 0 --json
  empty err
  has out '"ok": true'
  has out '"graph_nodes": 3, "graph_replays": 10'
  if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; json.load(sys.stdin)' <"$work/out" 2>"$work/err" || fail "no JSON"
  fi
done

# In counted time the overlap is exact: two streams of 5 ms, one beside the other.
has out '"device_ms": 5\.0'

export CUDA_VISIBLE_DEVICES=
run 1
empty out
has err 'WEIR_ERROR_NO_DEVICE'
unset CUDA_VISIBLE_DEVICES

export WEIR_SOFT_MEMORY=2MiB
run 1
empty out
has err 'out of memory'

exit $failed
