"""Finds and runs the program `weir`, for the tools of this package.

The tools run the program in a process of its own instead of calling its code: the text and the numbers are those of the
command, a damaged or hostile file cannot harm this process, no lock of Python is held, Ctrl-C ends the work at once,
and its memory is returned at its end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import warnings

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_SHORT = 0, 1, 2, 3


class ToolError(RuntimeError):
    """A tool could not do its work. The text is that of the command."""


class ToolWarning(UserWarning):
    """A tool did its work, with a remark on the result."""


_found: str | None = None


def find() -> str:
    """Returns the path of the program: that of the package, else the one in PATH if it has the same version."""
    global _found
    if _found is not None:
        return _found
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "weir")
    if os.access(own, os.X_OK):
        _found = own
        return own
    # Beside a package without a program, as in a distribution that splits them. A script in Python is the command of
    # another installation of this package.
    other = shutil.which("weir")
    if other is None or not _is_elf(other):
        raise ToolError(
            f"there is no program: {own} does not exist, and PATH has no weir. `pip install .` in Weir's source folder"
            " installs it with the package"
        )
    version = subprocess.run([other, "--version"], capture_output=True, text=True).stdout.strip()
    if version != f"weir {_weir.__version__}":
        what = version if version.startswith("weir ") else "not Weir"
        raise ToolError(f"{other} is {what}, but the package is weir {_weir.__version__}")
    _found = other
    return other


def name() -> str:
    """The name under which the program shows commands to paste: one that the shell finds, else its path."""
    return shutil.which("weir") or find()


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def path_argument(path: str | os.PathLike[str]) -> str:
    """The path as an argument that is neither an option nor standard input. Raises OSError if there is no such file."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"expected a path of type str or os.PathLike, got {type(path).__name__}")
    os.stat(text)
    return text if not text.startswith("-") else os.path.join(".", text)


def run(command: str, arguments: Sequence[str], *, json: bool = False, answers: Sequence[int] = (0,)) -> Result:
    """Runs a command, and returns what it wrote. Exit codes other than `answers` are errors."""
    environment = {**os.environ}
    if "COLUMNS" not in environment and sys.stdout is not None and sys.stdout.isatty():
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    with tempfile.TemporaryFile() as beside:
        number = beside.fileno()
        done = subprocess.run(
            [name(), command, *(["--json-fd", str(number)] if json else []), *arguments],
            executable=find(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            pass_fds=[number],
        )
        beside.seek(0)
        data = beside.read().decode("utf-8", "surrogateescape")
    said = done.stderr.decode("utf-8", "replace").strip().replace(f"weir {command}: ", "")
    if done.returncode not in answers or (json and not data):
        if done.returncode < 0:
            said = f"weir {command} was ended by signal {-done.returncode}{': ' if said else ''}{said}"
        if done.returncode == EXIT_USAGE:
            raise ValueError(said.split(" (see '")[0])
        raise ToolError(said or f"weir {command} ended with code {done.returncode}")
    if said:
        warnings.warn(said, ToolWarning, stacklevel=4)
    return Result(done.returncode, done.stdout, data)


class Result:
    def __init__(self, code: int, output: bytes, data: str) -> None:
        self.code, self.output, self.data = code, output, data
