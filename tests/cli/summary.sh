#!/bin/sh
# summary.sh PROGRAM VERSION: `weir summary` on recorded histories, invalid files and invalid options.
set -u
tested=summary
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data

# An uncompressed file without most of its history.
run 0 "$data/small_snapshot.pickle"
empty err
has out ': 1 device, 40 entries, 6 segments$'
has out '^    history   its beginning is missing: '
has out 'reserved; 0 frees of memory from before$'
has out '^  next: weir explain .*small_snapshot.pickle$'
hasnt out "$(printf '\033')"
run 0 --json "$data/small_snapshot.pickle"
has out '"history": "late", "unknown_frees": 0,'

printf 'garbage\n' >"$work/garbage"
run 1 "$work/garbage" "$data/small_snapshot.pickle"
has err '^weir summary: .*/garbage: not a recording: '
has out ' 40 entries'
run 1 "$work/missing"
empty out

run 2
has err 'FILE is missing'
run 2 --what "$data/small_snapshot.pickle"
has err "unknown option '--what'"
run 0 --help
has out '^Usage: weir summary'

wrong '--graph is text: leave out --json' --graph --json "$data/small_snapshot.pickle"
LC_ALL=C run 0 --graph "$data/small_snapshot.pickle"
has out '# in use   \. reserved$'
count 0 '[^ -~]'

if "$weir" summary "$data/traces/llama_oom.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  echo "waived: built without libzstd"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

run 0 "$data/traces/llama_oom.pickle.zst" "$data/traces/resnet_stacks.pickle.zst"
empty err
has out '^    entries   14531 in 1.42 s: 4780 allocations, 4778 frees, 158 segments allocated and 36 released$'
has out '^    history   complete: '
has out 'out of memory  1 time, the first at entry 13750, .*: a request of 1.82 GiB$'
has out '^    peak      10.78 GiB in use: entry 13736, '
has out '^    peak      12.15 GiB reserved: entry '
has out '  3.65 GiB  2 blocks of 1.82 GiB$'
has out '^    of these  7.09 GiB activations, 2.74 GiB temporary, 610.07 MiB optimizer state, 305.03 MiB weights, 64.00 MiB unknown$'
# Stacks with the same text are one row.
count 1 '^ *4.38 GiB  53 blocks _conv_forward (conv.py:[0-9]*), from w_resnet_multiscale (workloads.py:[0-9]*)$'
count 1 'blocks batch_norm (functional.py:[0-9]*), from w_resnet_multiscale (workloads.py:[0-9]*)$'

# The graph fits the terminal, marks the peak and the failure, and has the axes' ends.
for columns in 40 80 150; do
  COLUMNS=$columns LC_ALL=C.UTF-8 run 0 --graph "$data/traces/llama_oom.pickle.zst"
  has out ' peak 10.78 GiB ▼$'
  has out ' out of memory ✗$'
  has out '^ *12.15 GiB ┤ .*░'
  has out '^ *0 bytes ┤.*██$'
  has out '^ *0 .* 1.42 s$'
  wide=$(sed -n '/▼/,/in use   /p' "$work/out" | LC_ALL=C tr -d '\200-\277' | LC_ALL=C awk 'length($0) > '"$columns" | wc -l)
  [ "$wide" -eq 0 ] || fail "$wide lines are wider than $columns"
done

run 0 --json "$data/traces/"*.zst
empty err
if command -v python3 >/dev/null; then
  python3 -c '
import json, sys
files = [json.loads(line) for line in sys.stdin]
assert len(files) == int(sys.argv[1]), len(files)
for file in files:
    for device in file["devices"]:
        assert device["history"] == "complete", file["file"]
        classes = device["classes_at_peak"]
        assert classes is None or sum(classes.values()) == device["peak_live"], file["file"]
        assert (classes is None) == ("generate" in file["file"] or "graphs" in file["file"]), file["file"]
        assert sum(device["actions"].values()) == device["events"], file["file"]
' "$(find "$data/traces" -name '*.zst' | wc -l)" <"$work/out" 2>"$work/err" || fail "not what was expected"
fi

exit $failed
