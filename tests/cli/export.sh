#!/bin/sh
# export.sh PROGRAM VERSION: `weir export`: other programs read its output and find the contents of the file.
set -u
tested='export'
# shellcheck source-path=SCRIPTDIR source=../support/cli.sh
. "$(dirname "$0")/../support/cli.sh"
data=$(dirname "$0")/../data

lines() {
  got=$(wc -l <"$work/out")
  [ "$got" -eq "$1" ] || fail "$got lines, expected $1"
}
# No other files are left behind.
left() {
  got=$(find "$work" -name '*.part' | wc -l)
  [ "$got" -eq 0 ] || fail "a part is left"
}

small=$data/small_snapshot.pickle

# ---- CSV ----
run 0 --to csv "$small"
empty err
lines 41
has out '^device,event,action,address,device_free,size,stream,time_us,pool_first,pool_second,compile_context,user_metadata,phase,stack,allocated,reserved'
has out '^0,0,segment_alloc,139710754193408,,2097152,0,1794709598142736,,,N/A,"","",[0-9]*,'
run 0 --to csv --table segments "$small"
lines 7
run 0 --to csv --table blocks "$small"
has out '^0,0,0,139695421915136,520093696,517997199,inactive,'
run 0 --to csv --table frames "$small"
has out '^[0-9]*,convert,/job/module.py,1370'
run 0 --to csv --table stacks "$small"
has out '^stack,depth,frame'
run 0 --to csv --table annotations "$small"
lines 5
run 0 --to csv --table settings "$small"
has out '^[0-9]*,roundup_power2_divisions,1024,0'
has out '^[0-9]*,expandable_segments,,False'

# ---- Files ----
run 0 --to json -o "$work/small.json" "$small"
empty out
[ -s "$work/small.json" ] || fail 'no file'
left
run 1 --to json -o "$work/no/such/folder" "$small"
has err 'no/such/folder: cannot write it: '
run 1 --to csv "$work/missing"
empty out
has err '^weir export: .*/missing: '
run 1 --to csv --device 1 "$small"
empty out
has err 'there is no device 1'
run 1 --to collapsed --at oom "$small"
empty out
has err '^weir export: .*/small_snapshot.pickle: no request of device 0 ran out of memory$'
printf '(dS"segments"\n(lsS"device_traces"\n(l(las.' >"$work/empty.pickle"
for format in collapsed speedscope; do
  run 1 --to $format "$work/empty.pickle"
  empty out
  has err '^weir export: .*/empty.pickle: the recording has no memory in use$'
done
run 1 --to speedscope -o "$work/none.json" --at 40 "$small"
[ ! -e "$work/none.json" ] || fail 'a file is left'
if [ -w /dev/full ]; then
  said='weir export >/dev/full'
  : >"$work/out"
  "$weir" export --to json "$small" >/dev/full 2>"$work/err" && fail 'no error'
  has err 'No space left'
  "$weir" export --to csv "$small" >/dev/full 2>"$work/err" && fail 'no error'
  has err 'cannot write it: No space left'
fi

# ---- A database, or the error without SQLite ----
run_sqlite() {
  "$weir" export --to sqlite -o "$work/probe.db" "$small" 2>"$work/err"
}
has_sqlite=1
said='weir export --to sqlite'
if ! run_sqlite; then
  has_sqlite=0
  has err 'this build of Weir is without SQLite'
  [ ! -e "$work/probe.db" ] || fail 'a file is left'
fi
left

wrong 'FILE is missing' --to csv
wrong '--to is missing: json, sqlite, csv, perfetto, collapsed or speedscope' "$small"
wrong "(got 'xml')" --to xml "$small"
wrong "(got 'things')" --to csv --table things "$small"
wrong '--table is for csv' --to json --table events "$small"
wrong '--at is for collapsed and speedscope' --to json --at peak "$small"
wrong 'oom, peak, end or the number of an entry' --to collapsed --at noon "$small"
wrong 'name its file with -o' --to sqlite "$small"
wrong 'leave .zst out' --to sqlite -o x.zst "$small"
wrong "(got '-1')" --to csv --device -1 "$small"
wrong 'takes only one FILE' --to csv "$small" "$small"
wrong '--to needs a value' "$small" --to
wrong "unknown option '--what'" --what "$small"
run 0 --help
has out '^Usage: weir export'
has out '^Exit codes: '

