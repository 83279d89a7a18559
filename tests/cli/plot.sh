#!/bin/sh
# plot.sh PROGRAM VERSION: `weir plot`: the pictures are well-formed, have the numbers of `weir summary --json`, escape
# what is in the recording, and stay small.
set -u
tested=plot
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
# shellcheck source-path=SCRIPTDIR source=../support/terminal.sh
. "$(dirname "$0")/../support/terminal.sh"
data=$(dirname "$0")/../data
small=$data/small_snapshot.pickle

run 0 "$small"
has out '^<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="640"'
has out '^</svg>$'
empty err
run 0 --kind segments --at end --dark --width 800 --height 500 --title 'My <job>' -o "$work/a.svg" "$small"
empty out
grep -q 'width="800" height="500"' "$work/a.svg" || fail 'not the size that was asked for'
grep -q 'My &lt;job&gt;' "$work/a.svg" || fail 'not the title that was asked for'
if has_terminal; then # a picture is written to a pipe, and to a terminal only with -o -
  cat >"$work/terminal.py" <<'END'
import os, pty, sys
pid, leader = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
text = b""
while True:
    try:
        part = os.read(leader, 65536)
    except OSError:
        break
    if not part:
        break
    text += part
sys.stdout.write(text.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
  said='weir plot on a terminal'
  python3 "$work/terminal.py" "$weir" plot "$small" >"$work/out" 2>"$work/err"
  [ $? -eq 2 ] || fail 'not refused'
  hasnt out '<svg'
  has out 'name its file with -o (- is standard output)'
  python3 "$work/terminal.py" "$weir" plot -o - "$small" >"$work/out" 2>"$work/err" || fail 'it failed'
  has out '^<svg'
fi
run 1 --kind segments --at oom "$small"
has err 'no request of device 0 ran out of memory'
run 1 --kind segments --at 40 "$small"
has err 'there is no entry 40: device 0 has 40, counted from 0'
run 1 --device 3 "$small"
has err 'there is no device 3'
printf '(dS"segments"\n(lsS"device_traces"\n(l(las.' >"$work/empty.pickle"
run 1 "$work/empty.pickle"
has err 'device 0 has no history and no segments in this recording$'
run 1 "$work/missing"
run 1 -o "$work/no/such/folder.svg" "$small"
has err 'cannot write it: '
wrong '--at is for --kind segments' --at peak "$small"
wrong "(got 'pie')" --kind pie "$small"
wrong "(got '20')" --width 20 "$small"
wrong 'oom, peak, end or the number of an entry' --kind segments --at noon "$small"
wrong 'FILE is missing'
run 0 --help
has out '^Usage: weir plot'

if ! command -v python3 >/dev/null; then
  echo "waived: no python3 to read the pictures"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# Hostile names, and a recording without times, without segments, and with one entry.
cat >"$work/make.py" <<'END'
import pickle, sys
def snapshot(entries, segments=()):
    return {"segments": list(segments), "device_traces": [entries], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "<b>&\"'"}}
