#!/bin/sh
# timeline.sh PROGRAM VERSION: the timeline of a profiled run on the software device. TIMELINE_JOB is a program that
# makes recordings of one.
set -u
tested=
# shellcheck source-path=SCRIPTDIR source=../../tests/support/cli.sh
. "$(dirname "$0")/../../tests/support/cli.sh"
if [ -z "${TIMELINE_JOB:-}" ]; then
  echo 'waived: libweir_compute is not built'
  exit 77
fi

cat >"$work/read.py" <<'END'
import csv, json, pickle, subprocess, sys
weir, file, clock, kind = sys.argv[1:]

def same(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"

def export(file, *more):
    return json.loads(subprocess.run([weir, "export", file, *more], stdout=subprocess.PIPE, check=True).stdout)

def read(trace):
    trace = trace["traceEvents"]
    names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["ph"] == "M"}
    work = sorted((e for e in trace if e["ph"] == "X"), key=lambda e: e["ts"])
    same("work", sorted((e["cat"], e["name"], e["args"].get("bytes")) for e in work),
         [("copy", "memcpy DtoD", 32768), ("copy", "memcpy DtoH", 65536), ("fill", "memset", 65536),
          ("kernel", "weir_spin", None)])
    spin, = [e for e in work if e["name"] == "weir_spin"]
    others = [e for e in work if e is not spin]
    same("device", {names["process_name", e["pid"], 0] for e in work}, {"device 0"})
    rows = {e["tid"] for e in others}
    same("rows of the first stream", len(rows), 1)
    assert spin["tid"] not in rows
    for tid in rows | {spin["tid"]}:
        assert names["thread_name", spin["pid"], tid].startswith("work of stream 0x"), names
    allocations = [e for e in trace if e["ph"] == "i" and e["name"] == "alloc"]
    same("stream of allocations", {"work of " + names["thread_name", e["pid"], e["tid"]] for e in allocations},
         {names["thread_name", spin["pid"], tid] for tid in rows})
    for one, next in zip(others, others[1:]):
        assert one["ts"] + one["dur"] <= next["ts"], (one, next)
    for e in work:
        assert abs(e["dur"] - e["args"]["duration_ns"] / 1000) <= 0.25, e
    if clock == "stepped":
        same("durations", {e["name"]: e["args"]["duration_ns"] for e in work},
             {"memset": 1655, "memcpy DtoH": 1655, "memcpy DtoD": 1327, "weir_spin": 201000})
    else:
        assert spin["dur"] >= 200, spin
        # Work is on the clock of the allocations, and inside its range.
        step = [e["ts"] for e in trace if e["ph"] in "BE" and e["name"] == "step"]
        for e in work:
            assert step[0] - 1 <= e["ts"] and e["ts"] + e["dur"] <= step[1] + 1000, (e, step)
        assert step[0] <= allocations[0]["ts"] <= others[0]["ts"] + 1

    slices = [e for e in trace if e["ph"] in "BE"]
    same("process of ranges", {names["process_name", e["pid"], 0] for e in slices}, {"program"})
    threads = {}
    for e in slices:
        same("row of a thread", names["thread_name", e["pid"], e["tid"]], "thread %d" % e["tid"])
        threads.setdefault(e["tid"], []).append((e["ph"], e["name"]))
    same("ranges", sorted(threads.values()),
         [[("B", "second thread"), ("E", "second thread")],
          [("B", "step"), ("B", "copy back"), ("E", "copy back"), ("E", "step")]])
    same("ranges across threads", [(e["ph"], e["name"]) for e in trace if e.get("cat") == "annotation"],
         [("b", "across threads"), ("e", "across threads")])
    marks = [e for e in trace if e["ph"] == "i" and e["name"] == "user_defined"]
    same("marks", [(e["args"]["user_metadata"], e["args"]["phase"]) for e in marks], [("copied", "step")])
    same("phases", {e["args"]["phase"] for e in allocations}, {"step"})

read(export(file, "--to", "perfetto"))
same("nothing of device 1", [e for e in export(file, "--to", "perfetto", "--device", "0")["traceEvents"]
                             if e["ph"] == "X" and e["pid"] != 1], [])

# Work is kept by a conversion, and is no annotation for the rest of the program.
data = export(file, "--to", "json")
work = [a for a in data["external_annotations"] if a["stage"] == "WORK"]
same("keys", {tuple(sorted(a)) for a in work},
     {("bytes", "device", "duration_ns", "kind", "name", "stage", "start_ns", "stream", "time_us")})
same("texts", {type(a[k]) for a in work for k in ("bytes", "start_ns", "stream", "duration_ns", "kind")}, {str})
same("other annotations", len(data["external_annotations"]) - len(work), 8)
same("table", len(subprocess.run([weir, "export", file, "--to", "csv", "--table", "annotations"],
                                 stdout=subprocess.PIPE, check=True).stdout.splitlines()), 9)

# The same as a table.
table = list(csv.DictReader(subprocess.run([weir, "export", file, "--to", "csv", "--table", "work"], text=True,
                                           stdout=subprocess.PIPE, check=True).stdout.splitlines()))
