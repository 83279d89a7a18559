#!/bin/sh
# replay.sh PROGRAM VERSION: `weir replay` on the recorded histories, invalid files and invalid options.
set -u
tested=replay
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
use_traces

# Every history replays without a difference.
set -- "$traces"/*.zst
run 0 --check "$@"
empty err
count $# ' allocations compared, 0 differ$'
count $# '^  speed '

# The limit is inferred from the failures, or given. With the whole device the failure in the file does not happen.
run 0 --check "$traces/llama_oom.pickle.zst"
has out ': 4780 allocations compared, 0 differ$'
has out '^  limit .* inferred from the recording$'
has out '2 retries, 1 out of memory$'
run 0 --check --memory 150109880320 --fraction 0.09 "$traces/llama_oom.pickle.zst"
has out ' 0 differ$'
has out '2 retries, 1 out of memory$'
hasnt out '^  limit '
run 1 --check --memory 150109880320 "$traces/llama_oom.pickle.zst"
empty err
has out ': 4780 allocations compared, 2 differ$'
# What explain and summary call in use is the second figure; it is left out if it reads the same.
has out '^  peak        11.70 GiB allocated (11.69 GiB as requested), 13.64 GiB reserved: 14.3 % fragmentation$'
has out 'a request of 1958400000 bytes succeeded, it failed in the file$'

# Without their first entries: the initial state is inferred, and the rest does not differ.
run 0 --check "$traces/../late/llama_oom.pickle.zst" "$traces/../late/cuda_graphs_expandable.pickle.zst"
empty err
count 2 ' allocations compared, 0 differ$'
count 2 ' existed before it: placed as inferred from the end of the file$'
run 0 --conf expandable_segments:True "$traces/../late/llama_oom.pickle.zst"
has out ' existed before it: allocated again in order of address'
has out 'Take the rest as an estimate$'
run 0 --json --conf '' "$traces/../late/cuda_graphs_expandable.pickle.zst"
is_json_lines
count 1 '"before": {"blocks": 62, "requested": [0-9]*, "segments": 21, "reserved": [0-9]*}, "begins": "anew", '

# A file that differs or cannot be read determines the exit code at any position; the others are still replayed.
run 1 --check "$work/missing" "$traces/cuda_graphs.pickle.zst"
has err "missing: "
count 1 ' 0 differ$'

run 0 --conf expandable_segments:True "$traces/llama_varlen.pickle.zst"
empty err
has out ': 26458 allocations replayed, 0 failed$'
run 1 --conf expandable_segments:maybe "$traces/llama_varlen.pickle.zst"
empty out
has err 'expandable_segments'

# Calls and their cost, with both kinds of segments; a different cost table.
run 0 "$traces/llama_varlen.pickle.zst"
has out '^  peak        18.17 GiB allocated, 32.55 GiB reserved: 44.2 % fragmentation$'
has out '^  calls       165 alloc; 6.43 ms in total, estimated$'
run 0 --conf expandable_segments:True "$traces/llama_varlen.pickle.zst"
has out ' 19.97 GiB reserved: '
has out '^  calls       2 reserve, 1063 create, 1063 map, 169 set_access; '
echo 'alloc 1000000' >"$work/costs"
run 0 --costs "$work/costs" "$traces/llama_varlen.pickle.zst"
has out '165 alloc; 165 ms in total'
echo '{"alloc": 1000}' >"$work/costs"
run 0 --costs "$work/costs" "$traces/llama_varlen.pickle.zst"
has out '165 alloc; 165 us in total'
echo 'malloc 5' >"$work/costs"
run 1 --costs "$work/costs" "$traces/llama_varlen.pickle.zst"
empty out
has err "costs: line 1: there is no key 'malloc'"

# Too little memory: the first failing request is named.
run 3 --memory 16GiB "$traces/llama_varlen.pickle.zst"
empty err
has out '^  failed      entry [0-9]*: a request of .* GiB, with .* GiB reserved and .* GiB of it allocated$'
run 0 "$traces/llama_oom.pickle.zst"
has out '^  failed      entry 13750: a request of 1.82 GiB'
run 0 --conf expandable_segments:True "$traces/llama_oom.pickle.zst"
has out ', 0 failed$'
run 1 --conf per_process_memory_fraction:0.5 "$traces/llama_varlen.pickle.zst"
has err 'say how much it is'
run 3 --conf per_process_memory_fraction:0.5 --memory 30GiB "$traces/llama_varlen.pickle.zst"

# A file that is not reproduced: nothing is predicted unless it is forced.
printf '%b' '(dp0\nVsegments\np1\n(lp2\nsVdevice_traces\np3\n(lp4\n(lp5\n(dp6\nVaction\np7\nVfree_requested\np8\nsVaddr\np9\nL1099511627776L\nsVsize\np10\nI1048576\nsVstream\np11\nI0\nsVframes\np12\n(lp13\nsa(dp14\ng7\nVfree_completed\np15\nsg9\nL1099511627776L\nsg10\nI1048576\nsg11\nI0\nsg12\n(lp16\nsa(dp17\ng7\nValloc\np18\nsg9\nL1099511627776L\nsg10\nI524288\nsg11\nI0\nsg12\n(lp19\nsaas.' >"$work/late.pickle"
for conf in '' expandable_segments:True; do
  run 1 --conf "$conf" "$work/late.pickle"
  empty out
  has err 'differs from the file in 2 places'
  has err 'the recording began late'
  has err '--force'
done
run 1 --check "$work/late.pickle"
run 0 --force --conf expandable_segments:True "$work/late.pickle"
has out ': 1 allocation replayed, 0 failed$'
has err 'take the result as a guess'

run 0 --check --json "$traces/cuda_graphs.pickle.zst" "$traces/llama_oom.pickle.zst"
empty err
is_json_lines
count 2 '"checked": true, .* "differences": 0,'
count 2 '"served": 0, "unknown_frees": 0,'
count 1 '"limit": null, "limit_is_inferred": false,'
count 1 '"limit": [0-9]*, "limit_is_inferred": true,'
count 2 '"calls": {"alloc": {"calls": [0-9]*, '
count 1 '"first_failure": null}'
count 1 '"first_failure": {"event": 13750, "bytes": 1958400000, '

# Invalid files: the file and, if it looks like a recording, the byte offset are named.
printf 'garbage\n' >"$work/garbage"
run 1 --check "$work/garbage"
has err '^weir replay: .*/garbage: not a recording: '
: >"$work/empty"
head -c 5000 "$traces/cuda_graphs.pickle.zst" >"$work/short.zst"
for file in empty short.zst; do
  run 1 --check "$work/$file"
  empty out
  case $file in
  empty) has err '^weir replay: .*/empty: the file is empty$' ;;
  *) has err "^weir replay: .*/$file: byte [0-9]*[: ]" ;;
  esac
done
run 1 --check "$work"
empty out
run 1 --device 7 "$traces/cuda_graphs.pickle.zst"
empty out
has err 'device 7'

file=$traces/cuda_graphs.pickle.zst
wrong 'FILE is missing'
wrong "unknown option '--what'" --what "$file"
wrong "(got 'much')" --memory much "$file"
wrong "(got '0')" --memory 0 "$file"
wrong "(got '65TiB')" --memory 65TiB "$file"
wrong '--memory needs a value' "$file" --memory
wrong "(got '1.5')" --memory 1GiB --fraction 1.5 "$file"
wrong "(got 'x')" --memory 1GiB --fraction x "$file"
wrong '--fraction needs --memory' --fraction 0.5 "$file"
wrong "(got '-1')" --device -1 "$file"
wrong 'takes no --conf' --check --conf expandable_segments:True "$file"
run 0 --help
has out '^Usage: weir replay'

exit $failed
