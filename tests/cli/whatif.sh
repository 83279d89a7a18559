#!/bin/sh
# whatif.sh PROGRAM VERSION: `weir whatif`: the predictions match other recordings of the same job.
set -u
tested=whatif
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
use_traces

# The same job was recorded with each of these settings: see tests/offline/test_predict.c.
file=$traces/llama_varlen.pickle.zst
run 0 --conf expandable_segments:True --conf max_split_size_mb:200 --conf '' "$file"
empty err
has out 'llama_varlen.pickle.zst: 79535 entries, reproduced under the recorded settings$'
has out '^ *32.55 GiB .* 44.2 % .* recorded: (defaults)$'
has out '^ *19.97 GiB .* expandable_segments:True$'
has out '^ *104.87 GiB .* max_split_size_mb:200$'
has out '^ *32.55 GiB .* (defaults)$'
hasnt out 'first fails'
hasnt out "$(printf '\\033')"

# The number of cores does not change the result.
cp "$work/out" "$work/before"
run 0 --threads 1 --conf expandable_segments:True --conf max_split_size_mb:200 --conf '' "$file"
cmp -s "$work/out" "$work/before" || fail 'another output with one thread'

# A job that failed, and settings with which it does not; the limit is the recorded one.
run 0 --conf expandable_segments:True "$traces/llama_oom.pickle.zst"
has out '^  limit: 12.15 GiB, inferred from the recording$'
has out '^  recorded first fails at entry 13750: a request of 1.82 GiB'
count 1 'first fails'

run 0 --json --conf expandable_segments:True "$file" "$traces/llama_oom.pickle.zst"
empty err
is_json_lines
count 2 '"reproduced": true, "predictions": \[{"conf": "", "recorded": true, '
count 1 '"conf": "expandable_segments:True", "recorded": false, "peak_reserved": 21443379200, '
count 1 '"first_failure": {"event": 13750, '

# A recording that began late: the initial state is reported, and the recorded settings have two lines.
late=$traces/../late/llama_oom.pickle.zst
run 0 --conf expandable_segments:True "$late"
empty err
has out '^  began late: 333 blocks (2.32 GiB) in 156 segments (10.33 GiB) existed before it.$'
has out '^ *12.15 GiB .* recorded: (defaults)$'
has out '^ *[0-9.]* GiB .* recorded, allocated again: (defaults)$'
has out '^ *11.9[0-9] GiB .* 0  expandable_segments:True$'
run 0 --json --conf expandable_segments:True "$late"
is_json_lines
count 1 '"before": {"blocks": 333, '
count 1 '"begins": "held", .*"begins": "anew", .*"begins": "anew", '

# The first row is the exact recording; if a replay as for the other rows reads differently, there is a second row.
if command -v python3 >/dev/null; then
  cat >"$work/same.py" <<'END'
import json, subprocess, sys
weir, files = sys.argv[1], sys.argv[2:]
def read(*command):
    out = subprocess.run([weir, *command, *files], stdout=subprocess.PIPE, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]
seconds = 0
for predicted, checked in zip(read("whatif", "--json", "--conf", ""), read("replay", "--json", "--check")):
    first, second = predicted["predictions"][:2]
    for key in "peak_reserved", "peak_allocated", "peak_requested", "failures", "cost_ns":
        assert first[key] == checked[key], (predicted["file"], key, first[key], checked[key])
    assert first["recorded"] and first["is_recording"] and not second["is_recording"]
    seconds += second["recorded"]
assert seconds > 0
END
  said='whatif beside replay --check'
  python3 "$work/same.py" "$weir" "$traces"/llama_oom.pickle.zst "$traces"/resnet_roundup.pickle.zst \
    "$traces"/cuda_graphs.pickle.zst "$late" >"$work/out" 2>"$work/err" || fail 'the first row is not the recording'
fi

# One rule decides for the table and for JSON whether there is that row.
for own in traces/llama_oom traces/resnet_stacks late/llama_oom; do
  run 0 --conf '' "$traces/../$own.pickle.zst"
  rows=$(grep -c '%.* recorded[^:]*: (defaults)$' "$work/out")
  run 0 --json --conf '' "$traces/../$own.pickle.zst"
  [ "$(grep -o '"recorded": true' "$work/out" | wc -l)" -eq "$rows" ] || fail "$own: the table has $rows rows, and JSON others"
done

# The recording compared with a device of another size.
run 0 --memory 14GiB --conf '' "$traces/llama_oom.pickle.zst"
has out '^  The first row is the recording. The others were replayed with 14.00 GiB of memory'
has out '^ *12.15 GiB .* 1  recorded: (defaults)$'
has out '^ *13.98 GiB .* 0  recorded, replayed: (defaults)$'

# What guard mode will need.
run 0 --guard light --guard full "$traces/llama_varlen.pickle.zst"
has out '^ *32.50 GiB .* guard:light$'
has out '^ *18.46 GiB .* guard:full$'
run 1 --guard fuller "$file"
has err "there is no guard 'fuller'"

# A file that cannot be read does not affect the others.
run 1 --conf '' "$work/missing" "$traces/cuda_graphs.pickle.zst"
has err 'missing: '
count 1 'recorded: (defaults)$'
run 1 --conf expandable_segments:maybe "$file"
empty out
has err 'expandable_segments'
run 1 --conf backend:cudaMallocAsync "$file"
empty out
has err 'cudaMallocAsync is another allocator'
run 1 --conf per_process_memory_fraction:0.5 "$file"
empty out
has err 'say how much it is'
run 0 --memory 80GiB --conf per_process_memory_fraction:0.5 "$file"

# The predicted history is a recording: it has the predicted peak, and its own settings reproduce it.
run 0 --conf expandable_segments:True --write "$work/predicted.pickle.zst" "$file"
empty err
tested=replay
run 0 --check "$work/predicted.pickle.zst"
tested=summary
run 0 --json "$work/predicted.pickle.zst"
has out '21443379200'
tested=whatif
wrong 'one FILE and one --conf' --conf '' --conf expandable_segments:True --write "$work/two.pickle" "$file"
wrong 'needs the name of a file' --conf '' --write - "$file"
run 1 --conf '' --write "$work/missing/file.pickle" "$file"
has err 'missing/file.pickle'

wrong 'FILE is missing' --conf ''
wrong '--conf SETTINGS or --guard MODE is missing' "$file"
wrong "unknown option '--what'" --what "$file"
wrong '--conf needs a value' "$file" --conf
wrong "(got '0')" --threads 0 --conf '' "$file"
wrong "(got 'much')" --memory much --conf '' "$file"
wrong '--fraction needs --memory' --fraction 0.5 --conf '' "$file"
run 0 --help
has out '^Usage: weir whatif'
has out '^Exit codes: '

exit $failed
