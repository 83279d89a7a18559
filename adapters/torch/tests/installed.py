#!/usr/bin/env python3
"""Tests that WEIR_TORCH=1 works after an installation by pip, with a real PyTorch and a GPU.

    python3 adapters/torch/tests/installed.py [WHEEL]

installs the source folder (the adapter is compiled by pip), or a wheel (it is compiled on first use), to a temporary
folder, and runs small programs with it. Exits with 77 if that is not possible here.
"""
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

TRAIN = """
import torch, weir_torch
assert weir_torch.is_installed(), "PyTorch has its own allocator"
x = torch.ones(1 << 20, device="cuda")
assert float((x * 2).sum()) == 2 << 20
stats = weir_torch.memory_stats()
assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() == 4 << 20, stats
print("installed from", weir_torch.library_folder())
"""
PLAIN = """
import sys, torch
assert not sys.modules["weir_torch"].is_installed()
torch.ones(1, device="cuda")
print("not installed")
"""


def waive(reason):
    print(f"waived: {reason}")
    sys.exit(77)


def main():
    wheel = sys.argv[1] if len(sys.argv) > 1 else None
    for name in ("torch", "pip", "setuptools"):
        if importlib.util.find_spec(name) is None:
            waive(f"{sys.executable} has no {name}")
    ask = "import torch; print(torch.cuda.is_available())"
    check = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if check.stdout.strip() != "True":
        waive("PyTorch has no GPU here")
    with tempfile.TemporaryDirectory() as work:
        site = os.path.join(work, "site")
        begin = time.perf_counter()
        what = [wheel] if wheel else [ROOT, "--no-build-isolation"]
        pip = [sys.executable, "-m", "pip", "-q", "install", "--no-index", "--no-deps", "--target", site]
        subprocess.run([*pip, *what], check=True, cwd=work)
        print(f"pip install: {time.perf_counter() - begin:.0f} s")
        environment = {**os.environ, "PYTHONPATH": site, "XDG_CACHE_HOME": os.path.join(work, "cache")}
        for name in ("WEIR_TORCH", "WEIR_CACHE_DIR", "WEIR_TORCH_LIBRARIES", "WEIR_TORCH_PACKAGE"):
            environment.pop(name, None)
        passed = failed = 0
        for name, code, variables, builds in (
            ("without WEIR_TORCH", PLAIN, {}, False),
            ("the first run", TRAIN, {"WEIR_TORCH": "1"}, wheel is not None),
            ("the second run", TRAIN, {"WEIR_TORCH": "1"}, False),
            ("moving pages", TRAIN, {"WEIR_TORCH": "1", "WEIR_ALLOC_CONF": "moving_pages:True"}, False),
        ):
            begin = time.perf_counter()
            done = subprocess.run([sys.executable, "-W", "error", "-c", code], env={**environment, **variables},
                                  capture_output=True, text=True, cwd=work)
            good = done.returncode == 0 and ("building the adapter" in done.stderr) == builds
            passed, failed = passed + good, failed + (not good)
            print(f"{'ok' if good else 'FAILED'}: {name}, {time.perf_counter() - begin:.0f} s: {done.stdout.strip()}")
            if not good:
                print(done.stderr)
        print(f"installed by pip: {passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
