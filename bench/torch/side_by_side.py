#!/usr/bin/env python3
"""PyTorch's allocators and Weir, side by side on one machine: one command, tables in Markdown.

    python3 bench/torch/side_by_side.py [--package build/torch] [--parts speed,jobs,history] [--jobs NAME,...] [--twice] [--quick]
                                           [--seconds S] [--json FILE]

speed    ns for an allocation and its free, through PyTorch's allocator interface from C++: PyTorch's own and Weir in one process, a
         round of each in turns; the median of the rounds, and of the ratios of two that follow each other
jobs     whole jobs (jobs.py) in a process for each allocator, a round of each in turns, after a first that does not count: peak of
         what is reserved, the median time of a step, and what all steps take against PyTorch with the same settings. A job does the
         same in each step of each round, so of each step the best time counts. Short jobs have several turns in a round, more of
         them where there is time for it: `graphs` needs a hundred for an answer within 1 %, so have it alone
history  one job while history is recorded, in the processes of native and Weir
What is not done in --seconds is left out, and said to be. With --twice there are two processes for each allocator: what they differ
by among themselves means nothing.
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

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ALLOCATORS = {  # name: under Weir, settings
    "native": (False, ""),
    "expandable": (False, "expandable_segments:True"),
    "cudaMallocAsync": (False, "backend:cudaMallocAsync"),
    "Weir": (True, ""),
    "Weir, expandable": (True, "expandable_segments:True"),
}
AGAIN = ", again"  # the second process of an allocator
ROUNDS = 6
PATTERNS = ["pair_512B", "pair_64KiB", "pair_8MiB", "live_1000_1MiB", "live_1000_64MiB", "live_20000_1MiB", "threads_1", "threads_16", "stream_1", "stream_16"]


def traits(name):
    return ALLOCATORS[name.removesuffix(AGAIN)]


def environment(name, package):
    weir, conf = traits(name)
    env = dict(os.environ, WEIR_TORCH="1" if weir else "0", PYTHONPATH=os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]))
    env.pop("PYTORCH_ALLOC_CONF", None)
    env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if conf:
        env["PYTORCH_CUDA_ALLOC_CONF"] = conf
    return env


def run(command, env, what, deadline):
    """The JSON lines that came until it ended, or until there was no time left."""
    left = deadline - time.time()
    if left < 10:
        print(f"side_by_side.py: {what}: not measured, there is no time left", file=sys.stderr)
        return []
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=left)
        problem = f"ended with {process.returncode}" if process.returncode else ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        problem = "there was no time left"
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
    sys.path.insert(0, os.path.join(ROOT, "adapters", "torch"))
    import build
    import torch

    torch_folder = os.path.dirname(torch.__file__)
    source = os.path.join(ROOT, "cli", "bench_torch_pair.cpp")
    path = os.path.join(folder, "libbench_patterns.so")
    standard = "c++20" if tuple(int(p) for p in torch.__version__.split(".")[:2]) >= (2, 13) else "c++17"
    subprocess.run(["g++", f"-std={standard}", "-O2", "-shared", "-fPIC", source, "-o", path,
                    "-isystem", os.path.join(torch_folder, "include"), "-isystem", build.cuda_include(torch_folder),
                    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", "-L" + os.path.join(torch_folder, "lib"),
                    "-lc10", "-lc10_cuda", *build.CXX_RUNTIME], check=True)
    return path


def measure_patterns(path, package, rounds, pairs):
    """In a process of its own, where PyTorch's allocator is in place and Weir's is loaded beside it."""
    import torch

    torch.cuda.init()
    torch.empty(1, device="cuda")
    adapter = ctypes.CDLL(os.path.join(package, "weir_torch", "libweir_torch.so"))
    adapter.weir_torch_as_cuda_allocator.restype = ctypes.c_void_p
    call = ctypes.CDLL(path).bench_torch_run
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_double, ctypes.c_char_p]
    good = call(adapter.weir_torch_as_cuda_allocator(), rounds, pairs, 2e8, ("".join(p + " " for p in PATTERNS)).encode())
    sys.stdout.flush()
    os._exit(0 if good else 1)  # two allocators were at work, and neither expected the other at the end


def speed(package, quick, deadline, results):
    results["speed"] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = compile_patterns(folder)
        for name, title in (("native", "settings at their default"), ("expandable", "expandable_segments:True")):
            lines = run([sys.executable, __file__, "--measure", path, package, "3" if quick else "11", "20000" if quick else "200000"],
                        environment(name, package), f"speed, {title}", deadline)
            results["speed"][name] = lines
            rows = [[line["title"]] + [f"{line[who]['ns']:.1f} ({line[who]['least']:.1f} to {line[who]['most']:.1f})" for who in ("native", "weir")]
                    + [f"{line['ratio']:.1f}"] for line in lines]
            print(f"Allocation and free, {title}: ns, the median of the rounds (the least and the most), and of their ratios\n")
            table(["pattern", "PyTorch", "Weir", "PyTorch / Weir"], rows)


# ---- Jobs ----

def good(of, allocator):
    return [line for line in of.get(allocator, []) if "error" not in line]


def best_steps(lines):
    return [min(times) for times in zip(*(line["steps_ms"] for line in lines))]


def cell(of, allocator, base):
    """Peak reserved, and the step of the runs of a job, against another allocator's."""
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
    """A process that does jobs under one allocator, one after the other, as it is asked to."""

    def __init__(self, allocator, package, steps, deadline):
        self.allocator, self.deadline = allocator, deadline
        self.answers, self.errors = queue.SimpleQueue(), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "jobs.py"), "--steps", str(steps)], text=True, bufsize=1,
                                        env=environment(allocator, package), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        threading.Thread(target=self.listen, args=[self.process], daemon=True).start()

    def listen(self, process):
        try:
            for line in filter(lambda line: line.startswith("{"), process.stdout):
                self.answers.put(json.loads(line))
        except ValueError:
            pass  # it has ended in the middle of a line
        self.answers.put(None)

    def ask(self, job):
        if self.process:
            try:
                self.process.stdin.write(job + "\n")
            except BrokenPipeError:
                pass  # it has ended, which its answer will tell

    def answer(self):
        """What came of the oldest job that it was asked for; None when it cannot go on."""
        if not self.process:
            return None
        try:
            answer = self.answers.get(timeout=max(0, self.deadline - time.time()))
        except queue.Empty:
            self.end("there was no time left")
            return None
        if not answer:
            self.end(f"ended with {self.process.wait()}")
            return None
        if answer["weir"] != traits(self.allocator)[0]:
            sys.exit(f"side_by_side.py: under {self.allocator}, Weir was {'' if answer['weir'] else 'not '}there")
        return answer

    def end(self, why=None):
        if not self.process:
            return
        self.process.kill()  # and not waited for: to give back a device takes a process seconds
        self.process = None
        if why:
            self.errors.seek(0)
            print(f"side_by_side.py: jobs under {self.allocator}: {why}\n{self.errors.read()[-2000:]}", file=sys.stderr)


