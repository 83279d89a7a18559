#!/bin/sh
# record.sh PROGRAM VERSION: WEIR_RECORD from the outside: a program that is recorded without its knowledge, also when
# it is killed, and the commands that read the file.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
export WEIR_DRIVER=soft WEIR_SOFT_MEMORY=1GiB

# The folder is created, and the file name contains the rank.
export WEIR_RECORD="$work/files" WEIR_RECORD_MB=8
RANK=5 run 0 demo
empty err
set -- "$work"/files/weir-*-rank5-*.ring
{ [ $# -eq 1 ] && [ -f "$1" ]; } || fail "no file of rank 5, or several"
[ "$(wc -c <"$1")" -le 2097152 ] || fail "larger than it needs to be"
file=$1

# Programs that read are not recorded.
run 0 summary "$file"
empty err
has out "^    at end    0 bytes in use, as requested, of 0 bytes reserved: computed from the entries\$"
has out ': 1 device, [0-9]* entries, '
has out '^    history   complete: '
run 0 summary --json "$file"
has out '"end_reserved": 0, "end_allocated": null, '
has out '"dropped": 0, '
run 0 explain "$file"
empty err
has out 'at the peak of memory in use, entry '
[ "$(find "$work/files" -mindepth 1 | wc -l)" -eq 1 ] || fail "there are other files"

# The whole job, with the released pool of its graph, at the same addresses.
run 0 replay --check "$file"
empty err
has out ' 0 differ$'

# Killed while it works: the demo ends within half a second.
"$weir" demo >"$work/out" 2>"$work/err" &
child=$!
sleep 0.2
kill -KILL "$child"
wait "$child" 2>/dev/null
rm -f "$file"
set -- "$work"/files/*.ring
said="the file of a killed process"
[ -f "$1" ] || fail "there is none"
run 0 summary "$1"
empty err
has out ' in use, as requested, of .* reserved: computed from the entries; the process was killed, or still runs$'
run 0 replay --check "$1"
has out ' 0 differ$'

# A program that ends without destroying its allocator has closed nothing, and was not killed.
mkdir "$work/exits"
WEIR_RECORD=$work/exits "$WEIR_TEST_JOB" 2000 >"$work/job" 2>"$work/err"
set -- "$work"/exits/*.ring
run 0 summary "$1"
has out ' in use, as requested, of .* reserved: computed from the entries$'
run 0 replay --check "$1"
has out ' 0 differ$'

# A ring that wrapped many times is explained like one that has all entries.
for mb in 1 16; do
  WEIR_RECORD="$work/ring$mb" WEIR_RECORD_MB=$mb "$WEIR_TEST_JOB" 60000 >"$work/job" 2>"$work/err"
  said="long_job with $mb MiB"
  [ -s "$work/job" ] || fail "it failed"
  set -- "$work/ring$mb"/*.ring
  run 0 replay --check "$1"
  has out ' 0 differ$'
  run 0 summary --json "$1"
  is_json
  has out "\"end_reserved\": $(cut -d ' ' -f 1 "$work/job"), .* \"end_requested\": $(cut -d ' ' -f 2 "$work/job"), "
  run 0 explain --json "$1"
  is_json
  has out '"moment": "oom"'
  has out '"differences": 0, '
  grep -o '"request": .*, "device_free"\|"limit": .*"pins"' "$work/out" >"$work/explained$mb"
  run 0 explain "$1"
  has out ': out of memory, entry '
done
said="a ring of 1 MiB beside one of 16"
cmp -s "$work/explained1" "$work/explained16" || fail "$(diff "$work/explained1" "$work/explained16")"
set -- "$work"/ring1/*.ring
run 0 summary "$1"
has out '^    history   the last entries: the ring was full, and [0-9]* older ones were overwritten; '
has out '^    at end    .* in use, as requested, of .* reserved: computed from the entries$'
run 0 replay --check "$1"
has out '^  window      the last entries: '
has out ': placed as a checkpoint of the file has them$'
run 0 explain "$1"
has out 'is from a checkpoint in it, and the replay from there reproduces the file$'
run 0 explain --at end "$1"
run 3 tune "$1"
has out "^  began late: "

# Without its checkpoints the state is unknown, which is reported.
cp "$1" "$work/without"
dd if=/dev/zero of="$work/without" bs=1 seek=224 count=8 conv=notrunc 2>/dev/null # where checkpoints are
run 0 summary "$work/without"
has out 'the state before them is not known'
has out '^    peak      not known$'
has out '^    at end    not known$'
run 0 summary --json "$work/without"
is_json
has out '"peak_live": null, '
has out '"end_reserved": null, '
run 0 explain "$work/without"
has out '^  request     '
has out '^  state       not known: what was there before the first entry of device 0 is not known: '
hasnt out ' reserved$'
run 0 explain --json "$work/without"
is_json
has out '"reserved": null, '
for command in 'explain --at peak' 'explain --at end' 'replay --check' replay 'whatif --conf expandable_segments:True' tune; do
  # shellcheck disable=SC2086 # a command with its option
  run 1 $command "$work/without"
  has err 'what was there before the first entry of device 0 is not known: [0-9]* older entries were dropped, '
done

# Not a folder: one message, and the program continues.
: >"$work/plain"
WEIR_RECORD="$work/plain" run 0 demo
has err '^weir: warning: WEIR_RECORD=.*: not recording: cannot create a file there: '
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "more than one message"

# A truncated file.
set -- "$work"/files/*.ring
head -c 100000 "$1" >"$work/cut"
run 1 summary "$work/cut"
has err 'byte 100000: the file ends here, the recording has [0-9]* bytes'

exit $failed
