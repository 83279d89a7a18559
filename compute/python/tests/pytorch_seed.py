#!/usr/bin/env python3
"""Runs a file of PyTorch's own tests, unchanged, against the package `weir`, and counts the results.

    python3 compute/python/tests/pytorch_seed.py SOURCE [--file NAME] [--only TEXT] [--json FILE]

SOURCE is a source tree of PyTorch, of which test/NAME and torch/testing/_internal/autocast_test_lists.py are used. NAME
is test_cuda.py by default. The package is that of build/python, or of WEIR_PYTHON_PACKAGE. In pytorch_shim, `torch.NAME` and
`torch.cuda.NAME` are `weir.NAME`; what Weir does not have is missing there too. Each test runs in a process of its own,
which is ended at a time limit. Variables such as WEIR_DRIVER and WEIR_SOFT_DEVICES hold as usual. A test that skips itself
on one software device is run again on two.

For a test that does not pass, the last line of its error says which part of PyTorch it needs: one that Weir is not, or
none, in which case the difference is Weir's. The exit code is 1 if there is one of the latter.
"""

import argparse
import collections
import concurrent.futures
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.environ.get("WEIR_PYTHON_PACKAGE") or os.path.join(HERE, *[".."] * 3, "build", "python")
KINDS = ("passed", "skipped", "failed", "error", "timed out")
# What Weir is not, and how the traceback of its absence ends.
NEEDS = {
    "nn": r"module '(torch|weir)\.nn|attribute 'batch_norm_gather_stats'|No module named 'torch\.nn",
    "optimizers": r"attribute 'optim'|No module named 'torch\.optim",
    "autograd": r"autograd|requires_grad|attribute '(no_grad|enable_grad|backward|grad|_version)'|argument 'requires_grad'",
    "TorchScript": r"attribute 'jit'|No module named 'torch\.jit",
    "cuDNN": r"cudnn",
    "extensions in C++": r"cpp_extension",
    "the profiler": r"attribute '_?profiler'|No module named '(torch\.profiler|torch\._C\._profiler)",
    "linear algebra": r"attribute '_?linalg'",
    "sparse arrays": r"attribute '(sparse_coo_tensor|cartesian_prod)'",
    "memory formats": r"attribute 'channels_last'",
    "NVIDIA's driver": r"libcuda\.so|cuda driver can't be loaded|the software device (draws no power|has no temperature)",
    "the word torch in texts": r"assertTrue\(\"torch\.|`torch\..* does not match \"`weir\.",
    "names of PyTorch's C++ functions": r"\(\"(::|unwind\")",
    "a limit that Weir does not have": r"integer out of range",
}


def need_of(why):
    """The part of PyTorch whose absence the end of a traceback shows, or None: its message, and the failing assertion."""
    lines = [line for line in why.strip().splitlines() if line.strip(" ^")]
    calls = [line for line in lines if line.startswith("    ")]
    end = "\n".join(calls[-1:] + lines[-1:])
    return next((need for need, text in NEEDS.items() if re.search(text, end)), None)


# ---- In the process of a test ----


def test_cases(suite):
    for item in suite:
        if hasattr(item, "__iter__"):
            yield from test_cases(item)
        else:
            yield item


def load_tests(path):
    """The tests of a file, by name. Their modules find the name `torch` through PYTHONPATH."""
    name = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    return {case.id().removeprefix(f"{name}."): case for case in test_cases(suite)}


def run_case(case):
    """Returns the result of a test, and why it did not pass."""
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    for kind, problems in (("error", result.errors), ("failed", result.failures)):
        if problems:
            return kind, problems[0][1]
    # A test that is expected to fail must not pass by the absence of a part of PyTorch.
    for _, why in result.expectedFailures:
        if need_of(why):
            return "error", why
    if result.unexpectedSuccesses:
        return "failed", "passed, but was expected to fail"
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def run_test(path, name, out):
    cases = load_tests(path)
    answer = run_case(cases[name]) if name else sorted(cases)
    with open(out, "w") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)  # what the test left behind must not delay the exit


# ---- Starting them ----


