"""The same work under PyTorch's own allocator and under Weir has equal statistics, snapshots, history and losses."""
import json
import os
import subprocess
import sys

import harness
from harness import equal

harness.install()
RESULTS = {}


def run(weir, expandable, record):
    command = [sys.executable, os.path.join(harness.HERE, "scenarios.py")] + (["--record"] if record else [])
    environment = dict(os.environ, WEIR_TORCH="1" if weir else "0", SCENARIO_EXPANDABLE="1" if expandable else "0")
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def results(expandable, record, attempt=0):
    key = (expandable, record, attempt)
    if key not in RESULTS:
        both = []
        for process in [run(weir, expandable, record) for weir in (False, True)]:
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err[-3000:]
            both.append({r["scenario"]: r for r in map(json.loads, out.splitlines())})
        RESULTS[key] = both
    return RESULTS[key]


def differences(native, weir):
    different = [f"{part} {key}: PyTorch {native[part].get(key)}, Weir {weir[part].get(key)}"
                 for part in ("stats", "after") for key in sorted(set(native[part]) | set(weir[part]))
                 if native[part].get(key) != weir[part].get(key)]
    if native["segments"] != weir["segments"]:
        different.append(f"segments: PyTorch {len(native['segments'])}, Weir {len(weir['segments'])}")
        for a, b in zip(native["segments"], weir["segments"]):
            if a != b:
                different.append(f"  PyTorch {str(a)[:300]}\n  Weir    {str(b)[:300]}")
                break
    if native["summary"] != weir["summary"]:
        different.append("the summaries differ")
    if native.get("history") != weir.get("history"):
        a, b = native["history"], weir["history"]
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        different.append(f"history: {len(a)} and {len(b)} entries, first different at {at}: PyTorch {a[at:at + 3]},"
                         f" Weir {b[at:at + 3]}")
    return different


def compare(name, expandable=False, record=False):
    """Of blocks of one size the lowest is taken, so the result depends on the driver's addresses, and sometimes the
    driver places a segment into a gap between others. So a difference is retried, unless both runs had their segments
    in the same order."""
    for attempt in range(3):
        native, weir = (r[name] for r in results(expandable, record, attempt))
        different = differences(native, weir)
        if not different or (record and native["order"] == weir["order"]):
            break
    assert not different, "\n" + "\n".join(different[:30])


def add(name):
    def plain():
        compare(name)

    def expandable():
        compare(name, expandable=True)

    def recorded():
        compare(name, record=True)

    for kind in (plain, expandable, recorded):
        globals()[f"test_{name}_{kind.__name__}"] = kind


for scenario in ("small_blocks", "large_blocks", "many_streams", "other_streams_use_it", "rounded_up", "not_split",
                 "collected", "runs_short",
                 "graphs", "pools", "training"):
    add(scenario)


def test_losses_are_the_same_bits():
    for expandable in (False, True):
        native, weir = (r["training"] for r in results(expandable, False))
        equal(weir["losses"], native["losses"])


if __name__ == "__main__":
    harness.main(globals())
