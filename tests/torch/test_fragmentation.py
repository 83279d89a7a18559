"""bench/torch/fragmentation.py with stand-ins for PyTorch and the adapter: test_fragmentation.py ROOT."""
import json
import os
import re
import subprocess
import sys
import tempfile

TORCH = """
import os, types
class OutOfMemoryError(RuntimeError): pass
limit = None
def synchronize(): pass
def set_per_process_memory_fraction(fraction):
    global limit
    limit = fraction * 1000
native = not os.environ.get("PYTORCH_CUDA_ALLOC_CONF") and not os.environ.get("WEIR_ALLOC_CONF")
cuda = types.SimpleNamespace(
    synchronize=synchronize, init=lambda: None, OutOfMemoryError=OutOfMemoryError,
    max_memory_allocated=lambda: 100, max_memory_reserved=lambda: 200 if native else 125,
    get_device_properties=lambda device: types.SimpleNamespace(total_memory=1000),
    set_per_process_memory_fraction=set_per_process_memory_fraction)
"""
ADAPTER = """
import os
calls = {"cuInit": (1, 5_000_000_000, 9), "cuMemMap": (0, 0, 0), "cuEventQuery": (0, 0, 0)}
def install(): pass
def settings(): return os.environ.get("WEIR_ALLOC_CONF", "")
def memory_stats(): return {"moving.pages_made": 1, "moving.pages_moved": 2, "moving.pages_returned": 3,
                            "moving.aliases_peak": 4, "num_ooms": 0}
def driver_timing():
    assert os.environ["WEIR_DRIVER_TIMING"] == "1"
    return {name: value for name, value in calls.items() if value[0]}
def call(name, ns):
    calls[name] = (calls[name][0] + 1, calls[name][1] + ns, ns)
"""
JOB = """
import sys, json
import torch, beside
if sys.argv[1] == "breaks":
    raise RuntimeError("it broke")
try:
    import weir_torch
except ImportError:
    weir_torch = None
torch.cuda.synchronize()
error = None
try:
    for step in range(6):
        if weir_torch and (step < 3 or sys.argv[1] == "busy"):
            weir_torch.call("cuMemMap", 1_000_000)
        if torch.limit and torch.limit < 125 and step == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried")
        beside.synchronize()  # no step: it is another file's
        torch.cuda.synchronize()
except torch.cuda.OutOfMemoryError as problem:
    error = str(problem)
print(json.dumps({"name": sys.argv[1], "err": error}))
"""


def check_names(root):
    """The jobs that run by default are those of jobs.py, which imports PyTorch and is only read here."""
    def read(name, pattern):
        with open(os.path.join(root, "bench", "torch", name)) as file:
            return [job.strip() for job in re.search(pattern, file.read(), re.MULTILINE)[1].split(",")]

    assert read("fragmentation.py", r'^JOBS = "(.*)"') == read("jobs.py", r"for job in \(([^)]*)\)")


def main(root):
    check_names(root)
    with tempfile.TemporaryDirectory() as folder:
        def write(path, text):
            path = os.path.join(folder, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
            return path

        write("path/torch.py", TORCH)
        write("package/weir_torch/__init__.py", ADAPTER)
        write("jobs/beside.py", "import torch\ndef synchronize(): torch.cuda.synchronize()\n")
        job, out = write("jobs/job.py", JOB), os.path.join(folder, "out.json")

        def bench(*arguments):
            command = [sys.executable, os.path.join(root, "bench", "torch", "fragmentation.py"), "--jobs-file", job,
                       "--package", os.path.join(folder, "package"), "--json", out, *arguments]
            env = dict(os.environ, PYTHONPATH=os.path.join(folder, "path"), PYTHONDONTWRITEBYTECODE="1")
            done = subprocess.run(command, env=env, capture_output=True, text=True)
            assert "Traceback" not in done.stderr, done.stderr
            with open(out) as file:
                return done.returncode, done.stdout, json.load(file)

        code, text, results = bench("--jobs", "quiet,busy", "--runs", "2", "--twice")
        assert code == 0, text
        assert len(results["jobs"]) == 2 * 7 * 2
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        quiet = next(row for row in rows if row[:2] == ["quiet", "weir-moving"])
        assert quiet[2:8] == ["0.000", "0.000", "20.00 %", "3.00", "3", "0"] and quiet[8] == "0.00", quiet
        busy = next(row for row in rows if row[:2] == ["busy", "weir-moving"])
        assert busy[5:9] == ["6.00", "6", "0", "1.00"], busy
        native = next(row for row in rows if row[:2] == ["quiet", "native"])
        assert native[4:9] == ["50.00 %", "-", "-", "-", "-"], native
        assert any(row[:4] == ["busy", "20.00 %", "0", "cuMemMap 3"] and row[4] == "1.00" for row in rows), text
        moving = next(result for result in results["jobs"] if result["setting"] == "weir-moving")
        assert moving["settings"] == "moving_pages:True" and moving["step_calls"] == [1, 1, 1, 0, 0, 0], moving
        assert len(moving["steps_ms"]) == 6 and "cuInit" not in moving["driver"]

        code, text, results = bench("--jobs", "breaks", "--settings", "native")
        assert code == 1 and "RuntimeError: it broke" in text, text

        code, text, results = bench("--limits", "quiet=124,quiet=130,quiet=1.25x", "--settings", "expandable")
        assert [result["limit"] for result in results["limits"]] == [124, 130, 125], results
        assert [bool(result["error"]) for result in results["limits"]] == [True, False, False], results
        assert "| 0.000 | out of memory | 2 |" in text and "| finished | 6 |" in text, text


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
