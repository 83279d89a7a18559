#!/usr/bin/env python3
"""Compares PyTorch's allocators with Weir on one machine: one command, tables in Markdown.

    python3 bench/torch/side_by_side.py [--package build/torch] [--parts speed,jobs,history] [--jobs NAME,...]
                                        [--twice] [--quick] [--seconds S] [--json FILE]

speed    ns for an allocation and its free, through PyTorch's allocator interface from C++. PyTorch's allocator and Weir
         run in one process in alternating rounds. Shows the median of the rounds, and of the ratios of adjacent rounds.
jobs     whole jobs (jobs.py), with a process for each allocator, in alternating rounds after a first one that does not
         count. Shows peak reserved memory, the median time of a step, and the time of all steps relative to PyTorch
         with the same settings. A job does the same in each step of each round, so the best time of each step counts.
         Short jobs run several times in a round if time permits: `graphs` needs a hundred runs for 1 % accuracy, so run
         it alone.
history  one job while the history is recorded, in the processes of native and Weir.

Parts that do not fit into --seconds are reported as not measured. With --twice there are two processes for each
allocator: differences between these are noise.
"""
import argparse
import ctypes
import glob
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from tools import HERE, PACKAGE, ROOT, compile_library
from tools import environment as environment_of

ALLOCATORS = {  # name: (uses Weir, settings)
    "native": (False, ""),
    "expandable": (False, "expandable_segments:True"),
    "cudaMallocAsync": (False, "backend:cudaMallocAsync"),
    "Weir": (True, ""),
    "Weir, expandable": (True, "expandable_segments:True"),
}
AGAIN = ", again"  # the second process of an allocator
ROUNDS = 6
PATTERNS = ["pair_512B", "pair_64KiB", "pair_8MiB", "live_1000_1MiB", "live_1000_64MiB", "live_20000_1MiB", "threads_1",
            "threads_16", "stream_1", "stream_16"]


def traits(name):
    return ALLOCATORS[name.removesuffix(AGAIN)]


def environment(name, package):
    weir, conf = traits(name)
    env = environment_of(package, weir)
    env.pop("PYTORCH_ALLOC_CONF", None)
    env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if conf:
        env["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return env


def run(command, env, what, deadline):
    """Returns the JSON lines that a command printed until it ended or the time was up."""
    left = deadline - time.time()
    if left < 10:
        print(f"side_by_side.py: {what}: not measured, the time is up", file=sys.stderr)
        return []
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=left)
        problem = f"exit code {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        problem = "the time is up"
    if problem:
        print(f"side_by_side.py: {what}: {problem}\n{err[-2000:]}", file=sys.stderr)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


# ---- Speed ----

def compile_patterns(folder):
    return compile_library(os.path.join(ROOT, "bench", "torch", "pair.cpp"), os.path.join(folder, "libbench_pair.so"),
                           include=os.path.join(ROOT, "bench"))


def measure_patterns(path, package, rounds, pairs):
    """Runs in a process of its own, in which PyTorch's allocator is installed and Weir's is loaded beside it."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    adapter = ctypes.CDLL(os.path.join(package, "weir_torch", "libweir_torch.so"))
    adapter.weir_torch_as_cuda_allocator.restype = ctypes.c_void_p
    call = ctypes.CDLL(path).bench_torch_run
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_double, ctypes.c_char_p]
    names = "".join(pattern + " " for pattern in PATTERNS).encode()
    good = call(adapter.weir_torch_as_cuda_allocator(), rounds, pairs, 2e8, names)
    sys.stdout.flush()
    os._exit(0 if good else 1)  # neither allocator supports the other one at exit


def speed(package, quick, deadline, results):
    results["speed"] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = compile_patterns(folder)
        for name, title in (("native", "default settings"), ("expandable", "expandable_segments:True")):
            amount = ["3", "20000"] if quick else ["11", "200000"]
            lines = run([sys.executable, __file__, "--measure", path, package, *amount],
                        environment(name, package), f"speed, {title}", deadline)
            results["speed"][name] = lines
            rows = []
            for line in lines:
                of = line["native"], line["weir"]
                cells = [f"{one['ns']:.1f} ({one['least']:.1f} to {one['most']:.1f})" for one in of]
                rows.append([line["title"], *cells, f"{line['ratio']:.1f}"])
            print(f"Allocation and free, {title}: ns, the median of the rounds (and their range), and of the ratios\n")
            table(["pattern", "PyTorch", "Weir", "PyTorch / Weir"], rows)


# ---- Jobs ----

def good(of, allocator):
    return [line for line in of.get(allocator, []) if "error" not in line]


def best_steps(lines):
    return [min(times) for times in zip(*(line["steps_ms"] for line in lines))]


def cell(of, allocator, base):
    """Peak reserved memory and the median step of a job, relative to another allocator's."""
    lines = good(of, allocator)
    if not lines:
        return "not measured"
    steps = best_steps(lines)
    text = " or ".join(f"{peak / 1e9:.3f}" for peak in sorted({line["peak_reserved"] for line in lines}))
    text += f" GB, {statistics.median(steps):.2f} ms"
    if base != allocator and good(of, base):
        text += f" ({100 * (sum(steps) / sum(best_steps(good(of, base))) - 1):+.1f} %)"
    return text