bad = [{"name": "</text><script>alert(1)</script>&amp;\u202e\x07\ud800", "filename": "/x/\"'<y>.py", "line": 1}]
def entry(action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": bad, **more}
hostile = [entry("segment_alloc", 4096, 2097152), entry("alloc", 4096, 1024), entry("alloc", 8192, 512),
           entry("free_requested", 4096, 1024), entry("free_completed", 4096, 1024)]
for name, value in {"hostile": snapshot(hostile), "one": snapshot([entry("alloc", 4096, 512)]),
                    "zero": snapshot([entry("alloc", 4096, 0, time_us=5), entry("alloc", 0, 512, time_us=5)]),
                    "wide": snapshot([entry("alloc", 2**64 - 512, 2**63, time_us=1), entry("segment_alloc", 512, 2**64 - 1),
                                      entry("free_requested", 2**64 - 512, 2**63, time_us=9)])}.items():
    pickle.dump(value, open(f"{sys.argv[1]}/{name}.pickle", "wb"))
END
cat >"$work/read.py" <<'END'
import json, re, subprocess, sys
import xml.etree.ElementTree as xml
weir, *files = sys.argv[1:]
KINDS = ["memory", "segments", "trace", "fragmentation"]
SVG = "{http://www.w3.org/2000/svg}"
def run(*arguments):
    return subprocess.run([weir, *arguments], check=True, capture_output=True).stdout
for file in files:
    summary = json.loads(run("summary", "--json", file))["devices"]
    number, device = next(((d["device"], d) for d in summary if d["first_oom"]), (summary[0]["device"], summary[0]))
    for kind in KINDS:
        for by in ["auto", "stack", "class", "size", "stream", "pool"] if kind == "memory" and "resnet" in file else ["auto"]:
            text = run("plot", file, "--kind", kind, "--by", by)
            assert len(text) <= 300_000, (file, kind, len(text))
            root = xml.fromstring(text)
            assert root.tag == SVG + "svg" and b"<script" not in text, (file, kind)
            assert b"nan" not in text and b"inf" not in text, (file, kind)
            assert root.get("data-kind") == kind and int(root.get("data-device")) == number, (file, kind)
            assert int(root.get("data-entries")) == device["events"], (file, kind)
            if device["peak_live"] is not None:
                assert int(root.get("data-peak-allocated")) == device["peak_live"], (file, kind)
                assert int(root.get("data-peak-reserved")) == device["peak_reserved"], (file, kind)
            assert int(root.get("data-ooms")) == device["actions"].get("oom", 0), (file, kind)
            # Nothing is drawn outside of the picture.
            for element in root.iter(SVG + "rect"):
                x, y, w, h = (float(element.get(k)) for k in ("x", "y", "width", "height"))
                assert x >= 0 and y >= 0 and x + w <= 1200.1 and y + h <= 640.1, (file, kind, element.attrib)
            if kind == "memory" and device["peak_live"] and file.endswith(".zst"):
                # The areas reach up to the mark of the peak.
                peak = root.find(f"{SVG}g[@class='peak']")
                assert int(peak.get("data-bytes")) == device["peak_live"], file
                assert int(peak.get("data-entry")) == device["peak_live_event"], file
                paths = [p.get("d") for p in root.find(f"{SVG}g[@class='areas']")]
                top = min(float(y) for d in paths for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", d))
                assert abs(top - float(peak.find(SVG + "circle").get("cy"))) < 0.25, (file, by, top)
    # The map at the end has the bytes of the list of segments.
    if device["end_reserved"] is not None and file.endswith(".zst"):
        group = xml.fromstring(run("plot", file, "--kind", "segments", "--at", "end")).find(f"{SVG}g[@class='map']")
        assert int(group.get("data-reserved")) == device["end_reserved"], file
        assert int(group.get("data-segments")) <= device["large_segments"] + device["small_segments"] or "expandable" in file, file
END
said='weir plot, read by python3'
python3 "$work/make.py" "$work" >"$work/out" 2>"$work/err" || fail 'no files to draw'
for name in hostile one zero wide; do
  for kind in memory segments trace fragmentation; do
    run 0 --kind "$kind" -o "$work/$name.svg" "$work/$name.pickle"
    python3 -c 'import sys, xml.etree.ElementTree as x; x.parse(sys.argv[1])' "$work/$name.svg" 2>"$work/err" ||
      fail 'not well-formed'
    ! grep -q '<script' "$work/$name.svg" || fail 'not escaped'
  done
done
set -- "$small"
if ! "$weir" summary "$data/traces/cuda_graphs.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  set -- "$@" "$data/traces/llama_oom.pickle.zst" "$data/traces/resnet_stacks.pickle.zst" \
    "$data/traces/llm_generate_small.pickle.zst" "$data/traces/cuda_graphs_expandable.pickle.zst" \
    "$data/traces/streams_prefetch.pickle.zst" "$data/histories/pools.pickle.zst" "$data/late/llama_oom.pickle.zst"
fi
python3 "$work/read.py" "$weir" "$@" >"$work/out" 2>"$work/err" || fail 'not what was expected'

finish
