"""What the numbers of bench/all were measured on: the machine and the versions."""
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from contestants import ROOT, has_module


def output(*command, seconds=60):
    """Returns what a command prints, or "" if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def find_gpu(build):
    """Returns the name, the memory and the driver of the first GPU that Weir can use, or None."""
    try:
        found = json.loads(output("env", "WEIR_DRIVER=cuda", os.path.join(build, "weir"), "info", "--json"))
        device = found["devices"][0]
    except (ValueError, LookupError):
        return None
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    return {"name": device["name"], "memory": f"{device['total_memory'] / 2**30:.0f} GiB", "driver": driver or None}


def describe(build):
    gpu = find_gpu(build)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "memory_gib": round(pages / 2**30),
            "gpu": gpu["name"] if gpu else None, "gpu_memory": gpu["memory"] if gpu else None,
            "driver": gpu["driver"] if gpu else None, "system": f"{platform.system()} {platform.release()}"}


def versions(build):
    """The version of Weir and of each package that is installed; the others are None."""
    found = {"python": platform.python_version()}
    line = output(os.path.join(build, "weir"), "--version")
    found["weir"] = line.split()[-1] if line else None
    found["commit"] = output("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD") or None
    found["glibc"] = platform.libc_ver()[1] or None
    codes = {"torch": "import torch; print(torch.__version__, torch.version.cuda)",
             "cupy": "import cupy; print(cupy.__version__)", "rmm": "import rmm; print(rmm.__version__)"}

    def ask(name):
        return output(sys.executable, "-c", codes[name], seconds=180).split() if has_module(name) else []

    with ThreadPoolExecutor(len(codes)) as workers:  # each import takes seconds
        for name, words in zip(codes, workers.map(ask, codes)):
            found[name] = words[0] if words else None
            if len(words) > 1:
                found["cuda"] = words[1]
    return found
