"""Finds and runs the program `weir`, for the tools of this package.

The tools run the program in a process of its own instead of calling its code: the text and the numbers are those of the
command, a damaged or hostile file cannot harm this process, no lock of Python is held, Ctrl-C ends the work at once,
and its memory is returned at its end.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import warnings

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Union

    Path = Union[str, os.PathLike[str]]
    Recording = Union[Path, dict[str, Any]]

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_SHORT = 0, 1, 2, 3

# The program's argv[0], which begins the commands that it suggests: those of a shell, not paths into the package.
NAME = "weir"


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


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _path_argument(path: Path) -> str:
    """The path as an argument that is neither an option nor standard input. Raises OSError if there is no such file."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(
            "expected a recording: a path (str or os.PathLike), or the dict of torch.cuda.memory._snapshot();"
            f" got {type(path).__name__}"
        )
    os.stat(text)
    return text if not text.startswith("-") else os.path.join(".", text)


def _recording_arguments(recordings: Sequence[Recording]) -> tuple[list[str], bytes]:
    """The arguments for recordings, and what standard input has to be: a snapshot is passed there as a pickle."""
    arguments, given = [], b""
    for recording in recordings:
        if not isinstance(recording, dict):
            arguments.append(_path_argument(recording))
        elif given:
            raise TypeError("only one recording can be a dict: write the others to files, with _dump_snapshot()")
        else:
            arguments.append("-")
            given = pickle.dumps(recording)
    return arguments, given


def run(
    command: str,
    options: Sequence[str],
    recordings: Sequence[Recording] = (),
    *,
    text: str = "",
    json: bool = False,
    answers: Sequence[int] = (0,),
    stacklevel: int = 3,
) -> Result:
    """Runs a command, and returns what it wrote. Exit codes other than `answers` are errors. `text` is its standard
    input, unless a recording is. A remark of the command is a warning at `stacklevel`; 3 is the caller's caller."""
    arguments, given = _recording_arguments(recordings)
    environment = {**os.environ}
    if "COLUMNS" not in environment and sys.stdout is not None and sys.stdout.isatty():
        environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
    with tempfile.TemporaryFile() as beside:
        # Not one of the standard descriptors, which are others in the child: the file has one if the process closed it.
        number = fcntl.fcntl(beside.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            done = subprocess.run(
                [NAME, command, *(["--json-fd", str(number)] if json else []), *options, *arguments],
                executable=find(),
                input=given or text.encode("utf-8", "replace"),
                capture_output=True,
                env=environment,
                pass_fds=[number],
            )
        finally:
            os.close(number)
        beside.seek(0)
        data = beside.read().decode("utf-8", "surrogateescape")
    said = done.stderr.decode("utf-8", "replace").strip().replace(f"weir {command}: ", "")
    if done.returncode not in answers or (json and not data):
        if done.returncode < 0:
            said = f"weir {command} was ended by signal {-done.returncode}{': ' if said else ''}{said}"
        # Settings that cannot be parsed are a failure of the command, with a text that begins with the option.
        if done.returncode == EXIT_USAGE or said.startswith("--conf "):
            raise ValueError(said.split(" (see '")[0])
        raise ToolError(said or f"weir {command} ended with code {done.returncode}")
    if said:
        warnings.warn(said, ToolWarning, stacklevel=stacklevel)
    return Result(done.returncode, done.stdout, data)


class Result:
    def __init__(self, code: int, output: bytes, data: str) -> None:
        self.code, self.output, self.data = code, output, data
