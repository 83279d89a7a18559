#!/usr/bin/env python3
"""Measures what jobs reserve, and the time in driver calls, under PyTorch's allocators and under Weir.

    python3 bench/torch/fragmentation.py --jobs-file FILE [--jobs NAME,...] [--settings NAME,...] [--runs N] [--twice]
    python3 bench/torch/fragmentation.py --jobs-file FILE --limits JOB=LIMIT,... [--settings NAME,...]
    python3 bench/torch/fragmentation.py --side-streams [--settings NAME,...]

jobs     starts `python FILE NAME` for each job and setting, in a process of its own, and prints a table: peak allocated
         and reserved memory, fragmentation (1 - peak allocated / peak reserved), driver calls and their time, and step
         times. FILE calls torch.cuda.synchronize() before its first step and after each one: these calls delimit the
         steps. With --runs, the best time of each step counts.
limits   runs a job with at most LIMIT reserved: bytes, 20.5GB, 19GiB, or 1.03x for a multiple of its peak allocated,
         which a run without a limit measures first. Prints whether it finished.
streams  side streams that allocate, free and go idle, one after the other: what is reserved after the first and after
         the last.

Settings: native, expandable and async are PyTorch's own allocators; weir-native, weir-expandable and weir-moving are
Weir's. With equal settings Weir makes PyTorch's decisions, so the driver calls of weir-native and weir-expandable are
those of native and expandable. Calls that start the driver and query devices are left out.
"""
import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tools import HERE, PACKAGE, environment

SETTINGS = {  # name: (uses Weir, PYTORCH_CUDA_ALLOC_CONF, WEIR_ALLOC_CONF)
    "native": (False, "", ""),
    "expandable": (False, "expandable_segments:True", ""),
    "async": (False, "backend:cudaMallocAsync", ""),
    "weir-native": (True, "", ""),
    "weir-expandable": (True, "expandable_segments:True", ""),
    "weir-moving": (True, "", "moving_pages:True"),
}
JOBS = "fixed_shapes,random_lengths,recomputation,resolutions,generation,prefetching,graphs"  # of jobs.py
AGAIN = "-again"  # a second series of runs with the same setting, which shows the noise
# These wait for the device. cuMemFree does so implicitly.
WAITING = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemFree", "cuMemFreeHost", "cuMemcpy")
STARTING = ("cuInit", "cuDriverGetVersion", "cuDevice", "cuMemGetAllocationGranularity")
FIRST = 3  # steps that may call the driver in a repeating job
MIB = 1 << 20


# ---- In the process of a job ----

class Watch:
    """Notes the time and the driver calls so far at each mark. What the watch itself takes is not part of a step."""

    def __init__(self, torch, weir):
        self.torch, self.weir, self.ends, self.begins, self.calls = torch, weir, [], [], []

    def driver_calls(self):
        found = (self.weir.driver_timing() if self.weir else None) or {}
        return {name: list(value) for name, value in found.items() if not name.startswith(STARTING)}

    def mark(self):
        self.ends.append(time.perf_counter())
        self.calls.append(self.driver_calls())
        self.begins.append(time.perf_counter())

    def report(self, error):
        torch, report = self.torch, {"error": error}
        report["peak_allocated"] = torch.cuda.max_memory_allocated()
        report["peak_reserved"] = torch.cuda.max_memory_reserved()
        report["steps_ms"] = [1e3 * (end - begin) for begin, end in zip(self.begins, self.ends[1:])]
        if self.weir:
            report["driver"] = self.driver_calls()
            report["settings"] = self.weir.settings()
            report["moving"] = {name[7:]: value for name, value in self.weir.memory_stats().items()
                                if name.startswith("moving.")}
            totals = [[sum(call[i] for call in calls.values()) for i in (0, 1)] for calls in self.calls]
            report["step_calls"] = [late[0] - early[0] for early, late in zip(totals, totals[1:])]
            report["step_driver_ms"] = [(late[1] - early[1]) / 1e6 for early, late in zip(totals, totals[1:])]
            if len(self.calls) > FIRST + 1:
                before = self.calls[FIRST]
                report["late_calls"] = {name: value[0] - before.get(name, [0])[0]
                                        for name, value in self.calls[-1].items()
                                        if value[0] > before.get(name, [0])[0]}
        return report


def start(limit):
    import torch

    weir = None
    if os.environ.get("WEIR_TORCH") == "1":
        import weir_torch as weir

        weir.install()
    torch.cuda.init()
    if limit:
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.get_device_properties(0).total_memory))
    return torch, weir


