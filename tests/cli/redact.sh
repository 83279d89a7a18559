#!/bin/sh
# redact.sh PROGRAM VERSION: `weir redact`: no name is left, everything else is unchanged, or there is no copy.
set -u
tested=redact
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data

exists() { [ -s "$work/$1" ] || fail "no $1"; }
missing() { [ ! -e "$work/$1" ] || fail "there is a $1"; }

small=$data/small_snapshot.pickle
run 0 -o "$work/copy" "$small"
empty err
has out '/copy: 11 function names, 7 file names, 2 annotations, 0 remarks hidden$'
has out 'replays like the original: 40 entries, '
hasnt out "$(printf '\\033')"
for name in workloads w_resnet job module.py Optimizer batch_norm; do
  grep -q -a "$name" "$small" || fail "'$name' is not in the file to begin with"
  hasnt copy "$name"
done

run 0 --keep-functions -o "$work/copy" "$small"
has out 'function names kept, 7 file names'
has copy w_resnet
hasnt copy workloads

# The same salt gives the same copy; without a salt the copy differs every time.
for i in 1 2 3 4; do
  salt=
  [ "$i" -gt 2 ] || salt=--salt=abc
  run 0 $salt -o "$work/copy$i" "$small"
done
cmp -s "$work/copy1" "$work/copy2" || fail 'the same salt, and another copy'
! cmp -s "$work/copy1" "$work/copy3" || fail 'no salt, and the same copy'
! cmp -s "$work/copy3" "$work/copy4" || fail 'no salt, and the same copy twice'

# Files without any names.
cp "$small" "$work/run.pickle"
cp "$small" "$work/run"
run 0 "$work/run.pickle"
exists run.redacted.pickle
run 0 "$work/run"
exists run.redacted
# The copy is next to the name that was given, not next to the file that a link leads to.
mkdir "$work/links"
ln -s ../run.pickle "$work/links/link.pickle"
run 0 "$work/links/link.pickle"
exists links/link.redacted.pickle
said='weir redact in the current folder'
(cd "$work/links" && cp ../run here && "$weir" redact here >"$work/out" 2>"$work/err") || fail "exit code $?"
exists links/here.redacted

run 1 -o "$work/run.pickle" "$work/run.pickle"
has err 'the output would overwrite the input'
cmp -s "$small" "$work/run.pickle" || fail 'the original is not what it was'
run 1 -o "$work/none" "$work/missing"
empty out
missing none
printf 'garbage' >"$work/garbage"
run 1 -o "$work/none" "$work/garbage"
has err '/garbage: not a recording: '
missing none
run 1 -o "$work/no/such/folder" "$small"
has err 'cannot write it'

wrong 'FILE is missing'
wrong 'takes only one FILE' "$small" "$small"
wrong 'name the copy with -o' --json -o - "$small"
wrong '--salt needs a value' "$small" --salt
wrong "unknown option '--what'" --what "$small"
run 0 --help
has out '^Usage: weir redact'
has out '^Exit codes: '

if "$weir" summary "$data/traces/llama_oom.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  run 1 -o "$work/copy.zst" "$small"
  has err 'without zstd'
  missing copy.zst
  echo "waived: built without libzstd"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# A compressed file gives a compressed copy, and --check gives the same result.
for name in traces/llama_oom traces/cuda_graphs_expandable histories/pools histories/capped_streams traces/resnet_stacks; do
  cp "$data/$name.pickle.zst" "$work/it.pickle.zst"
  run 0 --json "$work/it.pickle.zst"
  has out '"devices": 1, "devices_not_replayed": 0, .*"same_behaviour": true}$'
  exists it.redacted.pickle.zst
  for file in it it.redacted; do
    "$weir" replay --check --json "$work/$file.pickle.zst" 2>&1 |
      sed 's/^{"file": "[^"]*"//; s/"seconds": [0-9.]*//' >"$work/$file.report"
  done
  cmp -s "$work/it.report" "$work/it.redacted.report" || fail 'another report of weir replay'
done

if ! command -v python3 >/dev/null; then
  echo "waived: no python3 to read the copy"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# Every text that a file can have, in the places of names; and a configuration that PyTorch's lenient parser reads
# differently from the strict one: without it the history would differ, so there is no copy.
cat >"$work/texts.py" <<'END'
import pickle, sys
mode, source, target = sys.argv[1:]
s = pickle.load(open(source, "rb"))
if mode == "mark":
    for i, e in enumerate(s["device_traces"][0]):
        e.update(user_metadata=f"SECRET{i % 3}", compile_context=f"SECRET/{i % 2}", category="SECRET", phase="SECRET")
    s["device_traces"][0].append({"action": "SECRET_ACTION", "addr": 0, "size": 0, "stream": 0})
    s["external_annotations"].append({"stage": "SECRET", "name": "SECRET", "device": 0, "time_us": 1, "SECRET": "SECRET"})
    s["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "SECRET:1,max_split_size_mb:64"
    s["allocator_settings"]["other"] = "SECRET"
    s["SECRET"] = ["SECRET"]
    pickle.dump(s, open(target, "wb"))
elif mode == "loose":
    conf = s["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
    assert "large_segment_size_mb" in conf, conf
    s["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = conf.replace("large_segment_size_mb", "x large_segment_size_mb")
    pickle.dump(s, open(target, "wb"))
else:
    copy = pickle.load(open(target, "rb"))
    a, b = s["device_traces"][0], copy["device_traces"][0]
    assert len(a) == len(b), (len(a), len(b))
    numbers = ["addr", "size", "stream", "time_us"]
    assert [[e.get(n) for n in numbers] for e in a] == [[e.get(n) for n in numbers] for e in b]
    metadata = {(x["user_metadata"], y["user_metadata"]) for x, y in zip(a[:-1], b[:-1])}
    assert len(metadata) == 3 and len({y for _, y in metadata}) == 3, metadata
    assert len({e["phase"] for e in b[:-1]}) == 1 and b[0]["phase"] not in ("", "SECRET"), b[0]["phase"]
    assert copy["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64", copy["allocator_settings"]
    assert "SECRET" not in repr(copy)
END
said='weir redact, read by python3'
python3 "$work/texts.py" mark "$small" "$work/marked" >"$work/out" 2>"$work/err" || fail 'no file'
run 0 -o "$work/hidden" "$work/marked"
has out '^  settings    2 texts that the allocator does not use'
has out '^  left out    2 unknown keys'
hasnt hidden SECRET
python3 "$work/texts.py" compare "$work/marked" "$work/hidden" >"$work/out" 2>"$work/err" || fail 'not what was expected'

if command -v zstd >/dev/null; then
  zstd -q -d -o "$work/large.pickle" "$data/histories/large_segments.pickle.zst"
  python3 "$work/texts.py" loose "$work/large.pickle" "$work/loose" >"$work/out" 2>"$work/err" || fail 'no file'
  run 1 -o "$work/none" "$work/loose"
  empty out
  has err 'behaves differently on device 0'
  missing none
  [ "$(find "$work" -name '*.part' | wc -l)" -eq 0 ] || fail 'a part is left'
fi

exit $failed