# ---- Reading with other programs ----
if ! command -v python3 >/dev/null; then
  echo "waived: no python3 to read what was written"
  [ "$failed" -eq 0 ] && exit 77
  exit 1
fi

# A file with unusual contents: three devices, one without events; texts that need quotes or are not UTF-8; events that
# failed, that are unknown, or that have no time.
cat >"$work/make.py" <<'END'
import pickle, sys
frames = [{"name": 'quote " comma , line \n end', "filename": "/a/\udc80b\0c\u00e9.py", "line": 7}]
def event(action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}
oom = {"action": "oom", "device_free": 77, "size": 1 << 40, "stream": 9, "time_us": 40, "frames": frames}
one = [event("segment_alloc", 4096, 2097152, time_us=10), event("alloc", 4096, 512, time_us=20, pool_id=(0, 1)),
       event("free_requested", 4096, 512, time_us=30, user_metadata="mine", compile_context="0/1", phase="step"),
       event("free_completed", 4096, 512, time_us=30), oom, event("new_action", 1, 2, time_us=50)]
two = [event("segment_alloc", 8192, 2097152), event("alloc", 8192, 1024)]
block = {"address": 4096, "size": 2097152, "requested_size": 512, "state": "inactive", "frames": frames}
live = {"address": 8192, "size": 1024, "requested_size": 1024, "state": "active_allocated", "frames": []}
rest = {"address": 9216, "size": 2096128, "requested_size": 0, "state": "inactive", "frames": []}
def segment(device, address, blocks):
    return {"device": device, "address": address, "total_size": 2097152, "allocated_size": 0, "active_size": 0,
            "requested_size": 0, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": [], "blocks": blocks}
marks = [{"stage": "END", "name": "step", "device": 0, "time_us": 5}, {"stage": "START", "name": "step", "device": 0, "time_us": 15}, {"stage": "START", "name": "io", "time_us": 16},
         {"stage": "END", "name": "step", "device": 0, "time_us": 35}, {"stage": "END", "name": "io", "time_us": 45},
         {"stage": "MARK", "name": "point", "device": 2, "time_us": 46},
         {"stage": "START", "name": "step", "device": 1, "time_us": 47}]
snapshot = {"segments": [segment(2, 8192, [live, rest]), segment(0, 4096, [block])], "device_traces": [one, [], two],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:b", "x": 1.5, "d": {"1": 2}}, "external_annotations": marks}
pickle.dump(snapshot, open(sys.argv[1], "wb"))
END
cat >"$work/read.py" <<'END'
import csv, io, json, pickle, subprocess, sys
weir, file, has_sqlite, database = sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4]
def export(*arguments):
    return subprocess.run([weir, "export", file, *arguments], check=True, capture_output=True).stdout.decode()
def same(what, got, expected):
    assert got == expected, f"{what}: {got!r}, expected {expected!r}"

name, path = 'quote " comma , line \n end', "/a/\ufffdb?c\u00e9.py"
original = pickle.load(open(file, "rb"))
data = json.loads(export("--to", "json"))
same("keys", set(data), set(original))
same("events", [len(t) for t in data["device_traces"]], [6, 0, 2])
same("oom", data["device_traces"][0][4], {"action": "oom", "device_free": 77, "size": 1 << 40, "stream": 9, "time_us": 40,
     "compile_context": "N/A", "user_metadata": "", "frames": [{"name": name, "filename": path, "line": 7}]})
same("other", data["device_traces"][0][5]["action"], "new_action")
same("pool", data["device_traces"][0][1]["pool_id"], [0, 1])
same("segments", [s["address"] for s in data["segments"]], [4096, 8192])
same("settings", data["allocator_settings"], original["allocator_settings"])
same("annotations", data["external_annotations"], original["external_annotations"])
one = json.loads(export("--to", "json", "--device", "2"))
same("events of one", [len(t) for t in one["device_traces"]], [0, 0, 2])
same("segments of one", [s["device"] for s in one["segments"]], [2])
same("annotations of one", [a["name"] for a in one["external_annotations"]], ["io", "io", "point"])

def table(name, *more):
    return list(csv.DictReader(io.StringIO(export("--to", "csv", "--table", name, *more), newline="")))
rows = table("events")
same("rows", len(rows), 8)
same("allocated", [int(r["allocated"]) for r in rows], [0, 512, 0, 0, 0, 0, 0, 1024])
same("reserved", [int(r["reserved"]) for r in rows], 8 * [2097152])
same("free memory", (rows[4]["device_free"], rows[4]["address"], rows[4]["stream"]), ("77", "", "9"))
same("no time", rows[6]["time_us"], "")
same("metadata", (rows[2]["user_metadata"], rows[2]["compile_context"], rows[2]["phase"]), ("mine", "0/1", "step"))
same("phases", [e.get("phase") for e in data["device_traces"][0][:3]], [None, None, "step"])
same("rows of one", len(table("events", "--device", "2")), 2)
same("frames", table("frames"), [{"frame": "0", "name": name, "filename": path, "line": "7"}])
same("blocks", [(b["segment"], b["state"]) for b in table("blocks")],
     [("0", "inactive"), ("1", "active_allocated"), ("1", "inactive")])

trace = json.loads(export("--to", "perfetto"))["traceEvents"]
for e in trace:
    assert isinstance(e["pid"], int) and e["pid"] > 0 and e["name"] and (e["ph"] == "M" or e["ts"] >= 0), e
def counter(name, pid):
    return [(e["ts"], e["args"]["bytes"]) for e in trace if e["ph"] == "C" and e["name"] == name and e["pid"] == pid]
same("counter", counter("allocated", 1), [(10, 0), (20, 512), (30, 0)])
same("counter", counter("reserved", 3), [(0, 2097152)])
same("instants", sum(e["ph"] == "i" for e in trace), 9)
ranges = [e for e in trace if e["ph"] in "be" and e["cat"] == "annotation"]
same("ranges", [(e["ph"], e["name"], e["pid"]) for e in ranges],
     [("b", "step", 1), ("b", "io", 4), ("e", "step", 1), ("e", "io", 4), ("b", "step", 2)])
assert len({(e["name"], e["pid"], e["id"]) for e in ranges}) == 3, trace
spans = [e for e in trace if e["ph"] in "be" and e["cat"] == "block"]
same("spans", [(e["ph"], e["name"], e["pid"], e["ts"]) for e in spans],
     [("b", "blocks of private pool (0, 1)", 1, 20), ("e", "blocks of private pool (0, 1)", 1, 30),
      ("b", "blocks of the default pool", 3, 1)])
same("span", spans[0]["args"], {"size": 512, "address": "0x1000", "stream": "the default stream"})
same("flows", [(e["ph"], e["pid"], e["tid"], e["ts"]) for e in trace if e["ph"] in "sf"], [("s", 1, 2, 20), ("f", 1, 2, 30)])

def lines(*more):
    return export("--to", "collapsed", *more).splitlines()
same("collapsed", lines("--at", "1", "--device", "0"), ["device 0;no stack recorded;blocks of 512 bytes 512"])
same("collapsed", lines("--at", "end"), ["device 2;no stack recorded;blocks of 1.00 KiB 1024"])
same("names", [e["args"]["name"] for e in trace if e["name"] == "process_name"], ["device 0", "device 2", "program", "device 1"])

if has_sqlite:
    import sqlite3
    export("--to", "sqlite", "-o", database)
    db = sqlite3.connect(database)
    def ask(sql):
        return db.execute(sql).fetchall()
    same("integrity", ask("PRAGMA integrity_check"), [("ok",)])
    for t in ["segments", "blocks", "events", "stacks", "frames", "annotations", "settings", "work"]:
        mine = [tuple(None if v is None else str(v) for v in row) for row in ask(f"SELECT * FROM {t} ORDER BY 1, 2")]
        # an empty field means a missing value or an empty text
        theirs = [tuple(row.values()) for row in table(t)]
        same(t, [tuple(v or "" for v in row) for row in mine], theirs)
    same("view", ask("SELECT name, line FROM events JOIN stack_frames USING (stack) WHERE action = 'oom'"), [(name, 7)])
    plan = ask("EXPLAIN QUERY PLAN SELECT * FROM events WHERE address = 4096")[0][3]
    assert "events_address" in plan, plan
    same("metadata", ask("SELECT DISTINCT user_metadata, typeof(user_metadata) FROM events ORDER BY 1"),
         [("", "text"), ("mine", "text")])
    same("pools", ask("SELECT DISTINCT pool_first, pool_second FROM events ORDER BY 1"), [(None, None), (0, 1)])
END
said='weir export, read by python3'
python3 "$work/make.py" "$work/odd.pickle" >"$work/out" 2>"$work/err" || fail 'no file to export'
if [ "$has_sqlite" -eq 1 ] && ! python3 -c 'import sqlite3' 2>/dev/null; then
  has_sqlite=0
fi
python3 "$work/read.py" "$weir" "$work/odd.pickle" "$has_sqlite" "$work/odd.db" >"$work/out" 2>"$work/err" ||
  fail 'not what was expected'
left

# A trace follows the rules of its format: for the file above, for one of its devices, and for jobs.
rules=$(dirname "$0")/../support/check_trace.py
set -- "$work/odd.pickle" "$small"
if ! "$weir" summary "$data/traces/cuda_graphs.pickle.zst" 2>&1 | grep -qi 'without.*zstd'; then
  set -- "$@" "$data/traces/cuda_graphs.pickle.zst" "$data/traces/resnet_stacks.pickle.zst" \
    "$data/histories/capped_streams.pickle.zst" "$data/late/llama_oom.pickle.zst"
fi
for file in "$@"; do
  run 0 --to perfetto -o "$work/trace.json" "$file"
  python3 "$rules" "$work/trace.json" >"$work/out" 2>"$work/err" || fail 'against the rules of the format'
done
run 0 --to perfetto --device 2 -o "$work/trace.json" "$work/odd.pickle"
python3 "$rules" "$work/trace.json" >"$work/out" 2>"$work/err" || fail 'against the rules of the format'

# Flame graphs have the bytes of the summary at the peak, and the stacks of the file; a speedscope file follows its
# schema.
cat >"$work/flame.py" <<'END'
import json, subprocess, sys
weir, *files = sys.argv[1:]
def run(*arguments):
    return subprocess.run([weir, *arguments], check=True, capture_output=True).stdout.decode()
for file in files:
    devices = [d for d in json.loads(run("summary", "--json", file))["devices"] if d["events"]]
    for at in ["peak", "end", "0", "1"]:
        collapsed = {}
        for line in run("export", "--to", "collapsed", "--at", at, file).splitlines():
            stack, space, count = line.rpartition(" ")
            frames = stack.split(";")
            assert frames[0].startswith("device ") and all(frames) and int(count) >= 0, (file, line)
            collapsed[frames[0]] = collapsed.get(frames[0], 0) + int(count)
        for d in devices:
            name = f"device {d['device']}"
            expected = {"peak": d["peak_live"], "end": d["end_requested"]}.get(at)
            if expected is not None and "small_snapshot" not in file:  # its history is cut
                assert collapsed.get(name, 0) == expected, (file, at, collapsed, expected)
        profile = json.loads(run("export", "--to", "speedscope", "--at", at, file))
        assert profile["$schema"] == "https://www.speedscope.app/file-format-schema.json"
        assert set(profile) == {"$schema", "exporter", "activeProfileIndex", "shared", "profiles"}, profile.keys()
        frames = profile["shared"]["frames"]
        for frame in frames:
            assert isinstance(frame["name"], str) and set(frame) <= {"name", "file", "line", "col"}, frame
            assert isinstance(frame.get("file", ""), str) and isinstance(frame.get("line", 0), int), frame
        for p in profile["profiles"]:
            assert set(p) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}, p.keys()
            assert p["type"] == "sampled" and p["unit"] == "bytes" and p["startValue"] == 0, p
            assert len(p["samples"]) == len(p["weights"]) and sum(p["weights"]) == p["endValue"], file
            assert all(0 <= f < len(frames) for sample in p["samples"] for f in sample), file
            assert collapsed.get(p["name"].split(":")[0], 0) == p["endValue"], (file, at)
        assert profile["profiles"], file
for file in [f for f in files if "resnet_stacks" in f]:
    stacks = run("export", "--to", "collapsed", "--at", "peak", file).splitlines()
    # From the outermost frame to the innermost.
    assert any(s.startswith("device 0;<module> (workloads.py:") and ";_conv_forward (conv.py:" in s for s in stacks), stacks[:3]
END
said='weir export --to collapsed and speedscope, read by python3'
python3 "$work/flame.py" "$weir" "$@" >"$work/out" 2>"$work/err" || fail 'not what was expected'

if [ "$has_sqlite" -eq 0 ] && [ "$failed" -eq 0 ]; then
  echo "waived: no SQLite in this build, or none in python3"
  exit 77
fi
exit $failed
