#!/usr/bin/env python3
"""test_frames.py LIBWEIR WEIR CC: Python frames of the PyTorch adapter in recordings, without PyTorch.

The adapter's build.py builds the libraries. A child process loads the adapter's package and calls libweir.so through
ctypes, and therefore without the GIL, as PyTorch often calls its allocator. `weir export` reads the recordings after
the child has exited.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

IS_LONG = os.environ.get("WEIR_TEST_LONG") == "1"
HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTER = os.path.join(os.path.dirname(os.path.dirname(HERE)), "adapters", "torch")

CHILD = r"""
import ctypes, os, sys, threading, time
import weir_torch
weir_torch._record_frames(weir_torch.library_folder())
weir = ctypes.CDLL(os.path.join(weir_torch.library_folder(), "libweir.so.0"))
weir.weir_allocator_alloc.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
weir.weir_allocator_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
weir.weir_history_enter_phase.restype = ctypes.c_uint32
weir.weir_history_text.restype = ctypes.c_uint32
driver, allocator = ctypes.c_void_p(), ctypes.c_void_p()
assert weir.weir_device_set_current(0) == 0 and weir.weir_get_driver(ctypes.byref(driver)) == 0
assert weir.weir_allocator_create(driver, None, ctypes.byref(allocator)) == 0

def take(size):
    pointer = ctypes.c_void_p()
    assert weir.weir_allocator_alloc(allocator, 0, size, None, ctypes.byref(pointer)) == 0
    return pointer

def pair(size):
    assert weir.weir_allocator_free(allocator, take(size)) == 0
"""


class Frames(unittest.TestCase):
    public = False

    def record(self, program, stacks="alloc", code=0, log=None, pairs=None):
        """The events of a child that runs the program, and what it wrote to stderr."""
        folder = os.path.join(self.work, "record")
        shutil.rmtree(folder, ignore_errors=True)
        path = os.path.join(self.work, "program.py")
        with open(path, "w") as file:
            file.write(CHILD + program)
        env = dict(os.environ, PYTHONPATH=self.package, WEIR_DRIVER="soft", WEIR_RECORD=folder, WEIR_RECORD_MB="16", WEIR_RECORD_STACKS=stacks)
        if log:
            env["WEIR_LOG"] = log
        done = subprocess.run([sys.executable, path], env=env, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stderr)
        ring = os.path.join(folder, os.listdir(folder)[0])
        out = subprocess.run([PROGRAM, "export", "--to", "json", ring], stdout=subprocess.PIPE, check=True).stdout
        events = [event for trace in json.loads(out)["device_traces"] for event in trace]
        if pairs is not None:
            self.assertEqual(len([e for e in events if e["action"] == "alloc"]), pairs)
        return events, done.stderr

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.work = cls.folder.name
        cls.package = os.path.join(cls.work, "package")
        os.makedirs(os.path.join(cls.package, "weir_torch"))
        sys.path.insert(0, ADAPTER)
        import build

        for name in ("__init__.py", "_build.py"):
            shutil.copy(os.path.join(ADAPTER, "weir_torch", name), os.path.join(cls.package, "weir_torch"))
        build.compile_frames(argparse.Namespace(weir=LIBRARY, cc=COMPILER, out=cls.package), os.path.join(cls.package, "weir_torch"))
        built = [name for name in os.listdir(os.path.join(cls.package, "weir_torch")) if name.startswith(build.FRAMES)]
        for name in built:
            if cls.public and "public" not in name:
                os.remove(os.path.join(cls.package, "weir_torch", name))
        if not cls.public and len(built) < 2:
            raise unittest.SkipTest("Python's headers are not there")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def names(self, event):
        return [frame["name"] for frame in event["frames"]]

    def allocs(self, events):
        return [event for event in events if event["action"] == "alloc"]

    def test_file_function_line(self):
        events, _ = self.record("def inner():\n    pair(512)\n\ndef outer():\n    inner()\n\nouter()\nouter()\n", pairs=2)
        lines = (CHILD + "def inner():\n").count("\n")
        for event in self.allocs(events):
            self.assertEqual(self.names(event), ["take", "pair", "inner", "outer", "<module>"])
            self.assertTrue(all(frame["filename"].endswith("program.py") for frame in event["frames"]))
            self.assertEqual(event["frames"][2]["line"], lines + 1)
            self.assertEqual(event["frames"][3]["line"], lines + 4)
        completed = [event for event in events if event["action"] == "free_completed"]
        self.assertEqual(self.names(completed[0]), ["take", "pair", "inner", "outer", "<module>"])

    def test_native_frames_behind(self):
        if "no native stacks" in self.record("pair(512)", stacks="alloc,native")[1]:
            self.skipTest("there is no libunwind")
        events, _ = self.record("pair(512)", stacks="alloc,native")
        names = self.names(self.allocs(events)[0])
        self.assertEqual(names[:3], ["take", "pair", "<module>"])
        self.assertGreater(len(names), 6)
        self.assertFalse([frame for frame in self.allocs(events)[0]["frames"] if "libweir" in frame["filename"]])

    def test_eight_threads(self):
        # Each thread allocates a different size in a separate function and compiles code: the table of places grows.
        calls = 10 if IS_LONG else 3
        events, _ = self.record(r"""
