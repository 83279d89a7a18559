#!/bin/sh
# tune.sh PROGRAM VERSION: `weir tune`: the best settings, and how much they save.
set -u
tested=tune
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
use_traces

file=$traces/resnet_stacks.pickle.zst
run 0 --fit "$file"
empty err
has out '9742 entries, reproduced under the recorded settings$'
has out '^[2-9][0-9][0-9] settings tried'
has out '^ *8.90 GiB   25.4 % .* expandable_segments:True   <- best$'
has out '^ *11.93 GiB    0.0 % .* recorded: (defaults)$'
has out "^  export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'$"
has out '^Peak reserved memory is 8.90 GiB instead of 11.93 GiB: 3.03 GiB less, 25.4 %.'
has out 'GiB under the recorded settings, with [0-9]* retries$'
has out 'GiB under the best settings, with [0-9]* retries$'
hasnt out "$(printf '\\033')"

# The exported settings have the predicted effect.
conf=$(sed -n "s/^  export PYTORCH_CUDA_ALLOC_CONF='\\(.*\\)'$/\\1/p" "$work/out")
"$weir" replay --conf "$conf" "$file" | grep -q ' 8.90 GiB reserved' || fail "replay --conf $conf says something else"

# The number of cores does not change the result.
run 0 --json --threads 1 "$traces/cuda_graphs.pickle.zst"
cp "$work/out" "$work/before"
run 0 --json --threads 4 "$traces/cuda_graphs.pickle.zst"
cmp -s "$work/out" "$work/before" || fail 'another output with four threads'
is_json_lines
count 1 '"tried": [2-9][0-9][0-9], "recorded": {"conf": "", "recorded": true, '
count 1 '"best": {"conf": "'
count 1 '"front": \[{"conf": "'
hasnt out '"fit_best"'

# A job that ran out of memory would not have, with other settings.
run 0 --fit --json "$traces/llama_oom.pickle.zst"
is_json_lines
count 1 '"best": {"conf": "expandable_segments:True", "recorded": false, .* "failures": 0, '
count 1 '"fit_recorded": {"bytes": [0-9]*, "retries": [0-9]*, "bytes_if_streams_idle": [0-9]*}, "fit_best": {"bytes": '
run 0 "$traces/llama_oom.pickle.zst"
has out 'llama_oom.pickle.zst: under the recorded settings memory runs out 1 time; first at entry 13750: '
has out '^Memory no longer runs out.$'

# The version of PyTorch: keys that it does not know are in no row. Plain expandable segments always have one.
file=$traces/llama_varlen.pickle.zst
run 0 "$file"
has out ' large_segment_size_mb:[0-9]*'
has out ' expandable_segments:True  *<- best$'
has out '^With Weir.s allocator under PyTorch, whose key moving_pages PyTorch itself rejects:$'
has out '^The best has the fewest failures, and then the least peak memory; within 1 % of that, '
hasnt out '^ *[0-9.]* [GM]iB *-'
run 0 --pytorch 2.5 "$file"
has out ' expandable_segments:True  *<- best$'
hasnt out 'large_segment_size_mb\|max_non_split_rounding_mb'
run 0 --json --pytorch 2.5 "$file"
is_json
hasnt out 'large_segment_size_mb\|max_non_split_rounding_mb'
has out '"expandable": {"conf": "expandable_segments:True", '
has out '"front": \[{"conf": "expandable_segments:True'
has out '"front_moving": \[{"conf": "[a-z0-9_:,]*moving_pages:True'
has out '"pytorch": "2.5"}$'
wrong "(got 'new')" --pytorch new "$file"

# A recording that began late: all lines begin in the same way.
run 0 --fit "$traces/../late/cuda_graphs_expandable.pickle.zst"
empty err
has out '^  began late: 62 blocks (687.11 MiB) in 21 segments (786.00 MiB) existed before it.$'
has out 'The recording itself reserved 896.00 MiB at its peak.$'

# Nothing fits.
run 3 --memory 400MiB "$traces/cuda_graphs.pickle.zst"
has out 'under the best settings memory runs out'

# Several files: each is reported.
run 0 "$traces/cuda_graphs.pickle.zst" "$traces/cuda_graphs_expandable.pickle.zst"
has out "recorded: those of each file$"
count 2 'cuda_graphs.*: .* instead of '
run 1 "$traces/cuda_graphs.pickle.zst" "$work/missing"
empty out
has err 'missing: '

wrong 'FILE is missing'
wrong "unknown option '--conf'" --conf '' "$file"
wrong "(got '257')" --threads 257 "$file"
wrong '--fraction needs --memory' --fraction 0.5 "$file"
run 0 --help
has out '^Usage: weir tune'
has out '^Exit codes: '

exit $failed
