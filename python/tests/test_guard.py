"""Guard mode from Python: planted bugs, each with a clean twin that stays silent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import is_soft, run_python

# Each function allocates, does the wrong thing if `bug` is set, and frees. The software device's memory can be written
# to from here, once its streams are idle.
PROGRAM = """
import contextlib, ctypes, sys
import weir
from weir import caching_allocator_alloc as alloc, caching_allocator_delete as delete

def write(address, count):
    weir.synchronize()
    ctypes.memset(address, 7, count)

def past_end(bug):
    p = alloc(1000)
    write(p + 1000 if bug else p, 8)
    delete(p)

def past_the_end_of_a_unit(bug):
    p = alloc(512)
    write(p, 513 if bug else 512)
    delete(p)

def past_a_large_block(bug):
    p = alloc(3 << 20)
    write(p + (3 << 20) - 4, 8 if bug else 4)
    delete(p)

def past_a_buffer(bug):
    b = weir.buffer(77)
    write(b.pointer, 78 if bug else 77)
    b.free()

def after_free(bug):
    p = alloc(2000)
    write(p + 5, 0 if bug else 3)
    delete(p)
    write(p + 5, 3 if bug else 0)
    weir.empty_cache()

def at_the_end_of_a_freed_block(bug):
    p = alloc(1 << 20)
    delete(p)
    write(p + (1 << 20) - 1, bug)
    weir.empty_cache()

def freed_twice(bug):
    p = alloc(100)
    delete(p)
    if bug:
        with contextlib.suppress(Exception):
            delete(p)

def freed_in_the_middle(bug):
    p = alloc(4096)
    if bug:
        with contextlib.suppress(Exception):
            delete(p + 16)
    delete(p)

def freed_without_an_allocation(bug):
    if bug:
        with contextlib.suppress(Exception):
            delete(id(bug))

def freed_pinned_memory(bug):
    b = weir.host_empty(4096)
    if bug:
        with contextlib.suppress(Exception):
            delete(b.pointer)
    b.free()

BUGS = [past_end, past_the_end_of_a_unit, past_a_large_block, past_a_buffer, after_free, at_the_end_of_a_freed_block,
        freed_twice, freed_in_the_middle, freed_without_an_allocation, freed_pinned_memory]
for bug in BUGS:
    bug(BUG)
    weir.synchronize()
    delete(alloc(1))  # reads what was found
weir.empty_cache()
weir.synchronize()
delete(alloc(1))
"""

# What has to be named: kind, requested bytes, offset, and whether the free is known.
EXPECTED: dict[str, tuple[str, int, int, bool]] = {
    "past_end": ("out_of_bounds", 1000, 1000, True),
    "past_the_end_of_a_unit": ("out_of_bounds", 512, 512, True),
    "past_a_large_block": ("out_of_bounds", 3 << 20, 3 << 20, True),
    "past_a_buffer": ("out_of_bounds", 77, 77, True),
    "after_free": ("use_after_free", 2000, 5, True),
    "at_the_end_of_a_freed_block": ("use_after_free", 1 << 20, (1 << 20) - 1, True),
    "freed_twice": ("double_free", 100, 0, True),
    "freed_in_the_middle": ("interior_free", 4096, 16, False),
    "freed_without_an_allocation": ("foreign_free", 0, 0, False),
    "freed_pinned_memory": ("wrong_allocator", 0, 0, False),
}


def findings(bug: bool, folder: Path) -> list[dict[str, Any]]:
    report = folder / "report.json"
    run_python(f"BUG = {bug}\n" + PROGRAM, WEIR_GUARD="light", WEIR_GUARD_REPORT=str(report))
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def names(finding: dict[str, Any], key: str) -> list[str]:
    return [frame["name"] for frame in finding[key]]


pytestmark = pytest.mark.skipif(not is_soft, reason="writes to device memory from the host")


def test_each_bug_is_named_once(tmp_path: Path):
    found = findings(True, tmp_path)
    for name, (kind, requested, offset, is_freed) in EXPECTED.items():
        key = "alloc_stack" if requested else "here_stack"
        mine = [f for f in found if name in names(f, key)]
        assert [(f["kind"], f["requested"], f["offset"]) for f in mine] == [(kind, requested, offset)], name
        assert not is_freed or name in names(mine[0], "free_stack")
    assert len(found) == len(EXPECTED)


def test_findings_follow_the_schema(tmp_path: Path):
    top = Path(__file__).parents[2]
    report = tmp_path / "report.json"
    assert findings(True, tmp_path)
    check = [sys.executable, str(top / "tests/support/check_schema.py"), str(top / "docs/tools/guard.schema.json")]
    subprocess.run([*check, str(report)], check=True)


def test_the_clean_twins_are_silent(tmp_path: Path):
    assert findings(False, tmp_path) == []


SHARING = """
import contextlib, multiprocessing, sys
import weir

