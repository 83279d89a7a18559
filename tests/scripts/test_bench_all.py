"""bench/all on the software device, and with stand-ins for the contestants: test_bench_all.py ROOT BUILD."""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

root, build = (os.path.abspath(path) for path in sys.argv[1:3])
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(root, "bench", "against"))
import contestants  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

PLAYER = """
import sys, time
if {absent!r}:
    print("absent", {absent!r})
    sys.exit()
print("ready 1.0", flush=True)
rounds = 0
for line in sys.stdin:
    if line.startswith("round"):
        rounds += 1
        if {crash} and rounds > 2:
            print("it broke", file=sys.stderr)
            sys.exit(9)
    number = {ns} + rounds if line.startswith("round") else 0 if {refuses} and line.startswith("begin") else 1
    print(f"{{number:.6f}}", flush=True)
"""
JOBS = """
import sys, json, os
for line in sys.stdin:
    if line.startswith("graphs") and {crash}:
        sys.exit(7)
    print(json.dumps({{"weir": {weir}, "job": line.strip(), "steps_ms": [2.0, 4.0], "peak_allocated": 75,
                       "peak_reserved": 100}}), flush=True)
"""


def run(*arguments, code=0):
    command = [sys.executable, os.path.join(root, "bench", "all"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def load(path):
    with open(path) as file:
        return json.load(file)


def test_software_device(folder):
    """A real run: the C programs."""
    out = os.path.join(folder, "real")
    done = run("--quick", "--only", "pairs", "--out", out, "--build", build)
    data = load(os.path.join(out, "results.json"))
    assert data["format"] == 1 and data["quick"] and data["machine"]["cores"] > 0, data
    assert list(data["rows"]) == ["pairs.512B", "pairs.64KiB", "pairs.8MiB"], list(data["rows"])
    for row in data["rows"].values():
        for key in ("weir", "weir_moving", "malloc"):
            result = row["results"][key]
            assert 0 < result["least"] <= result["median"] <= result["most"] and len(result["samples"]) == 5, result
    assert report.cell(data["rows"]["pairs.512B"]["results"]["weir"]) in done.stdout, done.stdout
    ElementTree.parse(os.path.join(out, "results.svg"))
    with open(os.path.join(out, "results.md")) as file:
        assert "| pairs of 64 KiB |" in file.read()

    again = run("--quick", "--only", "pairs,pinned.512B", "--resume", "--out", out, "--build", build).stderr
    assert "[1/1" in again and "pinned.512B" in again and "pairs" not in again, again
    left = run("--quick", "--only", "pairs", "--budget", "0.01", "--out", out, "--build", build)
    assert "not measured within 0 s: pairs.512B,pairs.64KiB,pairs.8MiB" in left.stderr, left.stderr
    assert "unknown rows: what; the groups are pairs," in run("--only", "what", "--build", build, code=2).stderr


class Fakes(contestants.Contestants):
    """Contestants with other commands."""

    def __init__(self, players):
        super().__init__(True, build, print)
        self.fakes = players

    def command(self, key, language):
        if key not in self.fakes:
            raise contestants.Missing("not installed")
        return [sys.executable, "-c", PLAYER.format(**{"absent": "", "crash": False, "ns": 100, "refuses": False,
                                                       **self.fakes[key]})]


def test_turns():
    row = next(row for row in rows.all_rows() if row.key == "pairs.512B")
    fakes = Fakes({"torch": {"ns": 400}, "torch_async": {"crash": True}, "torch_weir": {"ns": 20},
                   "weir": {"absent": "no driver"}, "mimalloc": {"refuses": True}})
    found = rows.measure(row, fakes, None, rows.Scale(True), time.monotonic() + 60)["pairs.512B"]["results"]
    fakes.close()
    assert found["torch"]["samples"] == [402, 403, 404, 405, 406] and found["torch"]["median"] == 404, found
    assert found["torch_weir"]["least"] == 22 and found["torch_weir"]["most"] == 26, found
    assert found["torch_async"] == {"failed": "exit code 9: it broke"}, found
    assert found["weir"] == {"absent": "no driver"} and found["malloc"] == {"absent": "not installed"}, found
    assert found["mimalloc"] == {"absent": "does not have it"}, found
    return {"pairs.512B": {"group": "pairs", "title": row.title, "unit": "ns", "results": found}}


def test_jobs():
    job = next(row for row in rows.all_rows() if row.key == "jobs.graphs")

    class Players(rows.JobPlayers):
        def start(self, key):
            if key == "torch_expandable":
                raise contestants.Missing("not installed")
            code = JOBS.format(weir=key == "torch_weir", crash=key == "torch_async")  # torch_weir_moving has no Weir
            self.players.setdefault(key, contestants.Player([sys.executable, "-c", code], dict(os.environ)))
            return self.players[key]

    players = Players(None, rows.Scale(True))
    found = rows.measure(job, None, players, rows.Scale(True), time.monotonic() + 60)
    players.close()
    assert list(found) == ["jobs.graphs.step", "jobs.graphs.reserved", "jobs.graphs.fragmentation"], found
    assert found["jobs.graphs.step"]["results"]["torch"]["median"] == 3, found
    assert found["jobs.graphs.fragmentation"]["results"]["torch_weir"]["median"] == 25, found
    assert found["jobs.graphs.step"]["results"]["torch_async"]["failed"] == "exit code 7", found
    assert "another allocator" in found["jobs.graphs.step"]["results"]["torch_weir_moving"]["failed"], found
    assert found["jobs.graphs.step"]["results"]["torch_expandable"] == {"absent": "not installed"}, found
    broken = rows.failed_row(job, KeyError("what"))
    assert list(broken) == list(found) and broken["jobs.graphs.step"]["results"]["torch"] == {"failed": "KeyError: 'what'"}
    return found


def data_of(found, **machine):
    return {"format": 1, "quick": False, "rows": found, "runs": [],
            "machine": {"cpu": "Some CPU", "cores": 16, "memory_gib": 1, "gpu": "Some GPU", "gpu_memory": "1 GiB",
                        "driver": "1", "system": "Linux 6", **machine},
            "versions": {"python": "3.12", "weir": "1.0.0", "commit": None, "torch": "2.11.0"}}


def test_report(folder, turns, jobs):
    """The text has what the numbers say, and parts of a run can be joined if they come from one machine."""
    paths = [os.path.join(folder, name) for name in ("a.json", "b.json", "c.json")]
    for path, data in zip(paths, (data_of(jobs), data_of(turns), data_of(turns, cpu="Another CPU"))):
        with open(path, "w") as file:
            json.dump(data, file)
    out = os.path.join(folder, "joined")
    text = run("--merge", *paths[:2], "--out", out).stdout
    data = load(os.path.join(out, "results.json"))
    assert list(data["rows"])[0] == "pairs.512B" and len(data["rows"]) == 4, list(data["rows"])
    line = next(line for line in text.splitlines() if line.startswith("| pairs of 512 B"))
    assert line == "| pairs of 512 B | 404 (402 to 406) | failed | 24.0 (22.0 to 26.0) | 16.8 |", line
    assert "cudaMallocAsync: failed in `pairs.512B`: exit code 9: it broke" in text, text
    assert re.search(r"^\| `graphs` \| 25.0 ", text, re.M), text
    svg = report.svg(data)
    ElementTree.fromstring(svg)
    assert "prefers-color-scheme:dark" in svg and "PyTorch on Weir: 24.0 (22.0 to 26.0) ns" in svg, svg
    assert "differ in cpu: Another CPU and Some CPU" in run("--merge", paths[2], paths[0], "--out", out, code=2).stderr


def test_docs(turns):
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    new = report.replace_section(page, report.section({"some": data_of(turns)}))
    assert new.startswith("before\n") and new.endswith("\nafter\n") and "old" not in new and "404 (402 to 406)" in new
    assert report.replace_section(new, report.section({"some": data_of(turns)})) == new
    run("--check-docs")  # docs/evidence/benchmarks.md has what bench/results says


def main():
    with tempfile.TemporaryDirectory() as folder:
        test_software_device(folder)
        turns, jobs = test_turns(), test_jobs()
        test_report(folder, turns, jobs)
        test_docs(turns)


main()