def play(players, asked, rounds, least_seconds, deadline, found):
    """Into found, (job, history): allocator: the answers. Jobs that are over in less than so many seconds have several turns in a
    round."""
    begin = time.time()
    for first in range(0, len(players), len(ALLOCATORS)):
        together = players[first : first + len(ALLOCATORS)]  # it does not count, and most of it is work of the host
        for player in together:
            for job in asked[player.allocator]:
                player.ask(job)
        for player in together:
            for job in asked[player.allocator]:
                player.answer()
    print(f"  all jobs once under each allocator: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)
    for n in range(rounds):
        if not any(player.process for player in players):
            break
        begin = time.time()
        for job in dict.fromkeys(job for player in players for job in asked[player.allocator]):
            since = time.time()
            while True:
                for player in players[:: -1 if n % 2 else 1]:
                    if job in asked[player.allocator]:
                        player.ask(job)
                        line = player.answer()
                        if line:
                            found.setdefault((line["job"], line["history"]), {}).setdefault(player.allocator, []).append(line)
                if time.time() >= min(since + least_seconds, deadline) or not any(player.process for player in players):
                    break
        print(f"  round {n + 1} of {rounds}: {time.time() - begin:.0f} s", file=sys.stderr, flush=True)


def jobs(package, names, history_job, twice, quick, deadline, results):
    allocators = [name + again for again in ("", AGAIN)[: 2 if twice else 1] for name in ALLOCATORS]
    asked = {name: list(names) for name in allocators}
    if history_job:
        for name in ("native", "Weir"):
            asked[name] += [f"{history_job}:{kind}" for kind in ("plain", "python", "all")]
    players, found = [Player(name, package, 6 if quick else 0, deadline) for name in allocators if asked[name]], {}
    rounds, work = 2 if quick else ROUNDS, len(asked["native"])
    least_seconds = 0 if quick else 0.6 * (deadline - time.time()) / rounds / work  # the rest: long jobs, and the first time
    try:
        play(players, asked, rounds, least_seconds, deadline, found)
    except KeyboardInterrupt:
        print("side_by_side.py: told to stop: what was measured until then counts", file=sys.stderr)
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
            peaks = [{line["peak_reserved"] for line in good(of, who)} for who in (weir, native)]
            row.append("-" if not all(peaks) else "yes" if peaks[0] == peaks[1] else "at times" if peaks[0] & peaks[1] else "no")
        rows.append(row)
    if names:
        print("Peak reserved, median step (all steps: PyTorch's against native, Weir's against PyTorch's with the same settings)\n")
        table(["job"] + allocators + ["Weir holds native's bytes", "and expandable's"], rows)
    rows = []
    for kind, title in (("none", "off"), ("plain", "events"), ("python", "Python stacks"), ("all", "all stacks")):
        of = found.get((history_job, kind), {})
        steps = [best_steps(good(of, who)) for who in ("native", "Weir")]
        if all(steps):
            rows.append([title] + [f"{statistics.median(of_one):.2f}" for of_one in steps] + [f"{sum(steps[0]) / sum(steps[1]):.3f}"])
    if rows and history_job:
        print(f"{history_job} while history is recorded: the median step, ms, and all steps of PyTorch in those of Weir\n")
        table(["history", "PyTorch", "Weir", "PyTorch / Weir"], rows)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "--measure":
        measure_patterns(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default=os.path.join(ROOT, "build", "torch"), help="what adapters/torch/build.py has made (%(default)s)")
    parser.add_argument("--parts", default="speed,jobs,history", help="which (%(default)s)")
    parser.add_argument("--jobs", default="fixed_shapes,random_lengths,recomputation,resolutions,generation,prefetching,graphs",
                        help="which jobs (%(default)s)")
    parser.add_argument("--history-job", default="random_lengths", help="the job of the part history (%(default)s)")
    parser.add_argument("--twice", action="store_true", help="two processes for each allocator, to see what differs without a reason")
    parser.add_argument("--seconds", type=float, default=600, help="the most that all of it may take (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="few steps and rounds: to see that it runs")
    parser.add_argument("--json", help="writes all that was measured to a file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    package = os.path.abspath(arguments.package)
    if not glob.glob(os.path.join(package, "weir_torch", "libweir_torch.so")):
        sys.exit(f"side_by_side.py: there is no adapter in {package}; build it: python3 adapters/torch/build.py")
    results, parts, deadline = {}, arguments.parts.split(","), time.time() + arguments.seconds
    try:
        if "speed" in parts:
            speed(package, arguments.quick, deadline, results)
        if "jobs" in parts or "history" in parts:
            jobs(package, arguments.jobs.split(",") if "jobs" in parts else [], arguments.history_job if "history" in parts else None,
                 arguments.twice, arguments.quick, deadline, results)
    finally:
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