def consume(inbox, bug):
    buffer = inbox.get()
    if bug:
        with contextlib.suppress(Exception):
            weir.caching_allocator_delete(buffer.pointer)
    del buffer

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    inbox = context.Queue()
    consumer = context.Process(target=consume, args=(inbox, sys.argv[1] == "bug"))
    consumer.start()
    buffer = weir.buffer(5000)
    inbox.put(buffer)
    consumer.join()
    sys.exit(consumer.exitcode)
"""


@pytest.mark.parametrize("bug", [False, True])
def test_memory_of_another_process(bug: bool, tmp_path: Path):
    program, report = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(SHARING)
    env = {**os.environ, "WEIR_DRIVER": "soft", "WEIR_GUARD": "light", "WEIR_GUARD_REPORT": str(report)}
    subprocess.run([sys.executable, program, "bug" if bug else "clean"], env=env, check=True, timeout=100)
    found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    assert [f["kind"] for f in found] == ["other_process"] * bug
    assert not bug or "consume" in names(found[0], "here_stack")


FULL = """
import ctypes
import weir
from weir import caching_allocator_alloc as alloc, caching_allocator_delete as delete

def past_end(bug):
    p = alloc(1024)
    ctypes.memset(p, 7, 1025 if bug else 1024)
    delete(p)

def after_free(bug):
    p = alloc(2 << 20)
    if not bug:
        ctypes.string_at(p + 9, 1)
    delete(p)
    if bug:
        ctypes.string_at(p + 9, 1)

def far_before(bug):
    p = alloc(512)
    ctypes.string_at(p - (3 << 20) if bug else p, 1)
    delete(p)

def just_before(bug):
    p = alloc(700)
    weir.synchronize()
    ctypes.memset(p - 1 if bug else p, 7, 1)
    delete(p)
"""


@pytest.mark.parametrize(
    ("name", "kind", "requested", "offset", "access"),
    [
        ("past_end", "out_of_bounds", 1024, 1024, "write"),
        ("after_free", "use_after_free", 2 << 20, 9, "read"),
        ("far_before", "out_of_bounds", 512, -(3 << 20), "read"),
        ("just_before", "out_of_bounds", 700, -1, "changed"),
    ],
)
def test_full_names_the_access(name: str, kind: str, requested: int, offset: int, access: str, tmp_path: Path):
    for bug in (False, True):
        report = tmp_path / f"{bug}.json"
        env = {**os.environ, "WEIR_DRIVER": "soft", "WEIR_GUARD": "full", "WEIR_GUARD_REPORT": str(report)}
        # a sanitizer would turn the signal into an exit code
        env["ASAN_OPTIONS"] = f"{env.get('ASAN_OPTIONS', '')}:handle_segv=0"
        command = [sys.executable, "-c", f"{FULL}\n{name}({bug})"]
        code = subprocess.run(command, env=env, check=False, timeout=100).returncode
        found = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        assert code == (-signal.SIGSEGV if bug and access != "changed" else 0)
        expected = [(kind, requested, offset, access)] * bug
        assert [(f["kind"], f["requested"], f["offset"], f["access"]) for f in found] == expected
        assert all(name in names(f, "alloc_stack") for f in found)
