#!/bin/sh
# json_fd.sh PROGRAM VERSION: --json-fd writes the JSON of --json beside the text, in one run.
set -u
tested=explain
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
file=$(dirname "$0")/../data/traces/llama_oom.pickle.zst

# both ARGUMENT...: the text is that of the command, and the JSON that of --json.
both() {
  said="weir $*"
  "$weir" "$@" >"$work/text" 2>"$work/err"
  code=$?
  "$weir" "$@" --json >"$work/json"
  "$weir" "$@" --json-fd 3 >"$work/out" 3>"$work/beside"
  [ $? = $code ] || fail "$*: another exit code"
  cmp "$work/text" "$work/out" || fail "$*: another text"
  cmp "$work/json" "$work/beside" || fail "$*: another JSON"
}
both explain "$file"
both explain --message "$(dirname "$0")/../data/corpus/message/native"
both summary "$file" "$file"
both leaks "$file" "$file"
both diff "$file" "$file"
both whatif --conf expandable_segments:True "$file"
both tune "$file"
both lint max_split_size:1

run 2 --json-fd 2 "$file"
has err "takes the number of a file descriptor above 2 (got '2')"
run 1 --json-fd 9 "$file"
has err '9: that file descriptor is not open for writing'
said='weir explain --json-fd 3 --json-fd 4'
"$weir" explain --json-fd 3 --json-fd 4 "$file" >"$work/out" 2>"$work/err" 3>"$work/beside" 4>&3
[ $? = 1 ] || fail 'a second file descriptor is accepted'
empty out
has err '--json-fd was given twice$'
"$weir" explain --json-fd 3 "$file" >"$work/out" 2>"$work/err" 3>/dev/full
[ $? = 1 ] || fail 'a full disk is not an error'
has err 'cannot write the output: No space left on device'
exit $failed