def launch(out, limit, path, arguments):
    """Runs a job's file as its own program, watches its steps, and writes a report."""
    torch, weir = start(limit)
    watch, error = Watch(torch, weir), None
    synchronize, path = torch.cuda.synchronize, os.path.abspath(path)

    def watched(*args, **kwargs):
        synchronize(*args, **kwargs)
        if sys._getframe(1).f_code.co_filename == path:  # PyTorch calls it as well
            watch.mark()

    torch.cuda.synchronize = watched
    sys.argv, sys.path[0] = [path, *arguments], os.path.dirname(path)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        error = str(end.code) if end.code else None
    except Exception as failure:  # noqa: BLE001
        error = f"{type(failure).__name__}: {failure}"
    with open(out, "w") as file:
        json.dump(watch.report(error), file)


def side_streams(out, count):
    """Each stream in turn allocates about 2 GiB in blocks of many sizes, uses them, frees them and goes idle."""
    torch, weir = start(0)
    watch, reserved, sizes = Watch(torch, weir), [], [(8 + 13 * i % 97) * MIB for i in range(40)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    error = None
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            blocks = [torch.full((size,), number + 1, dtype=torch.uint8, device="cuda") for size in sizes]
            sums = torch.stack([block[::4096].sum(dtype=torch.int64) for block in blocks]).tolist()
            if sums != [size // 4096 * (number + 1) for size in sizes]:
                error = f"wrong data in stream {number}"
            del blocks
        stream.synchronize()
        watch.mark()
        reserved.append(torch.cuda.memory_reserved())
    report = watch.report(error)
    report["reserved"] = reserved
    with open(out, "w") as file:
        json.dump(report, file)


# ---- Starting them ----

def environment_of(setting, package):
    weir, torch_conf, weir_conf = SETTINGS[setting.removesuffix(AGAIN)]
    env = environment(package, weir)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "WEIR_ALLOC_CONF", "WEIR_DRIVER_TIMING"):
        env.pop(name, None)
    if torch_conf:
        env["PYTORCH_CUDA_ALLOC_CONF"] = torch_conf
    if weir:
        env.update(WEIR_DRIVER_TIMING="1", WEIR_ALLOC_CONF=weir_conf)
    return env


def run(setting, command, package, deadline):
    """Runs a process that writes a report, and returns the report."""
    left = deadline - time.time()
    if left < 5:
        return {"error": "not measured: the time is up"}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "report.json")
        full = [sys.executable, os.path.join(HERE, "fragmentation.py"), command[0], out, *command[1:]]
        try:
            done = subprocess.run(full, env=environment_of(setting, package), capture_output=True, text=True,
                                  timeout=left)
        except subprocess.TimeoutExpired:
            return {"error": "not measured: the time is up"}
        if not os.path.exists(out):
            return {"error": f"exit code {done.returncode}: {done.stderr.strip()[-600:]}"}
        with open(out) as file:
            report = json.load(file)
        for line in done.stdout.splitlines():  # a job may catch what went wrong, and print it
            if line.startswith("{") and line.endswith("}"):
                printed = json.loads(line)
                report["printed"] = printed
                report["error"] = report["error"] or printed.get("err")
        if done.returncode and not report["error"]:
            report["error"] = f"exit code {done.returncode}"
        return report


# ---- Results ----

def driver_ms(report):
    return sum(call[1] for call in report["driver"].values()) / 1e6


def waiting_calls(report):
    return sum(report["driver"].get(name, [0])[0] for name in WAITING)


def fragmentation(report):
    return 1 - report["peak_allocated"] / report["peak_reserved"] if report["peak_reserved"] else 0.0


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def best(reports):
    """One report for several runs of a job: the largest peaks and driver times, and the best time of each step."""
    good = [report for report in reports if not report.get("error")]
    if not good:
        return reports[-1] if reports else {"error": "not measured"}
    one = dict(max(good, key=lambda report: report["peak_reserved"]))
    one["steps_ms"] = [min(times) for times in zip(*(report["steps_ms"] for report in good))]
    if "driver" in one:
        one["driver"] = max((report["driver"] for report in good), key=lambda calls: sum(c[1] for c in calls.values()))
        one["step_driver_ms"] = [min(times) for times in zip(*(report["step_driver_ms"] for report in good))]
    return one


def percent(one, other):
    return f"{100 * (sum(one['steps_ms']) / sum(other['steps_ms']) - 1):+.2f} %"


