#!/bin/sh
# record_running.sh PROGRAM VERSION: weir record switches the history of a running process on, and what it writes
# replays exactly. LIVE_JOB is a job to record.
set -u
tested=record
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
WEIR_STATS_PAGE=$work/pages WEIR_DRIVER=soft
export WEIR_STATS_PAGE WEIR_DRIVER
cd "$work" || exit 1

wrong 'expected the id of a process' nonsense
run 1 1073741824
has err 'there is no process 1073741824$'
run 1 $$
has err "process $$ has no Weir, is another user's, or has WEIR_STATS_PAGE=0, and a history cannot be switched on"

# start NAME WORD...: starts a job and waits until its page is written.
start() {
  name=$1
  shift
  mkfifo "$work/$name.in"
  "${LIVE_JOB:?}" "$@" <"$work/$name.in" >"$work/$name.out" 2>"$work/$name.err" &
  pid=$!
  sleep 100 >"$work/$name.in" & # keeps it open
  echo $! >>"$work/sleepers"
  tries=0
  until [ -e "$work/$name.out" ] && grep -q ready "$work/$name.out" || [ "$tries" -eq 200 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
}
# shellcheck disable=SC2317 # called by the trap
end() {
  [ ! -e "$work/sleepers" ] || xargs kill <"$work/sleepers" 2>/dev/null
  rm -rf "$work"
}
trap end EXIT
# replays FILE: every entry of it has the address and the size that it had.
replays() {
  said="weir replay --check $1"
  "$weir" replay --check "$1" >"$work/out" 2>"$work/err" || fail 'it failed'
  has out ', 0 differ$'
  hasnt out '^ *entries  *0 '
}

# ---- For a time ----

start first
first=$pid
mkfifo "$work/taken.ring"
run 1 $pid -o taken.ring
has err 'the file exists already'
run 1 $pid -o none/first.ring
has err 'it cannot create a file there'
run 0 $pid --seconds 1 -o first.ring
has err "recording process $pid for 1 s"
has out '/first.ring: '
replays first.ring
"$weir" summary first.ring >"$work/out" 2>"$work/err" || fail 'weir summary'
has out ' allocations, '
run 1 $pid -o again.ring
has err 'it keeps a history already, or was recorded before'

# ---- A file that wraps, and an end by hand ----

start second
run_in_background() {
  "$weir" record "$@" >"$work/out" 2>"$work/err" &
  recorder=$!
  tries=0
  until grep -q '^recording process' "$work/err" || [ "$tries" -eq 100 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
}
said='weir record, ended by a signal'
run_in_background $pid --seconds 1000 --size 1MiB --stacks none -o small.ring
run 1 $pid -o other.ring
has err "process $pid is being recorded already"
sleep 1
kill -TERM $recorder
wait $recorder || fail "exit code $?"
[ "$(wc -c <small.ring)" -le 1048576 ] || fail 'the file is larger than 1 MiB'
replays small.ring

# ---- Until it runs out of memory ----

WEIR_SOFT_MEMORY=600MiB
export WEIR_SOFT_MEMORY
start third 8
unset WEIR_SOFT_MEMORY
run 3 $pid --until-oom -o oom.ring
has out 'up to a request that failed for lack of memory'
replays oom.ring
"$weir" explain oom.ring >"$work/out" 2>"$work/err"
has out 'out of memory'

# ---- A process that is killed, and one that is stopped ----

start fourth
said='weir record of a process that is killed'
run_in_background $pid --seconds 1000 -o killed.ring
sleep 1
kill -9 $pid
wait $recorder || fail "exit code $?"
has out 'up to the end of the process'
replays killed.ring

kill -STOP "$first"
run 1 "$first"
has err "process $first does not answer: it is stopped"
kill -CONT "$first"
exit $failed
