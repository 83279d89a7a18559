"""The rows of bench/all, and how each is measured."""
import json
import os
import statistics
import subprocess
import sys
import time

from contestants import ROOT, TORCH, Failed, Missing, Player

MIB = 1 << 20
DEVICE = (*TORCH, "weir", "weir_moving")
FROM_C = (*DEVICE, "mimalloc", "malloc")
FROM_PYTHON = (*TORCH, "cupy", "cupy_weir", "rmm", "weir", "weir_moving")
CALLERS = ("torch", "torch_weir", "cupy", "weir")
HISTORY = ("torch", "torch_expandable", "torch_weir", "torch_weir_moving", "weir", "weir_moving")
PINNED = ("torch", "torch_weir", "weir")

# key: (title, unit, what it is). The order is that of the tables.
GROUPS = {
    "pairs": ("Allocation and free of one block, from C or C++", "ns",
              "One block is allocated and freed repeatedly."),
    "live": ("A working set, from C or C++", "ns",
             "The given number of blocks, of random sizes, is live. One of them is freed and another one allocated."),
    "threads": ("Threads, from C or C++", "ns",
                "Pairs of 4 KiB in several threads: the wall time, divided by the number of pairs of all threads."),
    "history": ("While the history is recorded", "ns", "A pair while each allocation and free is recorded."),
    "python": ("From Python", "ns",
               "An array of bytes is created and deleted, such as by `torch.empty`, `cupy.empty` or `weir.buffer`."),
    "calls": ("Calls from Python", "ns", "One call: of `torch.cuda`, of Weir's package, and the nearest one of CuPy."),
    "pinned": ("Pinned memory, from C or C++", "ns", "Pairs of pinned host memory."),
    "start": ("Start", "ms", "The time from the start of the process, with that of Python where it is used."),
    "step": ("Whole jobs: time of a step", "ms", "The mean step of a run of the job, without the first."),
    "reserved": ("Whole jobs: reserved memory", "GB", "The peak of reserved memory."),
    "fragmentation": ("Whole jobs: fragmentation", "%", "1 - peak of allocated memory / peak of reserved memory."),
}
JOBS = ("fixed_shapes", "random_lengths", "recomputation", "resolutions", "generation", "prefetching", "graphs")
QUICK_JOBS = ("random_lengths", "generation")
JOB_GROUPS = ("step", "reserved", "fragmentation")


class Scale:
    """The amount of work."""

    def __init__(self, quick):
        self.quick = quick
        self.rounds = 5 if quick else 11
        self.round_ns = 1e7 if quick else 5e7  # of a contestant
        self.pairs = 20_000 if quick else 1_000_000  # in a round, the maximum
        self.warm = 20_000 if quick else 1 << 17
        self.starts = 1 if quick else 4
        self.first_starts = 0 if quick else 1  # not counted: they read files into memory
        self.job_rounds = 1 if quick else 3
        self.job_steps = 4 if quick else 0  # 0: those of the job


class Row:
    """One line of a table, or several that are measured together (those of a job)."""

    def __init__(self, key, group, title, contestants, language="c", pattern=None, code=None, seconds=10):
        self.key, self.group, self.title, self.contestants = key, group, title, contestants
        self.language, self.pattern, self.code = language, pattern, code
        self.seconds = seconds  # an estimate, for --budget

    def estimate(self, scale):
        return self.seconds / 8 if scale.quick else self.seconds

    def deadline(self, scale, end):
        """When the last round may begin. The time in which the processes start does not count."""
        return min(end, time.monotonic() + 2 * self.estimate(scale))


def turns(key, group, title, contestants, pattern, language="c", seconds=9):
    return Row(f"{group}.{key}", group, title, contestants, language, pattern, seconds=seconds)


FIRST = {  # the import and the first allocation, by package
    "torch": ("import torch", 'torch.empty(4096, dtype=torch.uint8, device="cuda")'),
    "cupy": ("import cupy", "cupy.empty(4096, dtype=cupy.uint8)"),
    "rmm": ("import rmm", "rmm.DeviceBuffer(size=4096)"),
    "weir": ("import weir", "weir.buffer(4096)"),
}