def show_jobs(jobs, settings, found):
    head = ["job", "setting", "allocated GB", "reserved GB", "fragmentation", "driver ms", "calls", "waiting",
            f"calls a step after {FIRST}", "median step ms", "all steps s", "against native"]
    rows = []
    for job in jobs:
        native = best(found.get((job, "native"), []))
        for setting in settings:
            report = best(found.get((job, setting), []))
            if report.get("error"):
                rows.append([job, setting, report["error"].split("\n")[0][:100]] + ["-"] * 9)
                continue
            cells = [f"{report['peak_allocated'] / 1e9:.3f}", f"{report['peak_reserved'] / 1e9:.3f}",
                     f"{100 * fragmentation(report):.2f} %"]
            if "driver" in report:
                late, steps = report.get("late_calls"), len(report["steps_ms"]) - FIRST
                text = "-" if late is None else f"{sum(late.values()) / steps:.2f}"
                cells += [f"{driver_ms(report):.2f}", sum(call[0] for call in report["driver"].values()),
                          waiting_calls(report), text]
            else:
                cells += ["-"] * 4
            steps = report["steps_ms"]
            cells += [f"{statistics.median(steps):.2f}" if steps else "-", f"{sum(steps) / 1e3:.3f}"]
            cells.append(percent(report, native) if steps and native.get("steps_ms") else "-")
            rows.append([job, setting, *cells])
    table(head, rows)
    print("The driver calls of native and expandable are those of weir-native and weir-expandable.\n")


def show_calls(jobs, settings, found):
    names = []
    for reports in found.values():
        names += [name for name in best(reports).get("driver", {}) if name not in names]
    rows = []
    for job in jobs:
        for setting in settings:
            report = best(found.get((job, setting), []))
            if "driver" in report:
                calls = [report["driver"].get(name) for name in names]
                rows.append([job, setting] + [f"{c[0]} ({c[1] / 1e6:.2f})" if c else "0" for c in calls])
    if rows:
        print("Driver calls, and their time in ms\n")
        table(["job", "setting", *names], rows)


def show_moving(jobs, found):
    """Compares weir-moving with the other settings."""
    rows = []
    for job in jobs:
        moving, expandable, native = (best(found.get((job, name), []))
                                      for name in ("weir-moving", "weir-expandable", "native"))
        if moving.get("error"):
            continue
        row = [job, f"{100 * fragmentation(moving):.2f} %", waiting_calls(moving)]
        late = moving.get("late_calls")
        row.append("-" if late is None else ", ".join(f"{name} {count}" for name, count in late.items()) or 0)
        if "driver" in expandable:
            pairs = list(zip(moving["step_driver_ms"], expandable["step_driver_ms"]))[FIRST:]
            most = max((one - other for one, other in pairs), default=0)
            row += [f"{driver_ms(moving) / max(driver_ms(expandable), 1e-6):.2f}", f"{most:+.2f}"]
        else:
            row += ["-", "-"]
        row.append(f"{100 * driver_ms(moving) / max(sum(moving['steps_ms']), 1e-6):.2f} %")
        row.append(percent(moving, native) if native.get("steps_ms") else "-")
        again = best(found.get((job, "native" + AGAIN), []))
        row.append(percent(again, native) if native.get("steps_ms") and again.get("steps_ms") else "-")
        counts = moving["moving"]
        row.append(f"{counts['pages_made']}, {counts['pages_moved']}, {counts['pages_returned']}, "
                   f"{counts['aliases_peak']}")
        rows.append(row)
    if rows:
        print("weir-moving\n")
        table(["job", "fragmentation", "waiting calls", f"calls after step {FIRST}", "driver time / expandable",
               "most in one step above expandable, ms", "driver time / all steps", "steps against native",
               "native against itself", "pages made, moved, returned; most aliases"], rows)


# ---- Parts ----

def save(path, kind, results):
    if path:
        with open(path, "w") as file:
            json.dump({kind: results}, file, indent=1)


def measure_jobs(arguments, package, deadline):
    jobs, settings = arguments.jobs.split(","), arguments.settings.split(",")
    if arguments.twice:
        settings.append("native" + AGAIN)
    found, results, lock = {}, [], threading.Lock()

    def one(job, setting):
        begin = time.time()
        report = run(setting, ["--launch", "0", arguments.jobs_file, job, *arguments.arguments], package, deadline)
        with lock:
            found.setdefault((job, setting), []).append(report)
            results.append({"job": job, "setting": setting, **report})
            save(arguments.json, "jobs", results)
        print(f"  {job}, {setting}: {report.get('error') or 'finished'} ({time.time() - begin:.0f} s)", file=sys.stderr,
              flush=True)

    plan = [(job, setting) for n in range(arguments.runs) for job in jobs for setting in settings[:: -1 if n % 2 else 1]]
    with ThreadPoolExecutor(arguments.parallel) as workers:
        list(workers.map(lambda pair: one(*pair), plan))
    if arguments.parallel > 1:
        print("Several processes ran at the same time: all times are longer than alone.\n")
    show_jobs(jobs, settings, found)
    show_calls(jobs, settings, found)
    show_moving(jobs, found)
    return any(report.get("error") for reports in found.values() for report in reports)


