#!/bin/sh
# explain.sh PROGRAM VERSION: `weir explain` on recorded histories, invalid files and invalid options.
set -u
tested=explain
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data

small=$data/small_snapshot.pickle
wrong 'FILE is missing'
wrong "unknown option '--what'" --what "$small"
wrong "(got 'noon')" --at noon "$small"
wrong "(got '-1')" --at -1 "$small"
wrong "(got '12x')" --at 12x "$small"
wrong '--at needs a value' "$small" --at
wrong "(got 'x')" --device x "$small"
wrong "(got '0')" --memory 0 "$small"
wrong '--fraction needs --memory' --fraction 0.5 "$small"
wrong 'takes only one FILE' "$small" "$small"
run 0 --help
has out '^Usage: weir explain'

run 0 "$small"
empty err
has out ': at the peak of memory in use, entry 39 of 40, '
has out 'the recording began late: 0 blocks (0 bytes) and 6 segments'
run 1 --at oom "$small"
empty out
has err 'no request that ran out of memory; --at peak'
run 1 --at 40 "$small"
has err 'no entry 40'
run 1 --device 3 "$small"
has err 'device 3'
printf 'garbage\n' >"$work/garbage"
run 1 "$work/garbage"
has err '^weir explain: .*/garbage: not a recording: expected a file of '

oom=$data/traces/llama_oom.pickle.zst
if "$weir" explain "$oom" 2>&1 | grep -qi 'without.*zstd'; then
  echo "waived: built without libzstd"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# The request, the memory in use, the holes, the blocks that keep them, and settings that would have helped.
run 0 "$oom"
empty err
has out ': out of memory, entry 13750 of 14531, '
has out '^  request     1.82 GiB on the default stream'
has out '^  limit       between 12.15 and 13.64 GiB, inferred from requests that succeeded and failed$'
has out '^  missing     at most 1.49 GiB; --memory and --fraction'
has out '^  sufficient  a limit of 13.64 GiB from the start: replayed in steps of 2 MiB. The recorded requests after the failure need no more$'
has out '^  why         Fragmentation: 1.95 GiB is free, but in blocks of at most 1.11 GiB'
has out '^  11.82 GiB reserved$'
has out '      9.87 GiB  in use, as requested, 392 blocks$'
has out 'in the way: 5 blocks, 410.89 MiB in total; without them 1 segment of 1.51 GiB could be released$'
has out '^       1.51 GiB  1.11 GiB free, held by 5 blocks, 410.89 MiB in total$'
has out '82.18 MiB, allocated after .*, 18.6 ms old (entry 13568)$'
has out '^    yes         expandable_segments:True: 11.86 GiB reserved at the peak, '
has out '^    no          empty_cache() right before the request'
has out "^  to paste    export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'\$"
hasnt out "$(printf '\033')"

# With the job's own limit; and without one, where the request does not fail.
run 0 --memory 150109880320 --fraction 0.09 "$oom"
has out '^  limit       12.58 GiB$'
has out '^  missing     1.06 GiB: the request needs a new segment of 1.82 GiB, and 780.03 MiB was left$'
has out '^  sufficient  a limit of 13.64 GiB from the start: replayed'
has out '^    yes         expandable_segments:True'

# Only the true size keeps the inferred limit, which is reported. Values that contradict the file are refused.
run 0 --memory 150109880320 "$oom"
empty err
has out ': out of memory, entry 13750 of 14531, '
has out '^  limit       between 12.15 and 13.64 GiB, inferred'
has out '^  missing     at most 1.49 GiB'
has out '^  note        --memory alone does not explain the failure, so the limit was inferred'
refused() { # TEXT ARGUMENT...
  text=$1
  shift
  run 1 "$@" "$oom"
  empty out
  has err "$text"
}
refused '--memory 80 bytes is less than the 12.15 GiB that was reserved at entry 13694: give all of' --memory 80
refused '--memory 12.00 GiB is less than the 12.15 GiB' --memory 12GiB
refused '--memory 80.00 GiB is too little: at entry 13750 the device had 118.97 GiB free' --memory 80GiB
refused '--fraction 0.05 of --memory 139.80 GiB is 6.99 GiB, less than' --memory 150109880320 --fraction 0.05
refused 'allow 69.90 GiB, with which the recording is not reproduced' --memory 150109880320 --fraction 0.5

