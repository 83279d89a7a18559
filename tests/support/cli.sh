# Shared by the tests of the command line. A script sets `tested` to the command that it tests, or to nothing for the
# program itself, and sources this file with its own arguments: PROGRAM VERSION.
# shellcheck shell=sh disable=SC2034 # some of it is for the scripts
weir=$1 version=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# Lines are not folded, and commands to paste begin with "weir".
COLUMNS=1000 PATH=$(dirname "$weir"):$PATH
# The sandbox allows all of TMPDIR to a command that writes: what it writes elsewhere in $work must be its output.
mkdir "$work/tmp"
TMPDIR=$work/tmp
export COLUMNS PATH TMPDIR

# run CODE ARGUMENT...: runs the command, and checks its exit code.
run() {
  expected=$1
  shift
  said="weir${tested:+ $tested} $*"
  "$weir" ${tested:+"$tested"} "$@" >"$work/out" 2>"$work/err"
  code=$?
  [ "$code" -eq "$expected" ] || fail "exit code $code, expected $expected"
}

fail() {
  failed=1
  echo "$said: $1"
  head -n 200 "$work/out" | cut -c 1-300 | sed 's/^/  out: /'
  sed 's/^/  err: /' "$work/err"
}

# has FILE PATTERN, hasnt FILE PATTERN, empty FILE, count NUMBER PATTERN
has() { grep -q -a -e "$2" "$work/$1" || fail "no '$2' on $1"; }
hasnt() { ! grep -q -a -e "$2" "$work/$1" || fail "'$2' on $1"; }
empty() { [ ! -s "$work/$1" ] || fail "something on $1"; }
count() {
  got=$(grep -c -e "$2" "$work/out")
  [ "$got" -eq "$1" ] || fail "$got lines with '$2', expected $1"
}

# wrong TEXT ARGUMENT...: the command line is rejected with this text.
wrong() {
  text=$1
  shift
  run 2 "$@"
  empty out
  has err "$text"
}

# One JSON value, or one per line; checked only if Python is available.
reads_json() {
  if command -v python3 >/dev/null; then
    python3 -c "import json, sys; $1" <"$work/out" 2>"$work/err" || fail "no JSON"
  fi
}
is_json() { reads_json 'json.load(sys.stdin)'; }
is_json_lines() { reads_json '[json.loads(line) for line in sys.stdin]'; }

# For commands that replay the recorded traces: sets `traces`, and waives the script if compressed files cannot be read.
use_traces() {
  traces=$(dirname "$0")/../data/traces
  # A replay uses the recorded settings and ignores those of the environment.
  export WEIR_ALLOC_CONF=no_such_key:1
  if "$weir" replay "$traces/cuda_graphs.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
    echo "waived: built without libzstd"
    exit 77
  fi
}