def bytes_of(text, peak):
    """The bytes of a limit; `peak` returns the peak that a multiple refers to."""
    if text.endswith("x"):
        return int(float(text[:-1]) * peak())
    for unit, size in (("GiB", 1 << 30), ("MiB", MIB), ("GB", 10**9), ("MB", 10**6), ("", 1)):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * size)


def measure_limits(arguments, package, deadline):
    settings, rows, results, peaks = arguments.settings.split(","), [], [], {}

    def job_run(setting, limit, job):
        return run(setting, ["--launch", str(limit), arguments.jobs_file, job, *arguments.arguments], package, deadline)

    def peak_of(job):
        if job not in peaks:
            peaks[job] = job_run("weir-moving", 0, job).get("peak_allocated", 0)
        return peaks[job]

    for item in arguments.limits.split(","):
        job, _, text = item.partition("=")
        limit = bytes_of(text, lambda: peak_of(job))
        for setting in settings:
            if setting == "async":
                continue  # its limit is not one of reserved memory
            report = job_run(setting, limit, job)
            error, steps = report.get("error"), len(report.get("steps_ms", []))
            if not error:
                result = "finished"
            else:
                result = "out of memory" if "out of memory" in error else error.split("\n")[0][:100]
            results.append({"job": job, "setting": setting, "limit": limit, **report})
            save(arguments.json, "limits", results)
            most, peak = (report.get(name, 0) / 1e9 for name in ("peak_reserved", "peak_allocated"))
            rows.append([job, setting, f"{limit / 1e9:.3f}", result, steps, f"{peak:.3f}", f"{most:.3f}"])
    print("Runs under a limit\n")
    table(["job", "setting", "limit GB", "result", "steps", "allocated GB", "reserved GB"], rows)
    return False


def measure_streams(arguments, package, deadline):
    rows, results = [], []
    for setting in arguments.settings.split(","):
        report = run(setting, ["--launch-streams", str(arguments.streams)], package, deadline)
        results.append({"setting": setting, **report})
        save(arguments.json, "streams", results)
        if report.get("error"):
            rows.append([setting, report["error"].split("\n")[0][:100]] + ["-"] * 4)
            continue
        first, last = report["reserved"][0], report["reserved"][-1]
        driver = report.get("driver")
        rows.append([setting, f"{first / 1e9:.3f}", f"{last / 1e9:.3f}", f"{last / first:.2f}",
                     f"{driver_ms(report):.2f}" if driver else "-", waiting_calls(report) if driver else "-"])
    print(f"{arguments.streams} side streams, one after the other\n")
    table(["setting", "reserved after one, GB", "after all, GB", "ratio", "driver ms", "waiting calls"], rows)
    return any(result.get("error") for result in results)


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "--launch":
        return launch(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    if len(sys.argv) > 3 and sys.argv[1] == "--launch-streams":
        return side_streams(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default=PACKAGE, help="the output folder of adapters/torch/build.py (%(default)s)")
    parser.add_argument("--jobs-file", help="a program that runs the job named by its first argument")
    parser.add_argument("--jobs", default=JOBS, help="the jobs to run (%(default)s)")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="the settings to run (%(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="the number of runs of each (%(default)s)")
    parser.add_argument("--twice", action="store_true", help="also run native a second time, to show the noise")
    parser.add_argument("--parallel", type=int, default=1,
                        help="processes at the same time, if only memory matters (%(default)s)")
    parser.add_argument("--limits", help="limits to run under, such as random_lengths=1.03x")
    parser.add_argument("--side-streams", action="store_true", help="run the pattern of side streams")
    parser.add_argument("--streams", type=int, default=32, help="the number of side streams (%(default)s)")
    parser.add_argument("--seconds", type=float, default=590, help="the time limit of the whole run (%(default)s)")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("arguments", nargs="*", help="more arguments of the job, after --")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.settings.split(",") if name not in SETTINGS]
    if unknown:
        parser.error(f"unknown settings {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
    if not arguments.side_streams and not arguments.jobs_file:
        parser.error("--jobs-file is required, or --side-streams")
    package, deadline = os.path.abspath(arguments.package), time.time() + arguments.seconds
    if any(SETTINGS[name][0] for name in arguments.settings.split(",")) and not os.path.exists(
            os.path.join(package, "weir_torch", "__init__.py")):
        sys.exit(f"fragmentation.py: {package} has no adapter; build it with python3 adapters/torch/build.py")
    measure = measure_streams if arguments.side_streams else measure_limits if arguments.limits else measure_jobs
    return 1 if measure(arguments, package, deadline) else 0


if __name__ == "__main__":
    sys.exit(main())