items = [r for r in table if r["kind"] != "range"]
same("items of the table", sorted((r["kind"], r["name"], r["bytes"], r["start_ns"], r["duration_ns"], r["stream"])
                                  for r in items),
     sorted((a["kind"], a["name"], a["bytes"].replace("0", "", a["bytes"] == "0"), a["start_ns"], a["duration_ns"],
             a["stream"]) for a in work))
spans = {r["name"]: r for r in table if r["kind"] == "range"}
same("ranges of the table", sorted(spans), ["across threads", "copy back", "second thread", "step"])
same("threads", [bool(spans[n]["thread"]) for n in sorted(spans)], [False, True, True, True])
inner, outer = spans["copy back"], spans["step"]
same("thread", inner["thread"], outer["thread"])
assert int(outer["start_ns"]) <= int(inner["start_ns"]), spans
assert int(inner["start_ns"]) + int(inner["duration_ns"]) <= int(outer["start_ns"]) + int(outer["duration_ns"]), spans
if kind == "pickle":
    with open(file, "rb") as f:
        same("pickle", sorted(a["name"] for a in pickle.load(f)["external_annotations"] if a["stage"] == "WORK"),
             ["memcpy DtoD", "memcpy DtoH", "memset", "weir_spin"])
    # A redacted copy has the times, and no names.
    subprocess.run([weir, "redact", file, "-o", file + ".redacted"], stdout=subprocess.PIPE, check=True)
    hidden = [e for e in export(file + ".redacted", "--to", "perfetto")["traceEvents"] if e["ph"] == "X"]
    plain = [e for e in export(file, "--to", "perfetto")["traceEvents"] if e["ph"] == "X"]
    same("times", [(e["ts"], e["dur"], e["cat"], e["tid"]) for e in hidden],
         [(e["ts"], e["dur"], e["cat"], e["tid"]) for e in plain])
    assert all(e["name"].startswith("a_") for e in hidden), hidden
END

for clock in threads stepped; do
  said="timeline_job, $clock"
  mkdir "$work/$clock"
  WEIR_DRIVER=soft WEIR_SOFT_CLOCK=$clock WEIR_RECORD="$work/$clock" WEIR_RECORD_MB=8 \
    "$TIMELINE_JOB" "$work/$clock.pickle" >"$work/out" 2>"$work/err" || fail 'it failed'
  for file in "$work/$clock.pickle" "$work/$clock"/*.ring; do
    said="weir export --to perfetto $file"
    python3 "$work/read.py" "$weir" "$file" "$clock" "${file##*.}" >"$work/out" 2>"$work/err" || fail 'not as expected'
    "$weir" export "$file" --to perfetto -o "$work/trace.json" >"$work/out" 2>"$work/err"
    python3 "$(dirname "$0")/../../tests/support/check_trace.py" "$work/trace.json" >"$work/out" 2>"$work/err" ||
      fail 'against the rules of the format'
    "$weir" replay --check "$file" >"$work/out" 2>"$work/err" || fail 'the replay differs'
  done
done

# Work of other devices, numbers at their limits, and annotations that only look like work.
cat >"$work/odd.py" <<'END'
import json, pickle, subprocess, sys
weir, file, odd = sys.argv[1:]
with open(file, "rb") as f:
    data = pickle.load(f)
work = next(a for a in data["external_annotations"] if a["stage"] == "WORK")
most = str(2**64 - 1)
good = [dict(work, device=3, name="elsewhere", stream="0"), dict(work, name="long", duration_ns=most, bytes=most, stream=most)]
bad = [dict(work, name="bad", **change) for change in
       [{"start_ns": most}, {"start_ns": "-1"}, {"bytes": "1x"}, {"stream": ""}, {"duration_ns": "9" * 30}, {"stage": "work"}]]
del bad[0]["kind"]
data["external_annotations"] = good + bad
with open(odd, "wb") as f:
    pickle.dump(data, f)
trace = json.loads(subprocess.run([weir, "export", odd, "--to", "perfetto"], stdout=subprocess.PIPE, check=True).stdout)
slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert sorted(e["name"] for e in slices) == ["elsewhere", "long"], slices
assert sum(e["name"] == "bad" and e["ph"] == "i" for e in trace["traceEvents"]) == len(bad), trace
names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
assert sorted(names[e["pid"], e["tid"]] for e in slices) == ["work of stream 0x" + 16 * "f", "work of the default stream"], names
END
said='weir export, odd work'
python3 "$work/odd.py" "$weir" "$work/threads.pickle" "$work/odd.pickle" >"$work/out" 2>"$work/err" || fail 'not as expected'
"$weir" export "$work/odd.pickle" --to perfetto -o "$work/trace.json" >"$work/out" 2>"$work/err"
python3 "$(dirname "$0")/../../tests/support/check_trace.py" "$work/trace.json" >"$work/out" 2>"$work/err" ||
  fail 'against the rules of the format'

exit "$failed"