def all_rows():
    rows = []
    for name, title in (("512B", "512 B"), ("64KiB", "64 KiB"), ("8MiB", "8 MiB")):
        rows.append(turns(name, "pairs", f"pairs of {title}", FROM_C, f"pair_{name}"))
    for name, title in (("1000_1MiB", "1,000 blocks up to 1 MiB"), ("20000_1MiB", "20,000 blocks up to 1 MiB")):
        rows.append(turns(name, "live", title, FROM_C, f"live_{name}", seconds=14))
    for count in (1, 2, 8, 16):
        title = f"{count} thread{'s' if count > 1 else ''}, a stream each"
        rows.append(turns(str(count), "threads", title, FROM_C, f"threads_{count}"))
    rows.append(turns("16_stream", "threads", "16 threads, one stream", FROM_C, "stream_16"))
    rows.append(turns("entries", "history", "from C: pairs of 512 B", HISTORY, "entries:pair_512B"))
    for mode, title in (("entries", "from Python: pairs of 4 KiB"),
                        ("stacks", "the same with Python stacks of 10 frames")):
        rows.append(turns(f"python_{mode}", "history", title, HISTORY, f"{mode}_py:pair_4096", "python"))
    for name, pattern, title in (("pair_4KiB", "pair_4096", "pairs of 4 KiB"),
                                 ("pair_8MiB", f"pair_{8 * MIB}", "pairs of 8 MiB"),
                                 ("live", f"live_1000_{MIB}", "1,000 arrays up to 1 MiB, one replaced"),
                                 ("threads_16", "threads_16", "pairs of 4 KiB, 16 threads")):
        rows.append(turns(name, "python", title, FROM_PYTHON, f"py:{pattern}", "python"))
    for name, title in (("memory_allocated", "`memory_allocated()`"), ("memory_stats", "`memory_stats()`"),
                        ("current_stream", "`current_stream()`"), ("stream", "`Stream()`"),
                        ("event_record", "`Event.record()`"), ("synchronize", "`synchronize()`, idle device")):
        rows.append(turns(name, "calls", title, CALLERS, f"call:{name}", "python", seconds=4))
    for name, pattern, title in (("512B", "pair_512B", "pairs of 512 B"), ("64KiB", "pair_64KiB", "pairs of 64 KiB"),
                                 ("16", "stream_16", "pairs of 4 KiB, 16 threads")):
        rows.append(turns(name, "pinned", title, PINNED, f"pinned:{pattern}", seconds=5))
    rows.append(Row("start.python", "start", "`import` of the package", ("torch", "torch_weir", "cupy", "rmm", "weir"),
                    "python", code="python", seconds=100))
    rows.append(Row("start.c", "start", "to the first allocation, from C", ("weir", "weir_moving"), "c",
                    code="once", seconds=10))
    for job in JOBS:
        rows.append(Row(f"jobs.{job}", "jobs", f"`{job}`", TORCH, "python", code=job, seconds=60))
    return rows


def select(rows, only, quick):
    """The rows that --only names: groups, such as pairs, and rows, such as jobs.generation."""
    if quick:
        rows = [row for row in rows if row.group != "jobs" or row.code in QUICK_JOBS]
    if not only:
        return rows
    wanted = [word.strip() for word in only.split(",") if word.strip()]
    known = {row.group for row in all_rows()} | {row.key for row in all_rows()}
    unknown = [word for word in wanted if word not in known]
    if unknown:
        raise ValueError(f"unknown rows: {', '.join(unknown)}; the groups are "
                         f"{', '.join(dict.fromkeys(row.group for row in all_rows()))}")
    return [row for row in rows if row.group in wanted or row.key in wanted]


def loop_time():
    begin = time.perf_counter()
    for _ in range(20_000):
        pass
    return time.perf_counter() - begin


def quietest_core():
    """The core with the least other work, on it and on the cores it shares parts with: the one that runs a loop the
    fastest. All contestants with one thread run on it."""
    allowed = os.sched_getaffinity(0)
    times = {}
    try:
        for core in sorted(allowed):
            os.sched_setaffinity(0, {core})
            times[core] = statistics.median(loop_time() for _ in range(9))
    finally:
        os.sched_setaffinity(0, allowed)
    return min(times, key=times.get)


