"""The contestants of bench/all, and the processes in which they run."""
import hashlib
import os
import queue
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build")

# key: title. The order is that of the tables.
TITLES = {
    "torch": "PyTorch",
    "torch_expandable": "PyTorch, expandable",
    "torch_async": "cudaMallocAsync",
    "torch_weir": "PyTorch on Weir",
    "torch_weir_moving": "PyTorch on Weir, moving",
    "cupy": "CuPy",
    "cupy_weir": "CuPy on Weir",
    "rmm": "RMM",
    "weir": "Weir",
    "weir_moving": "Weir, moving",
    "mimalloc": "mimalloc",
    "malloc": "malloc",
}
TORCH = ("torch", "torch_expandable", "torch_async", "torch_weir", "torch_weir_moving")
TORCH_SETTINGS = {"torch_expandable": "expandable_segments:True", "torch_async": "backend:cudaMallocAsync"}
MOVING = "moving_pages:True"
START_SECONDS = 180  # PyTorch and CuPy can take a minute to load


class Failed(Exception):
    """A contestant failed, for this reason."""


class Missing(Exception):
    """A contestant is not installed or cannot run here, for this reason."""


class Player:
    """A process that answers requests, one line each."""

    def __init__(self, command, env):
        self.answers, self.errors, self.since = queue.SimpleQueue(), tempfile.TemporaryFile("ab+"), 0
        self.process = subprocess.Popen(command, env=env, text=True, bufsize=1, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors)
        threading.Thread(target=self.listen, args=[self.process.stdout], daemon=True).start()

    def listen(self, lines):
        for line in lines:
            self.answers.put(line.rstrip("\n"))
        self.answers.put(None)

    def error_text(self):
        """The last line that the process has written to stderr since the last request."""
        size = os.fstat(self.errors.fileno()).st_size - self.since
        written = os.pread(self.errors.fileno(), size, self.since).decode(errors="replace")
        lines = [line.strip() for line in written.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    def send(self, request):
        self.since = os.fstat(self.errors.fileno()).st_size
        try:
            self.process.stdin.write(request + "\n")
        except (BrokenPipeError, ValueError):
            pass  # receive() reports it

    def receive(self, seconds):
        try:
            line = self.answers.get(timeout=max(0.1, seconds))
        except queue.Empty:
            self.close()
            raise Failed(f"no answer for {seconds:.0f} s") from None
        if line is None:
            code = self.process.wait()
            raise Failed(f"exit code {code}: {self.error_text()}" if self.error_text() else f"exit code {code}")
        return line

    def ask(self, request, seconds=60):
        self.send(request)
        return self.receive(seconds)

    def number(self, request, seconds=60):
        answer = self.ask(request, seconds)
        try:
            return float(answer)
        except ValueError:
            raise Failed(f"answered '{answer[:80]}' to '{request}'") from None

    def close(self):
        if self.process.poll() is None:
            self.process.kill()  # without waiting: releasing a device takes seconds
        for stream in (self.process.stdin, self.process.stdout):
            try:
                stream.close()
            except OSError:
                pass


def environment(key, has_gpu, torch_package, python_package):
    """Returns the environment of a contestant's process."""
    env = dict(os.environ)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "WEIR_ALLOC_CONF", "WEIR_RECORD", "WEIR_DRIVER",
                 "WEIR_DRIVER_TIMING", "WEIR_TORCH", "WEIR_TORCH_PINNED"):
        env.pop(name, None)
    paths = [torch_package if key.startswith("torch") else python_package, env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    env["WEIR_TORCH"] = "1" if key.startswith("torch_weir") else "0"
    env["WEIR_DRIVER"] = "cuda" if has_gpu else "soft"
    if key in TORCH_SETTINGS:
        env["PYTORCH_CUDA_ALLOC_CONF"] = TORCH_SETTINGS[key]
    if key.endswith("_moving"):
        env["WEIR_ALLOC_CONF"] = MOVING
    return env


class Contestants:
    """Starts the processes of contestants when they are first needed, and remembers which are missing."""

    def __init__(self, has_gpu, build=BUILD, say=print):
        self.has_gpu, self.build, self.say = has_gpu, build, say
        self.players, self.starting, self.missing, self.versions, self.library = {}, {}, {}, {}, None

    def torch_library(self):
        """Compiles the C++ part for PyTorch, once for each version of PyTorch and of the sources."""
        if self.library is None:
            sources = [os.path.join(HERE, "torch_player.cpp"), os.path.join(ROOT, "bench", "patterns.h")]
            digest = hashlib.sha256(subprocess.run([sys.executable, "-c", "import torch; print(torch.__file__,"
                                                    " torch.__version__)"], capture_output=True).stdout)
            for path in sources:
                with open(path, "rb") as file:
                    digest.update(file.read())
            folder = os.path.join(self.build, "bench")
            path = os.path.join(folder, f"libtorch_player-{digest.hexdigest()[:12]}.so")
            if not os.path.exists(path):
                self.say("compiling a library for PyTorch")
                os.makedirs(folder, exist_ok=True)
                done = subprocess.run([sys.executable, os.path.join(HERE, "python_player.py"), "--compile", path],
                                      capture_output=True, text=True)
                if done.returncode:
                    lines = [line for line in done.stderr.splitlines() if "rror" in line] or ["no message"]
                    self.library = Missing(f"torch_player.cpp cannot be compiled: {lines[0][:200]}")
            self.library = self.library or path
        if isinstance(self.library, Missing):
            raise self.library
        return self.library

    def require(self, key):
        """Raises Missing if the package of a contestant is not installed, or lacks a GPU."""
        package = "torch" if key in TORCH else key.removesuffix("_weir")
        if package not in ("torch", "cupy", "rmm"):
            return
        if not has_module(package):
            raise Missing("not installed")
        if not self.has_gpu:
            raise Missing("no GPU")
        if key.startswith("torch_weir") and not os.path.exists(self.torch_package("weir_torch", "__init__.py")):
            raise Missing("no adapter in build/torch: run python3 adapters/torch/build.py")

    def command(self, key, language):
        """Returns the command that starts a contestant."""
        self.require(key)
        script = [sys.executable, "-u", os.path.join(HERE, "python_player.py")]
        if key in TORCH:
            return [*script, "torch", self.torch_library()]
        if language == "python":
            return [*script, "weir" if key == "weir_moving" else key]
        program = os.path.join(self.build, "bench", "player")
        if not os.path.exists(program):
            raise Missing("no build/bench/player: run make")
        if key in ("weir", "weir_moving"):
            driver = "cuda" if self.has_gpu else "soft"
            return [program, "weir", driver, MOVING if key == "weir_moving" else ""]
        return [program, key]

    def torch_package(self, *path):
        return os.path.join(self.build, "torch", *path)

    def environment(self, key):
        return environment(key, self.has_gpu, self.torch_package(), os.path.join(self.build, "python"))

    def prepare(self, keys, language):
        """Starts the processes of several contestants at the same time."""
        for key in keys:
            name = (key, "any" if key in TORCH else language)
            if name not in self.missing and name not in self.players and name not in self.starting:
                try:
                    self.starting[name] = Player(self.command(key, language), self.environment(key))
                except Missing as error:
                    self.missing[name] = str(error)

    def start(self, key, language):
        """Returns the running process of a contestant. Raises Missing or Failed."""
        name = (key, "any" if key in TORCH else language)
        self.prepare([key], language)
        if name in self.missing:
            raise Missing(self.missing[name])
        if name in self.players:
            return self.players[name]
        player = self.starting.pop(name)
        try:
            word, _, rest = player.receive(START_SECONDS).partition(" ")
        except Failed as error:
            self.missing[name] = f"does not start: {error}"
            raise
        if word != "ready":
            player.close()
            self.missing[name] = rest
            raise Missing(rest)
        self.versions[key] = rest
        self.players[name] = player
        return player

    def drop(self, key, language):
        """Ends the process of a contestant that failed; start() then starts another one."""
        player = self.players.pop((key, "any" if key in TORCH else language), None)
        if player:
            player.close()

    def close(self):
        for player in [*self.players.values(), *self.starting.values()]:
            player.close()
        self.players, self.starting = {}, {}


MODULES = {}


def has_module(name):
    """Whether Python can import a module; found out in another process, since it may take seconds."""
    if name not in MODULES:
        code = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec('{name}'))"
        MODULES[name] = subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
    return MODULES[name]
