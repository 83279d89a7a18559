#!/bin/sh
# main.sh PROGRAM VERSION: the command line of the program itself. Other scripts here test the commands.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"

run 0 --version
empty err
[ "$(cat "$work/out")" = "weir $version" ] || fail "expected 'weir $version'"
run 0 -V
[ "$(cat "$work/out")" = "weir $version" ] || fail "expected 'weir $version'"

for help in --help -h help; do
  run 0 "$help"
  empty err
  for word in demo info Inspect: Predict: Share: Run: 'weir help environment' 'Exit'; do has out "$word"; done
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

# The environment and the settings have separate pages.
run 0 help environment
empty err
for word in WEIR_DRIVER WEIR_LOG WEIR_SOFT_MEMORY WEIR_RECORD NO_COLOR; do has out "^  $word\$"; done
has out 'Values: 1 to 1048576\. Default: 256\.$'
run 0 help settings
has out '^expandable_segments$'

run 2
empty out
has err '^Usage: weir COMMAND \[OPTION...\]$'
has err '^Inspect:$'
has err '^  explain  explain why a recorded job ran out of memory'
has err "^'weir COMMAND --help' has the options of a command"

run 2 inof
empty out
has err "^weir: unknown command 'inof'; did you mean 'info'? (see '.*weir --help')$"
run 2 EXPLIAN x
has err "; did you mean 'explain'?"
run 2 frobnicate
empty out
has err "unknown command 'frobnicate'; commands: summary, explain, .*demo, help"

run 2 --no-such-option
empty out
has err "'--no-such-option'"
has err 'weir --help'

run 2 help inof
empty out
has err "'inof'; did you mean 'info'?"

run 2 --version now
empty out

# A failed write is a failure, not a success with partial output.
if [ -w /dev/full ]; then
  said='weir --help >/dev/full'
  : >"$work/out"
  "$weir" --help >/dev/full 2>"$work/err"
  code=$?
  [ "$code" -eq 1 ] || fail "exit code $code, expected 1"
  # So it is if the answer is a failure, too.
  said='weir lint a:b >/dev/full'
  "$weir" lint a:b >/dev/full 2>"$work/err"
  code=$?
  [ "$code" -eq 1 ] || fail "exit code $code, expected 1"
  has err '^weir: cannot write the output: No space left on device$'
fi

exit $failed