def start_all(row, contestants, results):
    players = {}
    contestants.prepare(row.contestants, row.language)
    for key in row.contestants:
        try:
            players[key] = contestants.start(key, row.language)
        except Missing as error:
            results[key] = {"absent": str(error)}
        except Failed as error:
            results[key] = {"failed": f"does not start: {error}"}
            contestants.drop(key, row.language)
    return players


def measure_turns(row, contestants, scale, end):
    """The contestants take turns, one round each, and every second time in reverse order."""
    results = {}
    players = start_all(row, contestants, results)
    deadline = row.deadline(scale, end)
    many = "threads_" in row.pattern or "stream_" in row.pattern
    core, counts, samples = -1 if many else quietest_core(), {}, {}

    def fail(key, why):
        results[key] = {"failed": why}
        counts.pop(key, None)
        contestants.drop(key, row.language)

    for key, player in players.items():
        try:
            if player.number(f"begin {row.pattern} {scale.warm} {core}", 120) == 0:
                results[key] = {"absent": player.error_text() or "does not have it"}
                player.number("end")
                continue
            short = max(20, scale.pairs // 50)
            ns = player.number(f"round {short}", 120)
            if ns < 0:
                raise Failed(player.error_text() or "an allocation failed")
            factor = 4 if many and row.language == "c" else 1  # threads share four times the pairs
            counts[key] = max(10, int(min(scale.pairs, scale.round_ns / max(ns, 1) / factor)))
        except Failed as error:
            fail(key, str(error))
    for number in range(scale.rounds):
        if number >= 3 and time.monotonic() > deadline:
            break
        for key in list(counts)[:: -1 if number % 2 else 1]:
            try:
                ns = players[key].number(f"round {counts[key]}", 120)
                if ns < 0:
                    raise Failed(players[key].error_text() or "an allocation failed")
                samples.setdefault(key, []).append(ns)
            except Failed as error:
                fail(key, str(error))
    for key in list(counts):
        try:
            players[key].number("end", 120)
        except Failed as error:
            fail(key, str(error))
    for key in counts:
        results[key] = {"samples": samples[key]}
    return {row.key: entry(row, row.group, row.title, results)}


def entry(row, group, title, results):
    """A row of the JSON file."""
    unit = GROUPS[group][1]
    found = {}
    for key in row.contestants:
        result = dict(results.get(key, {"absent": "not measured"}))
        if "samples" in result:
            values = [float(f"{value:.5g}") for value in result["samples"]]
            result = {"median": float(f"{statistics.median(values):.5g}"), "least": min(values), "most": max(values),
                      "samples": values}
        found[key] = result
    return {"group": group, "title": title, "unit": unit, "results": found}


# ---- Start ----

def start_command(row, key, contestants):
    """A command that prints the time after each part: the import and the first allocation, or only the latter."""
    if row.code == "once":
        return [*contestants.command(key, "c"), "--once"]
    contestants.require(key)
    first, second = FIRST["torch" if key in TORCH else key]
    say = "print(time.monotonic(), flush=True)"
    return [sys.executable, "-c", "\n".join(["import os, time", first, say, second, say, "os._exit(0)"])]


def times_of(command, env, seconds=120):
    """Returns the milliseconds from the start of a process until each of its parts was done."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {seconds} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Failed(f"exit code {done.returncode}: {lines[-1][:300]}")
    try:
        return [1e3 * (float(line) - begin) for line in done.stdout.split("\n") if line]
    except ValueError:
        raise Failed(f"printed '{done.stdout.strip()[:200]}'") from None


def measure_start(row, contestants, scale, end):
    deadline = row.deadline(scale, end)
    parts = {row.key: row.title}
    if row.code == "python":
        parts = {f"{row.key}.import": row.title, f"{row.key}.first": "to the first allocation, from Python"}
    results, samples, commands = {}, {}, {}
    for key in row.contestants:
        try:
            commands[key] = start_command(row, key, contestants)
        except Missing as error:
            results[key] = {"absent": str(error)}
    for number in range(scale.first_starts + scale.starts):
        for key in list(commands)[:: -1 if number % 2 else 1]:
            try:
                times = times_of(commands[key], contestants.environment(key))
                if len(times) != len(parts):
                    raise Failed(f"printed {len(times)} times, expected {len(parts)}")
                if number >= scale.first_starts:
                    samples.setdefault(key, []).append(times)
            except Failed as error:
                results[key] = {"failed": str(error)}
                del commands[key]
        if number >= scale.first_starts and time.monotonic() > deadline:
            break
    found = {}
    for index, (part, title) in enumerate(parts.items()):
        for key in commands:
            results[key] = {"samples": [times[index] for times in samples[key]]}
        found[part] = entry(row, row.group, title, results)
    return found


# ---- Jobs ----

class JobPlayers:
    """A process for each allocator, which runs the jobs that it is asked for (bench/torch/jobs.py)."""

    def __init__(self, contestants, scale):
        self.contestants, self.scale, self.players, self.problems = contestants, scale, {}, {}

    def start(self, key):
        if key in self.problems:
            raise Missing(self.problems[key])
        if key not in self.players:
            try:
                self.contestants.require(key)
            except Missing as error:
                self.problems[key] = str(error)
                raise
            command = [sys.executable, os.path.join(ROOT, "bench", "torch", "jobs.py"), "--steps",
                       str(self.scale.job_steps)]
            self.players[key] = Player(command, self.contestants.environment(key))
        return self.players[key]

    def answer(self, key, seconds):
        while True:
            line = self.players[key].receive(seconds)
            if line.startswith("{"):
                break
        result = json.loads(line)
        if "error" in result:
            raise Failed(result["error"].splitlines()[0][:300])
        if result["weir"] != key.startswith("torch_weir"):
            raise Failed("another allocator is installed than " + key)
        return result

    def drop(self, key):
        player = self.players.pop(key, None)
        if player:
            player.close()

    def close(self):
        for key in list(self.players):
            self.drop(key)


def measure_job(row, jobs, scale, end):
    """Each process runs the job once without counting, since that loads kernels and selects algorithms. Then they take
    turns."""
    results, found = {group: {} for group in JOB_GROUPS}, {}

    def put(key, what, why):
        for group in JOB_GROUPS:
            results[group][key] = {what: why}

    def fail(key, error):
        put(key, "failed", str(error))
        jobs.drop(key)
        found.pop(key, None)

    for key in row.contestants:
        try:
            jobs.start(key).send(row.code)
            found[key] = []
        except Missing as error:
            put(key, "absent", str(error))
    for key in list(found):
        try:
            jobs.answer(key, 240)
        except Failed as error:
            fail(key, error)
    deadline = row.deadline(scale, end)
    for number in range(scale.job_rounds):
        if number and time.monotonic() > deadline:
            break
        for key in list(found)[:: -1 if number % 2 else 1]:
            try:
                jobs.players[key].send(row.code)
                found[key].append(jobs.answer(key, 120))
            except Failed as error:
                fail(key, error)
    for key, runs in found.items():
        results["step"][key] = {"samples": [statistics.mean(run["steps_ms"]) for run in runs]}
        results["reserved"][key] = {"samples": [run["peak_reserved"] / 1e9 for run in runs]}
        results["fragmentation"][key] = {"samples": [
            100 * (1 - run["peak_allocated"] / run["peak_reserved"]) if run["peak_reserved"] else 0.0 for run in runs]}
    return {f"{row.key}.{group}": entry(row, group, row.title, results[group]) for group in JOB_GROUPS}


def failed_row(row, error):
    """What takes the place of a row that could not be measured at all."""
    why = {"failed": f"{type(error).__name__}: {error}"[:300]}
    groups = {f"{row.key}.{group}": group for group in JOB_GROUPS} if row.group == "jobs" else {row.key: row.group}
    return {key: entry(row, group, row.title, dict.fromkeys(row.contestants, why)) for key, group in groups.items()}


def measure(row, contestants, jobs, scale, end):
    """Returns the rows of the JSON file that a row gives. Rounds that would begin after `end` are left out."""
    if row.group == "jobs":
        return measure_job(row, jobs, scale, end)
    if row.group == "start":
        return measure_start(row, contestants, scale, end)
    return measure_turns(row, contestants, scale, end)
