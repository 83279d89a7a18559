#!/bin/sh
# diff.sh PROGRAM VERSION: `weir diff` on pairs of recordings. LEAKY_JOB is a program that leaks.
set -u
tested='diff'
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data
small=$data/small_snapshot.pickle

wrong 'FILE is missing'
wrong 'takes two FILEs: before and after' "$small"
wrong "takes two FILEs (got '.*' as well)" "$small" "$small" "$small"
wrong "fail-above takes a percentage such as 2% (got 'x')" --fail-above x "$small" "$small"
wrong '--by takes a comma-separated list of stack, size, stream, phase and class' --by colour "$small" "$small"
wrong 'only one of the two files can be the standard input' - -
run 1 --device 7 "$small" "$small"
has err 'small_snapshot.pickle: there is no device 7; valid: 0$'
printf '(dS"segments"\n(lsS"device_traces"\n(ls.' >"$work/nothing.pickle"
run 1 "$small" "$work/nothing.pickle"
has err 'nothing.pickle: there is no device 0: nothing was recorded$'
run 1 "$small" "$work/missing"
empty out
run 0 --help
has out '^Usage: weir diff \[OPTION...\] FILE FILE$'

# A file does not differ from itself.
run 0 --fail-above 0% "$small" "$small"
empty err
count 3 '^    no difference$'
has out '^  within      no total grew by more than 0 %$'
run 0 --json "$small" "$small"
is_json
hasnt out '"change": "\(grew\|shrank\|appeared\|disappeared\)"'

# Jobs with another number of steps, and with a leak.
export WEIR_RECORD_MB=8 # the whole file is read
for job in '30 0' '60 0' '60 300000'; do
  name=$(echo "$job" | tr ' ' -)
  mkdir "$work/$name"
  # shellcheck disable=SC2086 # two words
  WEIR_RECORD=$work/$name "$LEAKY_JOB" $job 100000000 >"$work/steps" || fail 'the job failed'
  mv "$work/$name"/*.ring "$work/$name.ring"
done
run 0 --fail-above 5% "$work/30-0.ring" "$work/60-0.ring"
has out '^    peak in use  .* 0 bytes  +0.0 %$'
has out '^    in use in a step '
has out '^  by phase$'
run 3 --fail-above 5% "$work/60-0.ring" "$work/60-300000.ring"
empty err
has out '^  grew  *[a-z ]* by [0-9.]* %, more than 5 %$'
has out '^ *+1[67].[0-9]* MiB  appeared    0 bytes -> 1[67].[0-9]* MiB at the end  292.97 KiB$'
run 0 "$work/60-0.ring" "$work/60-300000.ring"
run 0 --by size --list 1 "$work/60-0.ring" "$work/60-300000.ring"
hasnt out '^  by stack$'
run 3 --json --fail-above 5% "$work/60-0.ring" "$work/60-300000.ring"
is_json
has out '"name": "292.97 KiB", "change": "appeared", '
has out '"fail_above": {"percent": 5.0, .*"failed": true}}$'

if "$weir" summary "$data/traces/llama_oom.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  echo "waived: built without libzstd"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# Settings change what is reserved, and not what is in use.
run 0 --fail-above 2 "$data/traces/llama_varlen.pickle.zst" "$data/traces/llama_varlen_expandable.pickle.zst"
has out '^    peak in use  *18.17 GiB ->  *18.17 GiB  *0 bytes  +0.0 %$'
has out '^    peak reserved  *32.55 GiB ->  *19.97 GiB  *-12.58 GiB  -38.7 %$'
count 5 '^    no difference$'
run 3 --fail-above 2 "$data/traces/llama_varlen_expandable.pickle.zst" "$data/traces/llama_varlen.pickle.zst"
has out '^  grew        peak reserved by 6[0-9.]* %, more than 2 %$'
run 0 "$data/traces/resnet_stacks.pickle.zst" "$data/traces/resnet_stacks.pickle.zst"
has out '^  stacks      8 the same, 0 moved'

exit $failed
