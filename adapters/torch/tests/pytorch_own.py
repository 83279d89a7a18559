#!/usr/bin/env python3
"""Runs PyTorch's own tests under PyTorch's allocator and under Weir, and reports what passes only natively.

    python3 adapters/torch/tests/pytorch_own.py FOLDER [--files NAME,...] [--moving] [--only TEXT] [--json FILE]

FOLDER is the folder `test` of PyTorch's sources, of the installed version: a pip package does not have it. Without
--files these run: test_cuda.py, the same with expandable segments (test_cuda.py+expandable, which is what
test_cuda_expandable_segments.py does), and inductor/test_cudagraph_trees.py; --only MemPool selects the tests of pools.
--moving sets WEIR_ALLOC_CONF=moving_pages:True for Weir.

Both allocators run at the same time, each test file in a process of its own. If a process ends in the middle of a test,
that test has crashed, and a new process runs the rest. Tests that assert the layout of segments, which moving pages
change, are named in pytorch_layout_tests.txt: they are reported, and do not count as failures.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUT = os.path.join(HERE, "pytorch_layout_tests.txt")
FILES = "test_cuda.py,test_cuda.py+expandable,inductor/test_cudagraph_trees.py"
EXPANDABLE = "+expandable"
NOTHING = "(all)"  # stands for the tests of a file that ran none


# ---- In the process of a test file ----

def test_cases(suite):
    for item in suite:
        if hasattr(item, "__iter__"):
            yield from test_cases(item)
        else:
            yield item


def run_tests(path, expandable, only, seconds, out):
    """Runs the tests of a file that `out` does not have yet, and appends a line when each begins and ends."""
    import importlib.util
    import signal
    import unittest

    done = set()
    if os.path.exists(out):
        with open(out) as file:
            done = {json.loads(line)["test"] for line in file}
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

    def expire(*_):
        raise TimeoutError(f"the test ran for more than {seconds} s")

    signal.signal(signal.SIGALRM, expire)
    with open(out, "a") as file:
        def note(test, result, why=""):
            file.write(json.dumps({"test": test, "result": result, "why": why[-1500:]}) + "\n")
            file.flush()

        for case in test_cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
            test = case.id().removeprefix(name + ".")
            if test in done or (only and only.lower() not in test.lower()):
                continue
            note(test, "begun")
            result = unittest.TestResult()
            signal.alarm(seconds)
            try:
                unittest.TestSuite([case]).run(result)
            except TimeoutError as error:
                result.errors.append((case, str(error)))
            finally:
                signal.alarm(0)
            problems = result.errors + result.failures
            if problems:
                note(test, "failed", problems[0][1])
            else:
                note(test, "skipped" if result.skipped else "passed", result.skipped[0][1] if result.skipped else "")
    sys.stdout.flush()
    os._exit(0)  # what the tests left behind must not delay or break the exit


# ---- Starting them ----

def environment(weir, moving):
    package = os.environ.get("WEIR_TORCH_PACKAGE") or os.path.join(HERE, "..", "..", "..", "build", "torch")
    path = os.pathsep.join(filter(None, [os.path.abspath(package), os.environ.get("PYTHONPATH")]))
    env = dict(os.environ, PYTHONPATH=path, WEIR_TORCH="1" if weir else "0")
    for name in ("WEIR_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        env.pop(name, None)
    if weir and moving:
        env["WEIR_ALLOC_CONF"] = "moving_pages:True"
    return env


def results_of(folder, file, weir, arguments, deadline):
    """Returns {test: [result, why]}."""
    path = os.path.join(os.path.abspath(folder), file.removesuffix(EXPANDABLE))
    with tempfile.TemporaryDirectory() as work:
        out, found, problem = os.path.join(work, "results"), {}, ""
        while True:
            begun = len(found)
            command = [sys.executable, os.path.abspath(__file__), "--run", path, str(int(file.endswith(EXPANDABLE))),
                       arguments.only or "", str(arguments.seconds_a_test), out]
            try:
                done = subprocess.run(command, env=environment(weir, arguments.moving), cwd=os.path.dirname(path),
                                      capture_output=True, text=True, timeout=max(1, deadline - time.time()))
                code, problem = done.returncode, done.stderr[-1500:]
            except subprocess.TimeoutExpired:
                code = None
            if os.path.exists(out):
                with open(out) as lines:
                    for line in map(json.loads, lines):
                        found[line["test"]] = [line["result"], line["why"]]
            for test, result in found.items():
                if result[0] == "begun":
                    found[test] = ["not finished" if code is None else "crashed", f"exit code {code}\n{problem}"]
            if not code or len(found) == begun:  # the end, the time is up, or it crashes before any test
                break
        if not found:
            found[NOTHING] = ["failed", problem or "no test was found"]
        return found


def read_layout():
    with open(LAYOUT) as file:
        lines = (line.partition("#")[0].strip() for line in file)
        return {line for line in lines if line}


def compare(file, native, weir, layout):
    """Prints the differences, and returns how many tests passed under Weir and how many only natively."""
    worse, excused = [(NOTHING, of[NOTHING]) for of in (native, weir) if NOTHING in of], []
    for test, (result, why) in native.items():
        ours = weir.get(test, ["not run", ""])
        if result == "passed" and ours[0] not in ("passed", "not finished", "not run"):
            (excused if test in layout else worse).append((test, ours))
    passed = {name: sum(result[0] == "passed" for result in of.values())
              for name, of in (("native", native), ("weir", weir))}
    late = sum(result[0] in ("not finished", "not run") for result in weir.values())
    alone = sum(result[0] == "passed" and native.get(test, ["passed"])[0] != "passed" for test, result in weir.items())
    print(f"{file}: {len(native)} tests; passed natively {passed['native']}, with Weir {passed['weir']} ({alone} of them"
          f" only with Weir); {len(excused)} differ by layout; {late} not finished")
    for test, ours in worse:
        print(f"FAILED {file}::{test}: {ours[0]}\n    | " + ours[1].strip().replace("\n", "\n    | "))
    for test, ours in excused:
        print(f"layout {file}::{test}: {ours[0]}")
    return passed["weir"], len(worse)


def main():
    if sys.argv[1:2] == ["--run"]:
        path, expandable, only, seconds, out = sys.argv[2:]
        run_tests(path, int(expandable), only, int(seconds), out)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--files", default=FILES, help="the test files (%(default)s)")
    parser.add_argument("--moving", action="store_true", help="with moving_pages:True under Weir")
    parser.add_argument("--only", help="only tests whose name has this text, such as MemPool")
    parser.add_argument("--seconds", type=float, default=580, help="the time limit of the whole run (%(default)s)")
    parser.add_argument("--seconds-a-test", type=int, default=60, help="the time limit of a test (%(default)s)")
    parser.add_argument("--json", help="write the results of every test to this file")
    arguments = parser.parse_args()
    deadline, files = time.time() + arguments.seconds, arguments.files.split(",")
    layout = read_layout() if arguments.moving else set()
    with ThreadPoolExecutor(2 * len(files)) as workers:
        started = {(file, weir): workers.submit(results_of, arguments.folder, file, weir, arguments, deadline)
                   for file in files for weir in (False, True)}
        found = {key: future.result() for key, future in started.items()}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({name: {"native": found[name, False], "weir": found[name, True]} for name in files}, file, indent=1)
    sums = [compare(file, found[file, False], found[file, True], layout) for file in files]
    passed, failed = (sum(column) for column in zip(*sums))
    print(f"pytorch own tests: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
