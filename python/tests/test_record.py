"""Recordings of WEIR_RECORD with stacks: a child process records itself, then `weir export` reads its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import is_long
from memory_tools import has_native_stacks

PROGRAM = os.environ.get("WEIR_PROGRAM", "")

pytestmark = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="WEIR_PROGRAM is not the path of the program weir")

Event = dict[str, Any]


def record(folder: Path, program: str, stacks: str = "alloc", env: dict[str, str] | None = None) -> list[Event]:
    """Returns the history entries of a child that runs the program."""
    path = folder / "program.py"
    path.write_text("import threading, time\nimport weir\n" + program)
    environment = dict(os.environ, WEIR_DRIVER="soft", WEIR_RECORD=str(folder / "record"), WEIR_RECORD_MB="8")
    environment |= {"WEIR_RECORD_STACKS": stacks, **(env or {})}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    (ring,) = (folder / "record").glob("*.ring")
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    out = subprocess.check_output([PROGRAM, "export", "--to", "json", str(ring)], env=plain)
    ring.unlink()
    return [event for trace in json.loads(out)["device_traces"] for event in trace]


def allocs(events: list[Event]) -> list[Event]:
    return [event for event in events if event["action"] == "alloc"]


def names(event: Event) -> list[str]:
    return [frame["name"] for frame in event.get("frames", [])]


def test_file_function_and_line(tmp_path: Path) -> None:
    program = "def inner():\n    return weir.buffer(512)\n\n\ndef outer():\n    return inner()\n\n\nouter()\n"
    events = record(tmp_path, program)
    (event,) = allocs(events)
    assert names(event) == ["inner", "outer", "<module>"]
    assert [frame["line"] for frame in event["frames"]] == [4, 8, 11]
    assert {frame["filename"] for frame in event["frames"]} == {str(tmp_path / "program.py")}
    (freed,) = [event for event in events if event["action"] == "free_completed"]
    assert names(freed) == ["inner", "outer", "<module>"]  # the stack of the allocation


def test_frees_have_their_own(tmp_path: Path) -> None:
    events = record(tmp_path, "def give(b):\n    b.free()\n\n\ngive(weir.buffer(512))\n", "all")
    (freed,) = [event for event in events if event["action"] == "free_completed"]
    assert names(freed)[:2] == ["give", "<module>"]


def test_native_frames_begin_at_the_caller(tmp_path: Path) -> None:
    if not has_native_stacks:
        pytest.skip("libunwind is not installed")
    (event,) = allocs(record(tmp_path, "b = weir.buffer(512)\n", "alloc,native"))
    assert names(event)[0] == "<module>"
    native = event["frames"][1:]
    assert len(native) > 3
    assert not [frame for frame in native if "_weir" in frame["filename"] or frame["name"].startswith("weir_")]


def test_phases(tmp_path: Path) -> None:
    events = record(tmp_path, 'with weir.memory_phase("forward"):\n    a = weir.buffer(512)\nb = weir.buffer(512)\n')
    assert [event.get("phase") for event in allocs(events)] == ["forward", None]


@pytest.mark.parametrize("form", ["ring", "pickle"])
def test_steps_that_are_marked_back_to_back(tmp_path: Path, form: str) -> None:
    program = """
import weir, random
kept = []
weir.memory._record_memory_history()
for step in range(60):
    with weir.memory_phase("step"):
        used = [weir.buffer(1000 * (k + 1)) for k in range(random.randint(1, 9))]
        kept.append(weir.buffer(4096))
        del used
weir.memory._dump_snapshot("job.pickle")
"""
    environment = dict(os.environ, WEIR_DRIVER="soft")
    if form == "ring":
        environment |= {"WEIR_RECORD": str(tmp_path), "WEIR_RECORD_MB": "1"}
        program = program.replace("weir.memory._record_memory_history()\n", "")
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True, timeout=240)
    (path,) = tmp_path.glob("*.ring") if form == "ring" else [tmp_path / "job.pickle"]
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([PROGRAM, "leaks", "--json", str(path)], env=plain, stdout=subprocess.PIPE, timeout=240)
    found = json.loads(done.stdout)["recordings"][0]
    assert (found["steps"]["source"], found["steps"]["name"], found["steps"]["count"]) == ("phases", "step", 60)
    assert (found["blocks"], found["first_step"]) == (60, 0)


def test_no_frames_without_stacks(tmp_path: Path) -> None:
    (event,) = allocs(record(tmp_path, "b = weir.buffer(512)\n", "none"))
    assert names(event) == []


def test_eight_threads(tmp_path: Path) -> None:
    # Each thread has its own size and functions, and creates new code all the time: the table grows and is cleared.
    program = """
def work(n):
    space = {"weir": weir}
    for i in range(4500):
        exec(f"def work_{n}():\\n    return weir.buffer(512 * ({n} + 1))", space)
        space[f"work_{n}"]()


threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
for t in threads:
    t.start()
for t in threads:
    t.join()
"""
    events = allocs(record(tmp_path, program, env={"WEIR_RECORD_MB": "64"}))
    assert len(events) == 8 * 4500
    for event in events:
        assert names(event)[:2] == [f"work_{event['size'] // 512 - 1}", "work"]
        assert event["frames"][0]["line"] == 2


def test_threads_that_end(tmp_path: Path) -> None:
    program = """
def work(n):
    weir.buffer(512 * (n + 1)).free()


for n in range(100):
    t = threading.Thread(target=work, args=[n])
    t.start()
    t.join()
"""
    events = allocs(record(tmp_path, program))
    assert len(events) == 100
    assert {tuple(names(event)[:1]) for event in events} == {("work",)}


def test_shutdown_while_threads_run(tmp_path: Path) -> None:
    program = """
done = 0


def work():
    global done
    n = 0
    while True:
        n += 1
        done += 1
        space = {"weir": weir}
        exec(f"def made_{n % 50}():\\n    weir.buffer(512).free()", space)
        space[f"made_{n % 50}"]()


for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
while done < 500:
    time.sleep(0.01)
"""
    for _ in range(6 if is_long else 2):
        assert len(allocs(record(tmp_path, program))) > 10


def test_code_at_an_address_that_was_used_before(tmp_path: Path) -> None:
    # Entries of destroyed code must not be used for new code at the same address.
    program = """
names = []
for n in range(300):
    weir.memory._record_memory_history(stacks="python", context="alloc")
    space = {"weir": weir}
    exec(f"def made_{n}():\\n    return weir.buffer(512)", space)
    block = space[f"made_{n}"]()
    entries = [e for e in weir.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    names.append(entries[-1]["frames"][0]["name"])
    weir.memory._record_memory_history(None)
    del block, space
assert names == [f"made_{n}" for n in range(300)], names
weir.memory._record_memory_history(stacks="python", context="alloc")
"""
    record(tmp_path, program)


def test_recording_can_end_and_begin_again(tmp_path: Path) -> None:
    program = """
import gc, weakref

weir.memory._record_memory_history(None)
space = {"weir": weir}
exec("def first():\\n    return weir.buffer(512)", space)
code = weakref.ref(space["first"].__code__)
space["first"]()
del space
gc.collect()
assert code() is None  # nothing keeps code alive while nothing is recorded
weir.memory._record_memory_history(stacks="python", context="alloc")


def second():
    return weir.buffer(1024)


second()
"""
    (event,) = allocs(record(tmp_path, program))
    assert names(event) == ["second", "<module>"]