def work(n):
    space = {"pair": pair}
    for i in range(150):
        exec(f"def work_{n}():\n    pair(512 * ({n} + 1))", space)
        for _ in range(CALLS):
            space[f"work_{n}"]()
threads = [threading.Thread(target=work, args=[n]) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
""".replace("CALLS", str(calls)), pairs=8 * 150 * calls)
        for event in self.allocs(events):
            self.assertEqual(self.names(event)[:3], ["take", "pair", f"work_{event['size'] // 512 - 1}"])

    def test_threads_that_end(self):
        events, _ = self.record(r"""
def work(n):
    pair(512 * (n + 1))
for n in range(60):
    t = threading.Thread(target=work, args=[n])
    t.start()
    t.join()
""", pairs=60)
        for event in self.allocs(events):
            self.assertEqual(self.names(event)[:3], ["take", "pair", "work"])

    def test_shutdown_while_threads_run(self):
        program = r"""
done = 0
def work():
    global done
    n = 0
    while True:
        n += 1
        done += 1
        space = {"pair": pair}
        exec(f"def made_{n % 50}():\n    pair(512)", space)
        space[f"made_{n % 50}"]()
        pair(512)
for _ in range(6):
    threading.Thread(target=work, daemon=True).start()
while done < 500:
    time.sleep(0.01)
"""
        for _ in range(3 if IS_LONG else 1):
            events, _ = self.record(program)
            self.assertGreater(len(self.allocs(events)), 10)
            for event in self.allocs(events)[:1000]:  # the last ones may have none
                if event.get("frames"):
                    self.assertIn(self.names(event)[0], ("take", "pair"))

    def test_thread_without_python(self):
        # A thread unknown to Python has no frames, and has the shared phase.
        events, _ = self.record(r"""
phase = weir.weir_history_text(b"Optimizer.step#SGD.step")
weir.weir_history_share_phase(phase)
libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
# pthread_create calls a function with one argument, such as weir_allocator_empty_cache, which records an event.
weir.weir_allocator_free(allocator, take(30 << 20))
assert libc.pthread_create(ctypes.byref(thread), None, weir.weir_allocator_empty_cache, allocator) == 0
libc.pthread_join(thread, None)
pair(512)
""", stacks="all")
        freed = [event for event in events if event["action"] == "segment_free"]
        self.assertEqual([event.get("phase") for event in freed], ["Optimizer.step#SGD.step"])
        self.assertNotIn("<module>", [name for event in freed for name in self.names(event)])
        last = self.allocs(events)[-1]
        self.assertEqual(self.names(last), ["take", "pair", "<module>"])
        self.assertIsNone(last.get("phase"))

    def test_fork(self):
        events, _ = self.record(r"""
def parent():
    pair(1024)
stop = False
def busy():
    while not stop:
        pair(512)
        time.sleep(1e-4)
t = threading.Thread(target=busy)
t.start()
for _ in range(5):
    child = os.fork()
    if not child:
        sys.exit(0)  # finalizes the interpreter
    assert os.waitpid(child, 0)[1] == 0
stop = True
t.join()
parent()
""")
        self.assertEqual(self.names(self.allocs(events)[-1])[:3], ["take", "pair", "parent"])

    def test_no_stacks_no_frames(self):
        events, _ = self.record("assert weir_torch._frames is None\npair(512)", stacks="none", pairs=1)
        self.assertFalse(self.allocs(events)[0].get("frames"))

    def test_it_says_how(self):
        _, said = self.record("pair(512)", log="info")
        self.assertEqual("public functions" in said, self.public, said)


class PublicFrames(Frames):
    public = True


if __name__ == "__main__":
    LIBRARY, PROGRAM, COMPILER = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