def environment(path, devices=None):
    paths = [os.path.join(HERE, "pytorch_shim"), os.path.abspath(PACKAGE), os.environ.get("PYTHONPATH")]
    driver = os.environ.get("WEIR_DRIVER", "soft")
    source = os.path.dirname(os.path.dirname(path))
    changed = {"WEIR_SOFT_DEVICES": str(devices)} if devices else {}
    return {**os.environ, "WEIR_DRIVER": driver, "WEIR_TEST_PYTORCH": source,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)), **changed}


def start(path, name, seconds, devices=None):
    """Runs a test of the file, or lists them if the name is empty. Returns what it answered, and what it printed."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        out = os.path.join(work, "answer")
        with open(os.path.join(work, "output"), "w+", errors="replace") as output:
            command = [sys.executable, os.path.abspath(__file__), "--run", path, name, out]
            process = subprocess.Popen(command, env=environment(path, devices), cwd=work, stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            try:
                os.killpg(process.pid, signal.SIGKILL)  # the test, or what it started
            except ProcessLookupError:
                pass
            process.wait()
            output.seek(0)
            text = output.read()[-4000:]
        if code is None:
            return ["timed out", f"it ran for more than {seconds} s"], text
        if not os.path.exists(out):
            return ["error", f"{text}\nthe process ended with exit code {code}"], text
        with open(out) as file:
            return json.load(file), text


def run_again_if_skipped(path, name, seconds):
    answer, _ = start(path, name, seconds)
    if answer[0] != "skipped" or os.environ.get("WEIR_DRIVER", "soft") != "soft" or "WEIR_SOFT_DEVICES" in os.environ:
        return answer
    second, _ = start(path, name, seconds, devices=2)
    return answer if second[0] == "skipped" else second


def methods_of(path, results):
    """The methods of the file, each with the results of its cases: one for each combination of its parameters."""
    with open(path) as file:
        names = sorted(set(re.findall(r"^ +def (test_\w+)", file.read(), re.M)), key=len)
    methods = collections.defaultdict(set)
    for case, one in results.items():
        name = case.rpartition(".")[2]
        methods[([method for method in names if name.startswith(method)] or [name])[-1]].add(one["result"])
    return methods


def print_results(results):
    counts = collections.Counter(one["result"] for one in results.values())
    for kind in KINDS[2:]:
        for name, one in sorted(results.items()):
            if one["result"] == kind:
                last = one["why"].strip().splitlines()[-1:]
                print(f"{kind:9} {name}\n          {'needs ' + one['needs'] if one['needs'] else 'WEIR'}: "
                      f"{last[0][:150] if last else ''}")
    reasons = collections.Counter(one["why"].strip() for one in results.values() if one["result"] == "skipped")
    print("\n".join(f"skipped   {count:3} by the file itself: {why}" for why, count in reasons.most_common()))
    needs = collections.Counter(one["needs"] for one in results.values() if one["needs"])
    print("\n".join(f"needs     {count:3} {need}" for need, count in needs.most_common()))
    print(f"{len(results)} tests: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))


def main():
    if sys.argv[1:2] == ["--run"]:
        run_test(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a source tree of PyTorch")
    parser.add_argument("--file", default="test_cuda.py", metavar="NAME", help="the file of tests (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only tests with this text in their name")
    parser.add_argument("--seconds", type=float, default=120, help="the time limit of a test (%(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)),
                        help="tests at the same time (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the result of every test")
    arguments = parser.parse_args()
    path = os.path.abspath(os.path.join(arguments.source, "test", arguments.file))
    if not os.path.exists(path):
        parser.error(f"{arguments.source} is not a source tree of PyTorch: it has no test/{arguments.file}")
    names, text = start(path, "", arguments.seconds)
    if names[:1] == ["error"] or not names:
        print(text, file=sys.stderr)
        return 2
    names = [name for name in names if arguments.only.lower() in name.lower()]
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        answers = pool.map(lambda name: run_again_if_skipped(path, name, arguments.seconds), names)
        results = {name: {"result": result, "why": why, "needs": need_of(why) if result in KINDS[2:] else None}
                   for name, (result, why) in zip(names, answers)}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)
    print_results(results)
    methods = methods_of(path, results)
    print(f"{len(methods)} methods: {sum(one == {'passed'} for one in methods.values())} passed")
    return 1 if any(one["result"] in KINDS[2:] and not one["needs"] for one in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