# Without its first entries the answer is the same, and inferred values are marked as such.
run 0 "$data/late/llama_oom.pickle.zst"
empty err
has out ': out of memory, entry 5032 of 5813, '
has out '^  why         Fragmentation: 1.95 GiB is free, but in blocks of at most 1.11 GiB'
has out 'the recording began late: 333 blocks (2.32 GiB) and 156 segments from before it were inferred backwards '
has out 'the replay from there reproduces the file$'
has out 'is allocated again, in order of address: a yes is likely but not certain$'
has out '^    yes         expandable_segments:True'
COLUMNS=120 run 0 "$data/late/llama_oom.pickle.zst"
[ "$(grep -v 'pickle.zst' "$work/out" | awk 'length > m { m = length } END { print m }')" -le 120 ] || fail "a line of more than 120"
run 0 "$data/late/cuda_graphs_expandable.pickle.zst"
has out 'the recording began late: 62 blocks'

# A device that is simply too small: its memory is a limit. The failure is also written as a snapshot, if there is time.
WEIR_DRIVER=soft WEIR_SOFT_MEMORY=32MiB WEIR_RECORD="$work/full" WEIR_RECORD_MB=8 "$weir" demo >/dev/null 2>&1
for file in "$work"/full/*; do
  run 0 "$file"
  empty err
  has out ': out of memory, entry '
  has out '^  limit       32.00 MiB: '
  has out '^  missing     14.00 MiB: the request needs a new segment of 20.00 MiB, and 6.00 MiB was left$'
  has out '^  sufficient  a device with 46.00 MiB from the start'
  hasnt out 'Fragmentation'
  hasnt out ' 0 bytes '
done

# No setting helps where there is too little memory.
run 0 "$data/histories/pools_capped.pickle.zst"
has out '^  why         .*ot enough memory: '
has out '^    no          none of the [0-9]* settings that were tried$'
has out '^  next        no setting helps'

for at in peak end 5000; do
  run 0 --at $at "$data/traces/resnet_stacks.pickle.zst"
  empty err
  hasnt out '^  request '
  has out ' reserved$'
done
has out 'blocks batch_norm (functional.py:'
run 0 --at peak "$data/traces/resnet_stacks.pickle.zst"
count 1 '^ *3.79 GiB  155 blocks batch_norm (functional.py:[0-9]*), from w_resnet_multiscale (workloads.py:[0-9]*)$'
count 1 'blocks _conv_forward (conv.py:'

# The guide shows the actual output.
said='docs/tools/guide-oom.md'
root=$(dirname "$0")/../..
case $weir in /*) ;; *) weir=$PWD/$weir ;; esac
sed -n '/^\$ weir explain /,/^```$/p' "$root/docs/tools/guide-oom.md" | sed '1d;$d' >"$work/err"
(cd "$root" && COLUMNS=120 "$weir" explain tests/data/traces/llama_oom.pickle.zst) >"$work/out"
cmp -s "$work/out" "$work/err" || fail "it shows another output (err) than there is (out)"
# The output fits a screen.
[ "$(wc -l <"$work/out")" -le 40 ] || fail "more than 40 lines"
[ "$(awk 'length > m { m = length } END { print m }' "$work/out")" -le 120 ] || fail "a line of more than 120"

if command -v python3 >/dev/null; then
  # Several devices, as in the file of one rank: the one that ran out of memory first, then one with a history.
  cat >"$work/make.py" <<'END'
import pickle, sys
def event(action, address, size):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 5}
def segment(device, address):
    block = {"address": address, "size": 20 << 20, "requested_size": 20 << 20, "state": "active_allocated"}
    return {"device": device, "address": address, "total_size": 20 << 20, "stream": 0, "segment_type": "large", "blocks": [block]}
one = [event("segment_alloc", 1 << 40, 20 << 20), event("alloc", 1 << 40, 20 << 20)]
oom = {"action": "oom", "device_free": 77, "size": 1 << 40, "stream": 0, "time_us": 9}
two = [event("segment_alloc", 1 << 41, 20 << 20), event("alloc", 1 << 41, 20 << 20), oom, oom]
pickle.dump({"segments": [segment(1, 1 << 40), segment(3, 1 << 41)], "device_traces": [[], one, [], two]}, open(sys.argv[1], "wb"))
pickle.dump({"segments": [], "device_traces": []}, open(sys.argv[2], "wb"))
pickle.dump({"segments": [segment(0, 1 << 40)], "device_traces": [[]]}, open(sys.argv[3], "wb"))
# The recording begins late and lists no segments: the state when memory ran out is in no file.
lost = [event("free_requested", 1 << 43, 20 << 20), event("free_completed", 1 << 43, 20 << 20)]
lost += [event("alloc", 1 << 43, 5 << 20), oom] + one
pickle.dump({"segments": [], "device_traces": [lost]}, open(sys.argv[4], "wb"))
END
  python3 "$work/make.py" "$work/rank.pickle" "$work/nothing.pickle" "$work/segments.pickle" "$work/lost.pickle" ||
    fail 'no file to explain'

  # Without a history it is not known whether memory ran out; and no command refers to another that knows no more.
  run 0 "$work/segments.pickle"
  empty err
  hasnt out 'othing ran out of memory'
  has out '^  history     none: whether memory ran out, and its peak, are not known$'
  has out '^  next        record a history: call torch.cuda.memory._record_memory_history('
  "$weir" summary "$work/segments.pickle" >"$work/out" 2>"$work/err"
  said='weir summary segments.pickle'
  hasnt out 'next: weir explain'
  has out '^  next: record a history: '
  run 0 "$work/lost.pickle"
  has out '^  failed      memory ran out 1 time, first at entry 3: a request of [0-9.]* [GT]iB. The state at that moment is not known'
  has out '^  next        to see where the replay differs from the file, run:$'
  has out '^              weir replay --check .*lost.pickle$'
  run 0 "$work/rank.pickle"
  empty err
  has out ': out of memory, entry 2 of 4, .*, device 3$'
  has out 'memory ran out 2 times, and this is the first; --at 3 explains the next$'
  has out 'the file has other devices as well: --device 1$'
  run 0 --device 1 "$work/rank.pickle"
  has out '^  next        to search for settings that need less, run:$'
  has out '^              weir tune --device 1 '
  run 1 "$work/nothing.pickle"
  has err 'there is no device 0: nothing was recorded$'
  for command in replay 'replay --check' 'whatif --conf expandable_segments:True' tune; do
    said="weir $command rank.pickle"
    # shellcheck disable=SC2086
    "$weir" $command "$work/rank.pickle" >"$work/out" 2>"$work/err"
    has out 'rank.pickle, device 3: '
    has err 'histories of other devices as well: this is device 3; --device 1 selects another$'
    # shellcheck disable=SC2086
    "$weir" $command --device 1 "$work/rank.pickle" >"$work/out" 2>"$work/err"
    empty err
    has out 'rank.pickle, device 1: '
  done

  for file in "$data/histories/capped_streams.pickle.zst" "$data/histories/pools.pickle.zst" "$oom"; do
    run 0 --json "$file"
    python3 -c '
import json, sys
x = json.load(sys.stdin)
assert sum(x["bytes"].values()) == x["reserved"], x["file"]
assert (x["moment"] == "oom") == bool(x["request"]), x["file"]
holes = [hole["size"] for hole in x["holes"]]
assert holes == sorted(holes, reverse=True), x["file"]
for use in ["free_whole", "free_split", "free_class", "free_stream", "free_pool"]:
    listed = sum(hole["size"] for hole in x["holes"] if hole["use"] == use)
    assert listed == x["bytes"][use] or (len(holes) == 1000 and listed < x["bytes"][use]), (x["file"], use)
assert x["differences"] == 0 and x["proven"] == (x["moment"] == "oom"), x["file"]
assert x["labels"].keys() == x["bytes"].keys(), x["file"]
' <"$work/out" 2>"$work/err" || fail "not what was expected"
  done
  # The page reads the same object by its keys; "unknown" is there if nothing could be explained.
  for key in $(grep -o 'x\["[a-z_]*"\]' "$(dirname "$0")/../../viewer/src/explain.ts" | tr -cd 'a-z_\n' | sed 's/^x//'); do
    [ "$key" = unknown ] || has out "\"$key\": "
  done
fi

# A recording of WEIR_RECORD has the limit, whether it was reached or not.
mkdir "$work/rings"
WEIR_RECORD=$work/rings "$LEAKY_JOB" 20 0 200000000 >"$work/steps" || fail 'the job failed'
run 0 "$work"/rings/*.ring
has out '^  limit       190.73 MiB, as recorded$'
hasnt out 'inferred\|allocator released'
run 0 --json "$work"/rings/*.ring
has out '"limit": 200000000, .*"limit_is_inferred": false, "limit_is_recorded": true'
rm "$work"/rings/*
WEIR_RECORD=$work/rings "$LEAKY_JOB" 400 1000000 200000000 >"$work/steps" || fail 'the job failed'
run 0 "$work"/rings/*.ring
has out '^  limit       190.73 MiB, as recorded$'
has out 'the limit is the program.s own (.*WEIR_MEMORY_LIMIT'
hasnt out 'inferred'

# A process that is limited in its address space is no device that is out of memory. A sanitizer cannot run there.
# shellcheck disable=SC3045 # dash and bash have it
limited() { (ulimit -v 150000 && "$weir" "$@"); }
if limited --version >/dev/null 2>&1; then
  for command in explain replay 'whatif --conf=' tune; do
    said="weir $command with little address space"
    # shellcheck disable=SC2086 # word splitting is intended
    limited $command "$oom" >"$work/out" 2>"$work/err"
    [ $? = 1 ] || fail 'no failure'
    has err 'too little address space for metadata'
    empty out
  done
fi

exit $failed
