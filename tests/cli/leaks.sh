#!/bin/sh
# leaks.sh PROGRAM VERSION: `weir leaks` on jobs with and without a leak. LEAKY_JOB is a program that leaks.
set -u
tested=leaks
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data

wrong 'FILE is missing'
wrong "unknown option '--what'" --what "$data/small_snapshot.pickle"
wrong '--list takes a number from 1 to 100000' --list 0 "$data/small_snapshot.pickle"
run 1 "$work/missing"
empty out
run 0 --help
has out '^Usage: weir leaks'
run 1 --device 7 "$data/small_snapshot.pickle"
has err 'there is no device 7'

# Too short to tell.
run 0 "$data/small_snapshot.pickle"
empty err
has out '^    leaks     not known: '

# A ring file: the phases are the steps, and the limit is recorded.
mkdir "$work/leak" "$work/clean"
limit=100000000
export WEIR_RECORD_MB=8 # the whole file is read
WEIR_RECORD=$work/leak "$LEAKY_JOB" 60 300000 $limit >"$work/steps" || fail 'the job failed'
WEIR_RECORD=$work/clean "$LEAKY_JOB" 60 0 $limit >"$work/steps" || fail 'the job failed'
leak=$(echo "$work"/leak/*.ring) clean=$(echo "$work"/clean/*.ring)
run 3 "$leak"
empty err
has out "^    steps     60, from phase 'forward'"
has out '^    leaks     292.97 KiB a step since step 0: '
has out ' a step  blocks of 292.97 KiB: 60 blocks, .* from step 0 to 59$'
has out '^                  0x[0-9a-f]*, 292.97 KiB, since entry [0-9]*$'
has out '^    runs out  in [0-9]* to [0-9]* steps (.*), at a limit of 95.37 MiB$'
has out "in 5[0-9] blocks of phase 'forward' outlived it by up to [0-9]* steps: blocks of 292.97 KiB$"
run 0 "$clean"
has out '^    leaks     none found$'
hasnt out 'runs out'
run 3 --memory 1GiB "$leak"
has out ', at a limit of 1.00 GiB$'
run 3 --memory 1TiB "$leak"
hasnt out 'runs out .*(\([^)]*\) to \1)' # the same time twice
run 3 "$leak" "$clean"
has out '^1 of 2 recordings leak'
run 3 --json "$leak" "$clean"
empty err
is_json
has out '^{"files": \[".*leak.*", ".*clean.*"\], "recordings": \[{"file": '
has out '"verdict": "leak", "reason": null, "bytes_per_step": 300000.0,'
has out '"runs_out": "range", "steps_least": [0-9]*, '
has out '"verdict": "none"'

# A ring that went round has the last steps only.
mkdir "$work/ring"
WEIR_RECORD_MB=1 WEIR_RECORD=$work/ring "$LEAKY_JOB" 2000 3000 1000000000 >"$work/steps" || fail 'the job failed'
run 3 "$work"/ring/*.ring
has out ' a step  blocks of 2.93 KiB: [0-9]* blocks, '
has out '^    runs out  in [0-9]* to [0-9]* steps '
said='weir summary'
"$weir" summary "$work"/ring/*.ring >"$work/out" 2>"$work/err" || fail 'it failed'
has out ' the ring was full'

# It runs out of memory, and `weir explain` says why.
WEIR_RECORD=$work/oom
mkdir "$WEIR_RECORD"
export WEIR_RECORD
"$LEAKY_JOB" 100000 300000 $limit >"$work/steps" || fail 'the job failed'
unset WEIR_RECORD
said='weir explain'
"$weir" explain "$work"/oom/*.ring >"$work/out" 2>"$work/err" || fail 'it failed'
has out '^  growth      A leak is the cause, since without it the request would have been served: .* a step, most by blocks of 292.97 KiB'
has out '^              weir leaks .*ring$'
"$weir" explain --json "$work"/oom/*.ring >"$work/out" 2>"$work/err" || fail 'it failed'
is_json
has out '"growth": {"is_cause": true, '

if "$weir" summary "$data/traces/llama_oom.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  echo "waived: built without libzstd"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# The recorded jobs do not leak. A graph's side stream keeps memory.
run 0 "$data"/traces/*.zst
empty err
hasnt out '^    leaks     [0-9]'
has out '^0 of 18 recordings leak$'
has out 'holds 54.00 MiB, 21.00 MiB of it free, and was last used at entry 1278$'
run 0 --json "$data/traces/llm_generate_small.pickle.zst"
is_json
has out '"source": "inferred"'

exit $failed
