"""check_trace.py [FILE]: checks a trace against the Trace Event Format, as Perfetto's importer reads it.

It requires an object with traceEvents; for each entry a known phase, a name, numbers for pid and tid, and ts unless it
is metadata; instants with a scope; counters with numbers only; asynchronous ranges with category and id, each end after
its begin; slices that do not overlap in their thread, or that begin and end in turn; flows that begin once and end
once, each right after an instant of its thread; exactly one name for each used process and thread; and times that never
decrease per thread and per counter.
Prints the number of entries of each phase.
"""

import collections
import json
import sys

PHASES = {"M", "i", "C", "b", "e", "s", "f", "X", "B", "E"}  # the phases that Weir writes
METADATA = {"process_name", "thread_name"}
MAX = 1 << 53  # numbers in a browser are exact up to here


def is_int(value):
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX


def check(trace):
    assert isinstance(trace, dict) and trace["displayTimeUnit"] in ("ms", "ns"), "the object around it"
    assert isinstance(trace["traceEvents"], list), "traceEvents is no list"
    names, used, last = {}, set(), {}
    flows, instants = {}, {}
    begun, slices = collections.defaultdict(list), collections.defaultdict(list)
    phases = collections.Counter()
    for e in trace["traceEvents"]:
        phase = e["ph"]
        phases[phase] += 1
        assert phase in PHASES, ("phase", e)
        assert isinstance(e["name"], str) and is_int(e["pid"]) and is_int(e["tid"]), ("name, pid, tid", e)
        assert e["pid"] > 0, ("process 0 is the idle one", e)
        if phase == "M":
            assert e["name"] in METADATA and isinstance(e["args"]["name"], str), ("metadata", e)
            key = (e["pid"], e["tid"] if e["name"] == "thread_name" else None)
            assert key not in names, ("named twice", e)
            names[key] = e["args"]["name"]
            continue
        used.add((e["pid"], None))
        if phase == "X":
            # A double has quarters of a microsecond at present times.
            assert 0 <= e["ts"] < MAX and e["ts"] * 4 % 1 == 0 and e["dur"] >= 0 and e["cat"], ("slice", e)
            used.add((e["pid"], e["tid"]))
            slices[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
            continue
        assert is_int(e["ts"]) and e["ts"] >= 0, ("ts", e)
        if phase in "BE":
            used.add((e["pid"], e["tid"]))
            nested = begun["thread", e["pid"], e["tid"]]
            assert (nested[-1]["ts"] if nested else 0) <= e["ts"], ("runs back", e)
            if phase == "B":
                nested.append(e)
            else:
                assert nested and nested.pop()["name"] == e["name"], ("ends another range", e)
            continue
        if phase == "i":
            assert e["s"] in ("g", "p", "t"), ("scope", e)
            if e.get("cat") != "annotation":
                used.add((e["pid"], e["tid"]))
                row = ("thread", e["pid"], e["tid"])
                assert last.get(row, 0) <= e["ts"], ("runs back", e)
                last[row] = e["ts"]
                instants[row] = e["ts"]
        elif phase in "sf":
            # The importer binds a flow to the last slice of the thread.
            assert instants.get(("thread", e["pid"], e["tid"])) == e["ts"], ("a flow without an entry", e)
            key = (e["cat"], e["id"], e["name"])
            assert flows.get(key, 0) == (phase == "f"), ("a flow that begins or ends twice", e)
            assert phase == "s" or e["bp"] == "e", ("binds to the next slice", e)
            flows[key] = flows.get(key, 0) + 1
        elif phase == "C":
            assert e["args"] and all(is_int(v) for v in e["args"].values()), ("counter", e)
            row = ("counter", e["pid"], e["name"])
            assert last.get(row, 0) <= e["ts"], ("runs back", e)
            last[row] = e["ts"]
        else:
            assert isinstance(e["cat"], str) and e["cat"] and isinstance(e["id"], str) and e["id"], ("cat, id", e)
            key = (e["cat"], e["id"])
            if phase == "b":
                begun[key].append(e)
            else:
                assert begun[key], ("ends and never began", e)
                first = begun[key].pop()
                assert (first["name"], first["pid"]) == (e["name"], e["pid"]), ("ends another range", first, e)
                assert first["ts"] <= e["ts"], ("ends before it begins", first, e)
    for row in slices.values():
        row.sort()
        assert all(one[1] <= next[0] for one, next in zip(row, row[1:])), ("slices overlap", row)
    assert all(count == 2 for count in flows.values()), "a flow that does not end"
    for key in used:
        assert key in names, ("has no name", key)
    print(" ".join(f"{phase}:{phases[phase]}" for phase in sorted(phases)))


with open(sys.argv[1], encoding="utf-8") if len(sys.argv) > 1 else sys.stdin as file:
    check(json.load(file))
