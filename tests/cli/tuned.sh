#!/bin/sh
# tuned.sh PROGRAM VERSION: `weir tune --save` and `--load`: result files, and which of them are refused.
set -u
tested=tune
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
use_traces
unset WEIR_DRIVER

file=$traces/cuda_graphs.pickle.zst other=$traces/cuda_graphs_expandable.pickle.zst
tuned=$work/tuned.csv

# change OLD NEW: a copy of the file with another text.
change() {
  sed "s/$1/$2/" "$tuned" >"$work/changed.csv"
  ! cmp -s "$tuned" "$work/changed.csv" || fail "no $1 in the file"
}

run 0 --save "$tuned" --pytorch 2.11.0 "$file"
empty err
has out "^Saved to $tuned"
conf=$(sed -n "s/^  export PYTORCH_CUDA_ALLOC_CONF='\\(.*\\)'$/\\1/p" "$work/out")
[ -n "$conf" ] || fail 'no settings'
grep -q "^Validator,WEIR_VERSION,$version$" "$tuned" || fail 'no version'
grep -q '^Validator,PT_VERSION,2.11.0$' "$tuned" || fail 'no version of PyTorch'
grep -Eq '^Validator,RECORDING_SHA256,[0-9a-f]{64}$' "$tuned" || fail 'no hash'
grep -Eq "^AllocatorSettings,recorded,$(echo "$conf" | tr , ';'),[0-9.]+$" "$tuned" || fail 'no settings in the file'

# It is loaded with and without the recording, and a shell evaluates what is printed.
run 0 --load "$tuned" --pytorch 2.11.0 "$file"
empty err
has out "^export PYTORCH_CUDA_ALLOC_CONF='$conf'$"
run 0 --load "$tuned" --pytorch 2.11.0
[ "$(sh -c ". $work/out; echo \"\$PYTORCH_CUDA_ALLOC_CONF\"")" = "$conf" ] || fail 'a shell reads something else'
run 0 --json --load "$tuned" --pytorch 2.11.0
is_json_lines
has out "^{\"conf\": \"$conf\", \"cost_ns\": [0-9]*, \"conf_moving\": "

# A recording that is compressed in another way is the same; another one is not.
if command -v zstd >/dev/null; then
  zstd -qd "$file" -o "$work/plain.pickle" && run 0 --load "$tuned" --pytorch 2.11.0 "$work/plain.pickle"
fi
run 1 --load "$tuned" --pytorch 2.11.0 "$other"
empty out
has err "the results in $tuned are stale: the validator RECORDING_SHA256 is \"[0-9a-f]*\" in the file and \"[0-9a-f]*\" here"
run 1 --load "$tuned" --pytorch 2.11.0 "$file" "$other"
has err 'are stale: the validator RECORDING_SHA256'

# Another PyTorch, an unknown one, another Weir.
run 1 --load "$tuned" --pytorch 2.12.0
has err 'are stale: the validator PT_VERSION is "2.11.0" in the file and "2.12.0" here'
run 1 --load "$tuned"
has err 'are for PT_VERSION "2.11.0": say with --pytorch which version runs here'
change "WEIR_VERSION,$version" 'WEIR_VERSION,0.0.1'
run 1 --load "$work/changed.csv" --pytorch 2.11.0
has err 'are stale: the validator WEIR_VERSION is "0.0.1" in the file and .*; run .weir tune --save. again'
: >"$work/foreign.csv"
run 1 --load "$work/foreign.csv" --pytorch 2.11.0
has err "foreign.csv: not a file of 'weir tune --save'"

# Other options.
run 1 --load "$tuned" --pytorch 2.11.0 --memory 4GiB
has err 'has no settings for memory_4294967296: it was saved with another --memory'
echo 'alloc 50000' >"$work/costs"
run 1 --load "$tuned" --pytorch 2.11.0 --costs "$work/costs"
has err 'the validator COSTS_SHA256, here "[0-9a-f]*", is not in the file'

# The GPU and the driver: the software device stands for them where it is chosen by name.
said='with a device'
WEIR_DRIVER=soft "$weir" tune --save "$work/gpu.csv" "$file" >"$work/out" 2>"$work/err" || fail 'failed'
grep -q '^Validator,DEVICE,' "$work/gpu.csv" || fail 'no device'
grep -q '^Validator,DRIVER_VERSION,soft ' "$work/gpu.csv" || fail 'no driver'
WEIR_DRIVER=soft "$weir" tune --load "$work/gpu.csv" "$file" >"$work/out" 2>"$work/err" || fail 'failed'
has out '^export PYTORCH_CUDA_ALLOC_CONF='
tuned=$work/gpu.csv
change 'DRIVER_VERSION,soft' 'DRIVER_VERSION,cuda'
WEIR_DRIVER=soft "$weir" tune --load "$work/changed.csv" "$file" >"$work/out" 2>"$work/err" && fail 'not refused'
has err 'are stale: the validator DRIVER_VERSION is "cuda [0-9.]*" in the file and "soft [0-9.]*" here'
change 'Validator,DEVICE,.*' 'Validator,DEVICE,NVIDIA H200'
WEIR_DRIVER=soft "$weir" tune --load "$work/changed.csv" "$file" >"$work/out" 2>"$work/err" && fail 'not refused'
has err 'are stale: the validator DEVICE is "NVIDIA H200" in the file'
tuned=$work/tuned.csv

# Damaged and hostile files.
run 1 --load "$work/missing" --pytorch 2.11.0
has err 'missing: cannot open it: No such file'
run 1 --load "$work" --pytorch 2.11.0
head -c 40 "$tuned" >"$work/changed.csv"
run 1 --load "$work/changed.csv" --pytorch 2.11.0
change '^AllocatorSettings,recorded,.*' 'AllocatorSettings,recorded'
run 1 --load "$work/changed.csv" --pytorch 2.11.0
has err 'line [0-9]* is damaged'
change "^AllocatorSettings,recorded,[^,]*" "AllocatorSettings,recorded,x:1'; touch $(echo "$work" | sed 's,/,\\/,g')\\/evil; '"
run 1 --load "$work/changed.csv" --pytorch 2.11.0
empty out
has err 'the settings of AllocatorSettings are invalid'
change "^AllocatorSettings,recorded,[^,]*" 'AllocatorSettings,recorded,no_such_key:1'
run 1 --load "$work/changed.csv" --pytorch 2.11.0
has err 'the settings of AllocatorSettings are invalid'
printf 'Validator,\0\n' >"$work/changed.csv"
run 1 --load "$work/changed.csv" --pytorch 2.11.0
has err 'is not a text'

# A file that cannot be written, and the command line.
run 1 --save /nowhere/at/all "$traces/cuda_graphs.pickle.zst"
has err "^weir tune: --save: cannot write /nowhere/at/all: No such file"
wrong 'FILE is missing' --save "$tuned"
wrong '--load excludes --save and --fit' --load "$tuned" --save "$work/other.csv"
wrong '--load excludes --save and --fit' --load "$tuned" --fit

exit $failed
