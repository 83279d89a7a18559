"""Recordings of WEIR_RECORD under PyTorch: the ring file has Python frames and phases. Each test records a child
process, and reads its file with `weir export` (WEIR_PROGRAM, or build/weir)."""
import json
import os
import signal
import subprocess
import sys
import tempfile

import harness
from harness import equal

torch = harness.install()

PROGRAM = os.environ.get("WEIR_PROGRAM") or os.path.join(os.path.dirname(harness.package_folder()), "weir")
START = """
import sys, threading, time
import torch
import weir_torch
assert weir_torch.is_installed()
def empty(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")
"""
MIB = 1 << 20


def record(program, stacks="alloc", libraries=None, may_abort=False):
    """Returns the history entries of a child that runs the program, and its stderr."""
    if os.environ.get("WEIR_TEST_NATIVE") == "1":
        raise harness.Waived("PyTorch's own allocator has no ring file")
    if not os.path.exists(PROGRAM):
        raise harness.Waived(f"{PROGRAM} was not found; set WEIR_PROGRAM to the program weir")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write(START + program)
        env = dict(os.environ, WEIR_TORCH="1", WEIR_RECORD=os.path.join(folder, "record"), WEIR_RECORD_MB="64",
                   WEIR_RECORD_STACKS=stacks, WEIR_LOG="info")
        if libraries:
            env["WEIR_TORCH_LIBRARIES"] = libraries
        done = subprocess.run([sys.executable, path], env=env, stderr=subprocess.PIPE, text=True, timeout=200)
        if not (may_abort and done.returncode == -signal.SIGABRT and "terminate called" in done.stderr):
            equal(done.returncode, 0, done.stderr[-2000:])
        (ring,) = (name for name in os.listdir(os.path.join(folder, "record")) if name.endswith(".ring"))
        out = subprocess.check_output([PROGRAM, "export", "--to", "json", os.path.join(folder, "record", ring)])
    return [event for trace in json.loads(out)["device_traces"] for event in trace], done.stderr


def allocs(events, size=None):
    return [e for e in events if e["action"] == "alloc" and (size is None or e["size"] == size)]


def names(event):
    return [f["name"] for f in event.get("frames", [])]


def test_python_frames():
    events, _ = record("def inner():\n    return empty(3 << 20)\ndef outer():\n    return inner()\nx = outer()\n")
    (event,) = allocs(events, 3 * MIB)
    equal(names(event)[:4], ["empty", "inner", "outer", "<module>"])
    first = START.count("\n") + 1
    equal([f["line"] for f in event["frames"][1:4]], [first + 1, first + 3, first + 4])


def test_walker_is_built_for_this_python():
    _, said = record("x = empty(512)\n")
    folder = os.path.join(harness.package_folder(), "weir_torch")
    import sysconfig

    known = os.path.exists(os.path.join(folder, f"libweir_torch_frames.{sysconfig.get_config_var('SOABI')}.so"))
    equal("public functions" in said, not known or sys.version_info >= (3, 14), said)


def test_public_functions():
    import shutil

    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(harness.package_folder(), "weir_torch")
        for name in os.listdir(source):
            if ".so" in name and (not name.startswith("libweir_torch_frames") or "public" in name):
                shutil.copy(os.path.join(source, name), folder)
        events, said = record("def inner():\n    return empty(3 << 20)\nx = inner()\n", libraries=folder)
    equal(names(allocs(events, 3 * MIB)[0])[:3], ["empty", "inner", "<module>"])
    assert "public functions" in said, said


def test_optimizer_phases_and_autograd():
    events, _ = record("""
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad(set_to_none=True)
    loss = model(torch.randn(64, 1024, device="cuda")).square().mean()
    with torch.profiler.record_function("backward"):
        loss.backward()
    optimizer.step()
torch.cuda.synchronize()
""")
    phases = {}
    for event in allocs(events):
        phases.setdefault(event.get("phase"), []).append(event)
    assert "Optimizer.step#SGD.step" in phases, phases.keys()  # the buffers of the momentum
    assert any("step" in names(event) for event in phases["Optimizer.step#SGD.step"])
    of_autograd = [event for event in phases.get("backward", []) if "<module>" not in names(event)]
    assert of_autograd, "autograd's thread has no Python frames, and has the phase of the thread that called it"
    assert any("<module>" in names(event) for event in phases[None]), "the forward pass is in no phase"


def test_eight_threads():
    events, _ = record("""
def work(n):
    space = {"empty": empty}
    for i in range(300):
        exec(f"def work_{n}():\\n    return empty(({n} + 1) << 20)", space)
        for _ in range(5):
            space[f"work_{n}"]()
threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
""")
    for n in range(8):
        found = allocs(events, (n + 1) * MIB)
        equal(len(found), 1500)
        for event in found:
            equal(names(event)[:3], ["empty", f"work_{n}", "work"])


def test_threads_that_end():
    events, _ = record("""
def work():
    empty(3 << 20)
for _ in range(40):
    t = threading.Thread(target=work)
    t.start()
    t.join()
""")
    equal({tuple(names(event)[:2]) for event in allocs(events, 3 * MIB)}, {("empty", "work")})


def test_shutdown_while_threads_run():
    program = """
done = 0
def work():
    global done
    n = 0
    while True:
        n += 1
        done += 1
        space = {"empty": empty}
        exec(f"def made_{n % 50}():\\n    return empty(512)", space)
        space[f"made_{n % 50}"]()
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while done < 500:
    time.sleep(0.01)
torch.cuda.synchronize()
"""
    # At exit, Python ends a daemon thread that waits for the GIL by unwinding its stack. PyTorch's own destructors,
    # which take the GIL after an operation, then abort the process, also with its own allocator.
    code = START.split("import weir_torch")[0] + START.split("is_installed()")[1] + program
    env = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
    native = [subprocess.run([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE, text=True, timeout=200)
              for _ in range(3)]
    may_abort = any(done.returncode == -signal.SIGABRT and "terminate called" in done.stderr for done in native)
    for _ in range(3):
        events, _ = record(program, may_abort=may_abort)
        assert len(allocs(events)) > 10


def test_native_frames_begin_at_the_caller():
    events, said = record("x = empty(3 << 20)\n", stacks="alloc,native")
    if "no native stacks" in said:
        raise harness.Waived("libunwind is not installed")
    (event,) = allocs(events, 3 * MIB)
    equal(names(event)[:2], ["empty", "<module>"])
    native = event["frames"][2:]
    assert native and "libweir" not in native[0]["filename"], native[:3]
    assert any("at::" in f["name"] or "torch::" in f["name"] or "c10::" in f["name"] for f in native), native[:8]


def test_explain_names_the_line():
    if os.environ.get("WEIR_TEST_NATIVE") == "1" or not os.path.exists(PROGRAM):
        raise harness.Waived("there is no ring file, or no program to read it")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "program.py")
        with open(path, "w") as file:
            file.write(START + "def hog():\n    return empty(100 << 20)\nkept = [hog() for _ in range(5)]\n")
        env = dict(os.environ, WEIR_TORCH="1", WEIR_RECORD=os.path.join(folder, "record"), WEIR_RECORD_STACKS="alloc")
        subprocess.run([sys.executable, path], env=env, check=True, timeout=200)
        (ring,) = os.listdir(os.path.join(folder, "record"))
        text = subprocess.check_output([PROGRAM, "explain", os.path.join(folder, "record", ring)], text=True)
    assert "program.py" in text and ("hog" in text or "empty" in text), text


if __name__ == "__main__":
    harness.main(globals())
