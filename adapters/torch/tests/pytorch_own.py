#!/usr/bin/env python3
"""Runs PyTorch's own tests under PyTorch's allocator and under Weir, and reports each test whose result differs.

    python3 adapters/torch/tests/pytorch_own.py SOURCE [--modes MODE,...] [--files NAME,...] [--only TEXT] [--json FILE]
    python3 adapters/torch/tests/pytorch_own.py --merge FILE... [--json FILE] [--save]
    python3 adapters/torch/tests/pytorch_own.py --docs | --check-docs

SOURCE is a source tree of PyTorch of the installed version, of which version.txt and the folder test are used: a pip
package has no tests. The modes are native, exact (Weir) and moving (Weir with moving_pages:True). Without --files these
run: test_cuda.py, which has the tests of MemPool; the same with expandable segments (test_cuda.py+expandable, which is
what test_cuda_expandable_segments.py does); inductor/test_cudagraph_trees.py; and, with several GPUs,
test_cuda_multigpu.py.

The tests of a file are divided among processes, several of which run at the same time. If a process ends in the middle
of a test, that test has crashed; one that does not end is ended; and a new process runs the rest. A test whose result
differs is repeated under both allocators, alone in its process, since the tests of a process affect each other; and
once more while no other test runs, since some use most of the GPU's memory. The last result counts. If FILE exists,
only what it lacks runs, so that the same command can continue after its time is up.

pytorch_reasons.txt lists the tests that may differ, each with the reason. The exit code is 1 if another one differs.
"""
import argparse
import importlib.util
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import pytorch_report as report  # noqa: E402

FILES = ("inductor/test_cudagraph_trees.py", "test_cuda.py", "test_cuda.py+expandable")
MULTIGPU = "test_cuda_multigpu.py"
EXPANDABLE = "+expandable"
TWINS = {"test_cuda_expandable_segments.py": "test_cuda.py+expandable"}
NOTHING = "(all)"  # stands for the tests of a file that has none
AGAIN = 75  # the exit code of a process that cannot use its device any more
ALONE, ALONE_ON_GPU = 1, 2  # how a test was repeated: in a process of its own; and while no other test runs
GRACE = 15  # seconds after its limit at which a test that does not react is ended


# ---- In the process of a test file ----

def test_cases(suite):
    for item in suite:
        if hasattr(item, "__iter__"):
            yield from test_cases(item)
        else:
            yield item


def supply_psutil():
    """One of the tests calls psutil.disk_partitions when it is loaded. Supplies it if it is missing."""
    try:
        import psutil
    except ImportError:
        psutil = sys.modules["psutil"] = type(sys)("psutil")
    if not hasattr(psutil, "disk_partitions"):
        psutil.disk_partitions = lambda all=False: []


def load_tests(path, expandable):
    import unittest

    name = os.path.basename(path).removesuffix(".py")
    sys.argv, sys.path[0] = [path], os.path.dirname(path)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if expandable:
        import torch

        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        for kind in vars(module).values():
            if isinstance(kind, type) and hasattr(kind, "expandable_segments"):
                kind.expandable_segments = lambda self: True
    for case in test_cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        yield case.id().removeprefix(name + "."), case


def run_case(case, seconds):
    """Returns the result of a test, and why it did not pass."""
    import unittest

    result = unittest.TestResult()
    signal.alarm(seconds)
    try:
        unittest.TestSuite([case]).run(result)
    except TimeoutError as error:
        return "timed out", str(error)
    finally:
        signal.alarm(0)
    problems = result.errors + result.failures
    if problems:
        kind = "timed out" if "TimeoutError: the test ran for more than" in problems[0][1] else "failed"
        return kind, problems[0][1]
    if result.unexpectedSuccesses:
        return "failed", "passed, but was expected to fail"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def is_device_usable():
    try:
        import torch

        torch.cuda.synchronize()
    except Exception:  # noqa: BLE001 - whatever it is, the next test would fail as well
        return False
    return True


def run_tests(plan):
    """Runs the tests of a file that plan["out"] does not have yet, and appends a line when each begins and ends."""
    done = {line["test"] for line in read_lines(plan["out"])}
    supply_psutil()

    def expire(*_):
        raise TimeoutError(f"the test ran for more than {plan['seconds']} s")

    signal.signal(signal.SIGALRM, expire)
    with open(plan["out"], "a") as file:
        def note(test, result, why="", seconds=0.0):
            line = {"test": test, "result": result, "why": why[-1500:], "seconds": round(seconds, 2)}
            file.write(json.dumps(line) + "\n")
            file.flush()

        for index, (test, case) in enumerate(load_tests(plan["path"], plan["expandable"])):
            if index % plan["shards"] != plan["shard"] or test in done:
                continue
            if plan["only"] and plan["only"].lower() not in test.lower() or plan["tests"] and test not in plan["tests"]:
                continue
            note(test, "begun")
            begin = time.monotonic()
            result, why = run_case(case, plan["seconds"])
            note(test, result, why, time.monotonic() - begin)
            if result in ("failed", "timed out") and not is_device_usable():
                os._exit(AGAIN)
    sys.stdout.flush()
    os._exit(0)  # what the tests left behind must not delay or break the exit


