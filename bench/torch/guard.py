#!/usr/bin/env python3
"""Measures what guard mode costs: the time of a step under each mode, relative to Weir without guard.

    python3 bench/torch/guard.py [--package build/torch] [--rounds N] [--steps N] [--modes off,light,...] [JOB...]

Each mode has one process, which runs the jobs of jobs.py in alternating rounds after a first one that does not count. A
job does the same in each step of each round, so the best time of each step counts. Prints a table in Markdown: factors,
peak reserved memory, whether the result is bit for bit that without guard, and the number of findings, which has to be
0. The exit status is 1 if a bar is missed (BARS), a result differs, or anything was found.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from tools import HERE, PACKAGE, environment

JOBS = ["fixed_shapes", "random_lengths", "recomputation", "resolutions", "prefetching", "generation"]
MODES = {  # name: variables
    "off": {},
    "light": {"WEIR_GUARD": "light"},
    "sample 64": {"WEIR_GUARD": "light", "WEIR_GUARD_SAMPLE": "64"},
    "full": {"WEIR_GUARD": "full"},
}
BARS = {"light": 1.15, "sample 64": 1.02, "full": 2}
WITHOUT_BAR = {"generation"}  # serving: its factor is only stated


class Player:
    """A process that runs jobs by name."""

    def __init__(self, mode, package, steps, folder):
        self.report = os.path.join(folder, mode.replace(" ", "-") + ".json")
        env = {**environment(package, True), **MODES[mode], "WEIR_GUARD_REPORT": self.report}
        command = [sys.executable, os.path.join(HERE, "jobs.py"), "--steps", str(steps)]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, job):
        print(job, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{job}: the process has ended with status {self.process.wait()}")
        return json.loads(line)

    def findings(self):
        try:
            with open(self.report, encoding="utf-8") as lines:
                return [json.loads(line) for line in lines]
        except FileNotFoundError:
            return []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=JOBS, metavar="JOB")
    parser.add_argument("--package", default=PACKAGE)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--modes", default=",".join(MODES))
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        players = {mode: Player(mode, arguments.package, arguments.steps, folder) for mode in modes}
        print("| job | mode | ms per step | factor | reserved | same result |\n|---|---|---|---|---|---|")
        for job in arguments.jobs:
            runs = {mode: [] for mode in modes}
            for number in range(arguments.rounds + 1):
                for mode, player in players.items():
                    run = player.play(job)
                    if "error" in run or not run["weir"]:
                        raise SystemExit(f"{job}, {mode}: {run.get('error', 'does not run on Weir')}")
                    runs[mode] += [run] if number else []
            best = {mode: [min(times) for times in zip(*(run["steps_ms"] for run in runs[mode]))] for mode in modes}
            for mode in modes:
                factor = sum(best[mode]) / sum(best[modes[0]])
                same = runs[mode][0]["last"] == runs[modes[0]][0]["last"]
                missed = job not in WITHOUT_BAR and factor > BARS.get(mode, factor)
                failed |= missed or not same
                print(f"| {job} | {mode} | {sum(best[mode]) / len(best[mode]):.2f} | {factor:.3f}"
                      f"{' (missed)' if missed else ''} | {runs[mode][0]['peak_reserved'] / 2**20:.0f} MiB | "
                      f"{'yes' if same else 'no'} |", flush=True)
        for mode, player in players.items():
            player.process.stdin.close()
            player.process.wait()
            for finding in player.findings():
                failed = True
                print(f"found under {mode}: {json.dumps(finding)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