class Player:
    """A process that runs jobs under one allocator, one after the other, on request."""

    def __init__(self, allocator, package, steps, deadline):
        self.allocator, self.deadline = allocator, deadline
        self.answers, self.errors = queue.SimpleQueue(), tempfile.TemporaryFile("w+")
        command = [sys.executable, os.path.join(HERE, "jobs.py"), "--steps", str(steps)]
        self.process = subprocess.Popen(command, text=True, bufsize=1, env=environment(allocator, package),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        threading.Thread(target=self.listen, args=[self.process], daemon=True).start()

    def listen(self, process):
        try:
            for line in filter(lambda line: line.startswith("{"), process.stdout):
                self.answers.put(json.loads(line))
        except ValueError:
            pass  # the process ended in the middle of a line
        self.answers.put(None)

    def ask(self, job):
        if self.process:
            try:
                self.process.stdin.write(job + "\n")
            except BrokenPipeError:
                pass  # the process has ended, which answer() reports

    def answer(self):
        """Returns the result of the oldest requested job; None if the process cannot continue."""
        if not self.process:
            return None
        try:
            answer = self.answers.get(timeout=max(0, self.deadline - time.time()))
        except queue.Empty:
            self.end("the time is up")
            return None
        if not answer:
            self.end(f"exit code {self.process.wait()}")
            return None
        if answer["weir"] != traits(self.allocator)[0]:
            expected, found = ("not ", "is") if answer["weir"] else ("", "is not")
            sys.exit(f"side_by_side.py: {self.allocator}: Weir should {expected}be installed, but {found}")
        return answer

    def end(self, why=None):
        if not self.process:
            return
        self.process.kill()  # without waiting, since releasing a device takes seconds
        self.process = None
        if why:
            self.errors.seek(0)
            print(f"side_by_side.py: jobs under {self.allocator}: {why}\n{self.errors.read()[-2000:]}", file=sys.stderr)


def play(players, plan, rounds, least_seconds, deadline, found):
    """Stores the results in found[job, history][allocator]. A job runs for at least least_seconds in each round."""
    begin = time.time()
    for first in range(0, len(players), len(ALLOCATORS)):
        together = players[first : first + len(ALLOCATORS)]  # this round does not count, and is mostly work of the host
        for player in together:
            for job in plan[player.allocator]:
                player.ask(job)
        for player in together:
            for job in plan[player.allocator]:
                player.answer()
    print(f"  all jobs once under each allocator: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    for n in range(rounds):
        if not any(player.process for player in players):
            break
        begin = time.time()
        for job in dict.fromkeys(job for player in players for job in plan[player.allocator]):
            since = time.time()
            while True:
                for player in players[:: -1 if n % 2 else 1]:
                    if job in plan[player.allocator]:
                        player.ask(job)
                        line = player.answer()
                        if line:
                            answers = found.setdefault((line["job"], line["history"]), {})
                            answers.setdefault(player.allocator, []).append(line)
                if time.time() >= min(since + least_seconds, deadline) or not any(player.process for player in players):
                    break
        print(f"  round {n + 1} of {rounds}: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


def jobs(package, names, history_job, twice, quick, deadline, results):
    allocators = [name + again for again in ("", AGAIN)[: 2 if twice else 1] for name in ALLOCATORS]
    plan = {name: list(names) for name in allocators}
    if history_job:
        for name in ("native", "Weir"):
            plan[name] += [f"{history_job}:{kind}" for kind in ("plain", "python", "all")]
    players, found = [Player(name, package, 6 if quick else 0, deadline) for name in allocators if plan[name]], {}
    rounds, work = 2 if quick else ROUNDS, len(plan["native"])
    # The rest of the time is for long jobs and for the first round.
    least_seconds = 0 if quick else 0.6 * (deadline - time.time()) / rounds / work
    try:
        play(players, plan, rounds, least_seconds, deadline, found)
    except KeyboardInterrupt:
        print("side_by_side.py: interrupted: the results so far are shown", file=sys.stderr)
    finally:
        for player in players:
            player.end()
    results["jobs"] = {f"{job}:{history}": of for (job, history), of in found.items()}
    rows = []
    for name in names:
        of = found.get((name, "none"), {})
        row = [name]
        for allocator in allocators:
            row.append(cell(of, allocator, "expandable" if allocator.startswith("Weir, expandable") else "native"))
        for weir, native in (("Weir", "native"), ("Weir, expandable", "expandable")):
            peaks = [{line["peak_reserved"] for line in good(of, name)} for name in (weir, native)]
            same = "yes" if peaks[0] == peaks[1] else "at times" if peaks[0] & peaks[1] else "no"
            row.append(same if all(peaks) else "-")
        rows.append(row)
    if names:
        print("Peak reserved, median step (all steps relative to native, Weir's to PyTorch's with the same settings)\n")
        table(["job"] + allocators + ["Weir holds native's bytes", "and expandable's"], rows)
    rows = []
    for kind, title in (("none", "off"), ("plain", "no stacks"), ("python", "Python stacks"), ("all", "all stacks")):
        of = found.get((history_job, kind), {})
        steps = [best_steps(good(of, name)) for name in ("native", "Weir")]
        if all(steps):
            medians = [f"{statistics.median(of_one):.2f}" for of_one in steps]
            rows.append([title, *medians, f"{sum(steps[0]) / sum(steps[1]):.3f}"])
    if rows and history_job:
        print(f"{history_job} while the history is recorded: median step in ms, and the ratio of all steps\n")
        table(["history", "PyTorch", "Weir", "PyTorch / Weir"], rows)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--measure":
        measure_patterns(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default=PACKAGE, help="the output folder of adapters/torch/build.py (%(default)s)")
    parser.add_argument("--parts", default="speed,jobs,history", help="the parts to run (%(default)s)")
    parser.add_argument("--jobs", help="the jobs to run (%(default)s)",
                        default="fixed_shapes,random_lengths,recomputation,resolutions,generation,prefetching,graphs")
    parser.add_argument("--history-job", default="random_lengths", help="the job of the part history (%(default)s)")
    parser.add_argument("--twice", action="store_true", help="run two processes for each allocator, to show the noise")
    parser.add_argument("--seconds", type=float, default=600, help="the time limit of the whole run (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="run few steps and rounds, to check that it works")
    parser.add_argument("--json", help="write all results to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    package = os.path.abspath(arguments.package)
    if not glob.glob(os.path.join(package, "weir_torch", "libweir_torch.so")):
        sys.exit(f"side_by_side.py: {package} has no adapter; build it with python3 adapters/torch/build.py")
    results, parts, deadline = {}, arguments.parts.split(","), time.time() + arguments.seconds
    try:
        if "speed" in parts:
            speed(package, arguments.quick, deadline, results)
        if "jobs" in parts or "history" in parts:
            names = arguments.jobs.split(",") if "jobs" in parts else []
            history_job = arguments.history_job if "history" in parts else None
            jobs(package, names, history_job, arguments.twice, arguments.quick, deadline, results)
    finally:
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