def read_lines(path):
    """Returns the complete lines of a file of results."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


# ---- Starting them ----

def environment(mode, work):
    package = os.environ.get("WEIR_TORCH_PACKAGE") or os.path.join(HERE, "..", "..", "..", "build", "torch")
    paths = [os.path.abspath(package), os.environ.get("PYTHONPATH")]
    if importlib.util.find_spec("expecttest") is None:
        paths.append(os.path.join(HERE, "stand_ins"))
    path = os.pathsep.join(filter(None, paths))
    env = dict(os.environ, PYTHONPATH=path, WEIR_TORCH="0" if mode == "native" else "1",
               TORCHINDUCTOR_CACHE_DIR=os.path.join(work, "inductor"), TRITON_CACHE_DIR=os.path.join(work, "triton"),
               TORCHINDUCTOR_COMPILE_THREADS="1")
    for name in ("WEIR_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        env.pop(name, None)
    if mode == "moving":
        env["WEIR_ALLOC_CONF"] = "moving_pages:True"
    return env


def end_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wait_for(process, out, limit, deadline):
    """Waits for a process of tests, and returns its exit code. Ends it if a test does not end ("stuck" is returned) or
    at the deadline (None)."""
    last, since = -1, time.time()
    while True:
        try:
            return process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            pass
        size, now = os.path.getsize(out) if os.path.exists(out) else 0, time.time()
        if size != last:
            last, since = size, now
        lines = read_lines(out)[-1:]
        is_stuck = lines and lines[0]["result"] == "begun" and now - since > limit + GRACE
        if now > deadline or is_stuck:
            end_group(process.pid)
            process.wait()
            return "stuck" if is_stuck else None


class Run:
    """The options and the results of a run."""

    def __init__(self, folder, arguments, results, complete):
        self.folder, self.arguments, self.results = folder, arguments, results
        self.complete = complete  # parts of which every test has a result
        self.deadline, self.lock = time.time() + arguments.seconds, threading.Lock()

    def run_part(self, file, mode, shard=0, shards=1, tests=None, alone=0):
        """Runs a share of a file's tests, in as many processes as it takes, and stores the results."""
        path, part = os.path.join(self.folder, file.removesuffix(EXPANDABLE)), [file, mode, shard, shards]
        if not tests and part in self.complete:
            return
        known = self.results[file].setdefault(mode, {})
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
            out, before, problem, code = os.path.join(work, "results"), -1, "", 0
            with self.lock, open(out, "w") as lines:  # what is known already is not run again
                for test, one in known.items():
                    if not tests and one["result"] not in report.UNFINISHED:
                        lines.write(json.dumps({"test": test, "result": "known", "why": ""}) + "\n")
            plan = {"path": path, "expandable": file.endswith(EXPANDABLE), "only": self.arguments.only, "out": out,
                    "seconds": self.arguments.seconds_a_test, "shard": shard, "shards": shards, "tests": tests}
            while time.time() < self.deadline:
                with open(os.path.join(work, "output"), "w+", errors="replace") as output:
                    command = [sys.executable, os.path.abspath(__file__), "--run", json.dumps(plan)]
                    process = subprocess.Popen(command, env=environment(mode, work), cwd=os.path.dirname(path),
                                               stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                               start_new_session=True)
                    code = wait_for(process, out, self.arguments.seconds_a_test, self.deadline)
                    end_group(process.pid)  # what the tests started
                    output.seek(0)
                    problem = output.read()[-1500:]
                lines = read_lines(out)
                open_tests = {line["test"] for line in lines if line["result"] == "begun"}
                open_tests -= {line["test"] for line in lines if line["result"] != "begun"}
                with open(out, "a") as file_:
                    for test in open_tests:
                        result = {None: "not finished", "stuck": "timed out"}.get(code, "crashed")
                        why = f"exit code {code}\n{problem}"
                        file_.write(json.dumps({"test": test, "result": result, "why": why, "seconds": 0}) + "\n")
                if code in (0, None) or len(lines) == before:  # the end, the time is up, or it ends before any test
                    break
                before = len(lines)
            if code == 0 and not tests and not self.arguments.only:
                self.complete.append(part)
            self.store(file, mode, read_lines(out), alone, problem if code else "")

    def store(self, file, mode, lines, alone, problem):
        with self.lock:
            known = self.results[file][mode]
            for line in lines:
                if line["result"] not in ("begun", "known"):
                    known[line["test"]] = {"result": line["result"], "why": line["why"],
                                           "seconds": line.get("seconds", 0), "alone": alone}
            if problem and not known:
                known[NOTHING] = {"result": "failed", "why": problem, "seconds": 0, "alone": 0}
            self.save()

    def save(self):
        if self.arguments.json:
            with open(self.arguments.json + ".new", "w") as file:
                json.dump({"format": 1, "about": self.arguments.about, "complete": self.complete,
                           "results": self.results}, file, indent=1)
            os.replace(self.arguments.json + ".new", self.arguments.json)

    def work_through(self, parts, workers):
        """Runs parts, a few at a time."""
        waiting, count, begin = queue.SimpleQueue(), len(parts), time.time()
        for part in parts:
            waiting.put(part)

        def work():
            while time.time() < self.deadline:
                try:
                    part = waiting.get_nowait()
                except queue.Empty:
                    return
                self.run_part(**part)
                print(f"  {time.time() - begin:4.0f} s: {part['file']}, {part['mode']}, "
                      + (part["tests"][0] if part.get("tests") else f"part {part['shard'] + 1} of {part['shards']}")
                      + f"; {max(0, waiting.qsize())} of {count} wait", file=sys.stderr, flush=True)

        threads = [threading.Thread(target=work) for _ in range(min(workers, count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run_all(self, files, modes):
        for file in files:
            self.results.setdefault(file, {})
        shards = self.arguments.shards
        self.work_through([{"file": file, "mode": mode, "shard": shard, "shards": shards}
                           for file in files for shard in range(shards) for mode in modes], self.arguments.workers)
        self.repeat(files, ALONE, self.arguments.alone)
        self.repeat(files, ALONE_ON_GPU, 1)

    def repeat(self, files, alone, workers):
        """Repeats the tests that differ without a stated reason, each in a process of its own."""
        reasons, again = report.read_reasons(), {}
        for file in files:
            for mode in report.MODES[1:]:
                for test, theirs, ours in report.differing(self.results, file, mode):
                    if min(theirs["alone"], ours["alone"]) < alone and not any(
                            one.covers(mode, file, test) for one in reasons):
                        again.setdefault((file, test), set()).update(("native", mode))
        parts = [{"file": file, "mode": mode, "tests": [test], "alone": alone}
                 for (file, test), of in again.items() for mode in report.MODES if mode in of]
        if parts:
            where = "one after the other" if workers == 1 else f"{workers} at a time"
            print(f"  {len(again)} tests differ, and run again {where}", file=sys.stderr, flush=True)
            self.work_through(parts, workers)


# ---- The command ----

def stop(text):
    print(f"pytorch_own.py: {text}", file=sys.stderr)
    sys.exit(2)


def ask_torch():
    """Returns the version of PyTorch and what it runs on."""
    code = ("import json, torch; n = torch.cuda.device_count(); "
            "print(json.dumps([torch.__version__, n, torch.cuda.get_device_name(0) if n else 'no GPU']))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        stop("PyTorch cannot be imported: " + report.last_line(done.stderr))
    return json.loads(done.stdout.strip().splitlines()[-1])


def release(version):
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found[0] if found else version


def find_source(folder, torch_version, any_version):
    """Returns the folder of the tests, and the version of the sources. They must be those of the installed PyTorch."""
    folder = os.path.abspath(folder)
    if os.path.basename(folder) == "test" and not os.path.isdir(os.path.join(folder, "test")):
        folder = os.path.dirname(folder)
    if not os.path.isdir(os.path.join(folder, "test")):
        stop(f"{folder} is not a source tree of PyTorch: it has no folder test")
    try:
        with open(os.path.join(folder, "version.txt")) as file:
            version = file.read().strip()
    except OSError:
        version = "unknown"
    if release(version) != release(torch_version) and not any_version:
        stop(f"the installed PyTorch is {torch_version}, but the tests in {folder} are of version {version}: check out "
             f"v{release(torch_version)}, or pass --any-version")
    return os.path.join(folder, "test"), version


def load(path):
    with open(path) as file:
        data = json.load(file)
    if data.get("format") != 1:
        stop(f"{path}: expected results of pytorch_own.py")
    return data


def merge(paths):
    """Joins the results of several files. A repeated test wins over others, and otherwise the later file."""
    about, results = {}, {}
    for path in paths:
        data = load(path)
        about = about or data["about"]
        for key in ("torch", "source", "gpu"):
            if about[key] != data["about"][key]:
                stop(f"{path} cannot be merged: {key} is {data['about'][key]}, expected {about[key]}")
        for file, modes in data["results"].items():
            for mode, tests in modes.items():
                known = results.setdefault(file, {}).setdefault(mode, {})
                for test, one in tests.items():
                    old = known.get(test)
                    if not old or one["alone"] >= old["alone"] and one["result"] not in report.UNFINISHED:
                        known[test] = one
    return about, results


def write_docs(check):
    """Writes the table of the documentation, or returns whether it is up to date."""
    summary = None
    if os.path.exists(report.SUMMARY):
        with open(report.SUMMARY) as file:
            summary = json.load(file)
    with open(report.PAGE, encoding="utf-8") as file:
        old = file.read()
    new = report.replace_section(old, summary)
    if check:
        if old != new:
            print("pytorch_own.py: docs/evidence/torch-tests.md differs from pytorch_results.json; run pytorch_own.py --docs",
                  file=sys.stderr)
        return old == new
    with open(report.PAGE, "w", encoding="utf-8") as file:
        file.write(new)
    return True


def arguments_of_command():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", help="a source tree of PyTorch")
    parser.add_argument("--modes", default=",".join(report.MODES), help="the allocators (%(default)s)")
    parser.add_argument("--files", help=f"the test files ({','.join(FILES)}, and {MULTIGPU} with several GPUs)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tests with this text in their name")
    parser.add_argument("--seconds", type=float, default=540, help="the time limit of the whole run (%(default)s)")
    parser.add_argument("--seconds-a-test", type=int, default=60, help="the time limit of a test (%(default)s)")
    parser.add_argument("--shards", type=int, default=4, help="the parts of a file (%(default)s)")
    parser.add_argument("--workers", type=int, default=max(2, min(12, len(os.sched_getaffinity(0)))),
                        help="processes at the same time (%(default)s)")
    parser.add_argument("--alone", type=int, default=3, help="repeated tests at the same time (%(default)s)")
    parser.add_argument("--any-version", action="store_true", help="accept sources of another version")
    parser.add_argument("--json", metavar="FILE", help="write the results of every test, or continue them")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="join results and report them")
    parser.add_argument("--save", action="store_true", help="write pytorch_results.json and docs/evidence/torch-tests.md")
    parser.add_argument("--docs", action="store_true", help="update docs/evidence/torch-tests.md from pytorch_results.json")
    parser.add_argument("--check-docs", action="store_true", help="fail unless docs/evidence/torch-tests.md is up to date")
    arguments = parser.parse_args()
    if not (arguments.source or arguments.merge or arguments.docs or arguments.check_docs):
        parser.error("expected a source tree of PyTorch, --merge, --docs or --check-docs")
    unknown = set(arguments.modes.split(",")) - set(report.MODES)
    if unknown:
        parser.error(f"unknown modes {', '.join(sorted(unknown))}; there are {', '.join(report.MODES)}")
    return arguments


def weir_version():
    with open(os.path.join(report.ROOT, "include", "weir", "runtime.h"), encoding="utf-8") as file:
        return ".".join(re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", file.read()))


def main():
    if sys.argv[1:2] == ["--run"]:
        run_tests(json.loads(sys.argv[2]))
    arguments = arguments_of_command()
    if arguments.docs or arguments.check_docs:
        return 0 if write_docs(arguments.check_docs) else 1
    if arguments.merge:
        arguments.about, results = merge(arguments.merge)
        Run("", arguments, results, []).save()
    else:
        version, devices, gpu = ask_torch()
        folder, source = find_source(arguments.source, version, arguments.any_version)
        arguments.about = {"torch": version, "source": source, "gpu": gpu, "weir": weir_version()}
        files = list(FILES) + [MULTIGPU] * (devices > 1)
        if arguments.files:
            files = [TWINS.get(file, file) for file in arguments.files.split(",")]
        before = load(arguments.json) if arguments.json and os.path.exists(arguments.json) else {}
        results = before.get("results", {})
        run = Run(folder, arguments, results, before.get("complete", []))
        run.run_all(files, [mode for mode in report.MODES if mode in arguments.modes.split(",")])
        results = {file: results[file] for file in [*files, *(file for file in results if file not in files)]}
    reasons = report.read_reasons()
    differences = report.compare(results, reasons)
    passed, bad = report.print_report(results, differences, reasons)
    for file in results:
        for mode, tests in results[file].items():
            if NOTHING in tests:
                bad += 1
                print(f"FAILED {file}, {report.TITLES[mode]}: no test ran\n    | "
                      + tests[NOTHING]["why"].strip().replace("\n", "\n    | "))
    if arguments.save:
        with open(report.SUMMARY, "w", encoding="utf-8") as file:
            json.dump(report.summarize(results, differences, arguments.about), file, indent=1)
            file.write("\n")
        write_docs(False)
    print(f"pytorch own tests: {passed} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
