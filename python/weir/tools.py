"""The commands of the program `weir` as functions: weir.explain, summary, whatif, tune, diff, leaks, lint, replay,
view, plot and export.

    import weir

    report = weir.explain("job.pickle")
    print(report)                # the text of the command; a notebook shows it without print
    report["cause"]              # the numbers
    report.to_dict()             # all of them: what --json prints

A recording is the path of a file, or the dict that torch.cuda.memory._snapshot() returns; of several recordings, one
can be a dict. The functions need no GPU and do not initialize one. Errors are ToolError with the text of the command,
ValueError for values that it does not accept, TypeError for other types, and OSError if there is no such file.
"""

from __future__ import annotations

import html
import json
import os
import pathlib
import tempfile
import webbrowser
from collections.abc import Mapping

from weir import _program, _tables
from weir._program import ToolError, ToolWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Union

    from weir._program import Path, Recording

    Conf = Union[str, Mapping[str, object]]
    Size = Union[int, str]

__all__ = [
    "Page",
    "Picture",
    "Report",
    "ToolError",
    "ToolWarning",
    "diff",
    "explain",
    "export",
    "leaks",
    "lint",
    "plot",
    "replay",
    "summary",
    "tune",
    "view",
    "whatif",
]

_MAX_SHOWN_DATA = 100_000  # characters of JSON in a notebook
_MAX_FRAMED = 32 << 20  # characters of a page in a notebook


class Report:
    """What a command found: its text, its numbers, and its exit code."""

    def __init__(self, command: str, result: _program.Result) -> None:
        self.command = command
        self.exit_code = result.code
        self._text = result.output.decode("utf-8", "replace").rstrip("\n")
        self._json = result.data
        self._data: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The numbers, in a new dict: the object that `weir COMMAND --json` prints."""
        data: dict[str, Any] = json.loads(self._json)
        return data

    def _own(self) -> dict[str, Any]:
        if self._data is None:
            self._data = self.to_dict()
        return self._data

    def __getitem__(self, key: str) -> Any:
        return self._own()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._own()

    def __iter__(self) -> Iterator[str]:
        return iter(self._own())

    def __len__(self) -> int:
        return len(self._own())

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` if the answer does not have it."""
        return self._own().get(key, default)

    def keys(self) -> list[str]:
        """The keys of the answer, as in the JSON of the command."""
        return list(self._own())

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        data = json.dumps(self._own(), indent=1, ensure_ascii=False)
        if len(data) > _MAX_SHOWN_DATA:
            data = data[:_MAX_SHOWN_DATA] + "\n... to_dict() has the rest"
        table = _tables.predictions(self._own()) if self.command in ("whatif", "tune") else ""
        first, _, rest = self._text.partition("\n")
        style = "white-space:pre; overflow-x:auto; line-height:1.35; font-size:90%; margin:0"
        return (
            f'<div class="weir-report">{table}'
            f'<pre style="{style}"><b>{html.escape(first)}</b>\n{html.escape(rest)}</pre>'
            f'<details><summary style="cursor:pointer">weir {html.escape(self.command)} --json</summary>'
            f'<pre style="{style}">{html.escape(data)}</pre></details></div>'
        )


class Page:
    """The page of `weir view`. A notebook shows it in a frame."""

    def __init__(self, text: str, name: str) -> None:
        self.html = text
        self.name = name

    def save(self, path: Path) -> pathlib.Path:
        """Writes the page to a file, and returns its path."""
        target = pathlib.Path(path)
        target.write_text(self.html, encoding="utf-8", newline="")
        return target

    def open(self) -> pathlib.Path:
        """Shows the page in a web browser, from a temporary file whose path is returned."""
        folder = tempfile.mkdtemp(prefix="weir-view-")
        path = self.save(os.path.join(folder, "view.html"))
        webbrowser.open(path.as_uri())
        return path

    def __str__(self) -> str:
        return f"{self.name}: a page of {len(self.html)} characters; open() shows it in a browser, save(path) writes it"

    def __repr__(self) -> str:
        return f"<weir.tools.Page of {self.name}: {len(self.html)} characters; open() shows it, save(path) writes it>"

    def _repr_html_(self) -> str:
        if len(self.html) > _MAX_FRAMED:
            return f"<p>{html.escape(str(self))}</p>"
        # The frame has an origin of its own: nothing in the page can reach the notebook.
        return (
            f'<iframe title="{html.escape(self.name)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%; height:720px; border:1px solid #8884" srcdoc="{html.escape(self.html)}"></iframe>'
        )


class Picture:
    """The picture of `weir plot`. A notebook shows it."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: Path) -> pathlib.Path:
        """Writes the picture to a file, and returns its path."""
        target = pathlib.Path(path)
        target.write_text(self.svg, encoding="utf-8", newline="")
        return target

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<weir.tools.Picture: SVG of {len(self.svg)} characters; save(path) writes it>"

    def _repr_svg_(self) -> str:
        return self.svg


# ---- Arguments ----


_FLAGS = frozenset(("check", "dark", "fit", "force", "message"))


def _options(**given: object) -> list[str]:
    """The options of a command: those that are None, and flags that are False, are left out."""
    found = []
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool) and name not in _FLAGS:
            raise TypeError(f"{name} cannot be of type bool")
        if value is None or value is False:
            continue
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(text, (bytes, bytearray, dict, list, set, tuple)):
            raise TypeError(f"{name} cannot be of type {type(value).__name__}")
        found.append(option if value is True else f"{option}={text}")
    return found


def _conf(conf: Conf) -> str:
    """Settings as a string: "key:value,key:value"."""
    if isinstance(conf, str):
        return conf
    if not isinstance(conf, Mapping):
        raise TypeError(f"settings are a str or a dict, got {type(conf).__name__}")
    return ",".join(f"{key}:{value}" for key, value in conf.items())


def _report(
    command: str, options: list[str], recordings: Sequence[Recording] = (), answers: Sequence[int] = (0,)
) -> Report:
    return Report(command, _program.run(command, options, recordings, json=True, answers=answers, stacklevel=4))


# ---- The tools ----


def explain(
    path: Recording | None = None,
    *,
    at: str | int | None = None,
    device: int | None = None,
    memory: Size | None = None,
    fraction: float | None = None,
    message: bool | str = False,
) -> Report:
    """Explains why a recorded job ran out of memory, and what would have helped: `weir explain`.

    `at` is the moment: "oom", "peak", "end" or the number of an entry. `memory` is the device's memory, in bytes or as
    "80GiB", and `fraction` the part of it that the program allowed itself.

    `message` is the text of the error, such as str(error), or a log that contains it, instead of a recording; with
    message=True, it is read from the file `path`. Its figures are rounded, so the answer has ranges."""
    options = _options(at=at, device=device, memory=memory, fraction=fraction, message=message is not False)
    if isinstance(message, bool):
        if path is None:
            raise TypeError("explain needs a recording or a message")
        return _report("explain", options, [path])
    if not isinstance(message, str):
        raise TypeError(f"message is the text of an error (str) or a bool, got {type(message).__name__}")
    if path is not None:
        raise TypeError("explain takes a path or a message, not both; message=True reads the message from the path")
    return Report("explain", _program.run("explain", [*options, "-"], text=message, json=True))


def summary(path: Recording) -> Report:
    """Shows what a recorded memory history contains: `weir summary`."""
    return _report("summary", [], [path])


def whatif(
    path: Recording,
    *confs: Conf,
    memory: Size | None = None,
    fraction: float | None = None,
    device: int | None = None,
    fit: bool = False,
    costs: Path | None = None,
    force: bool = False,
    threads: int | None = None,
    write: Path | None = None,
) -> Report:
    """Shows what a recorded job would have done under other settings, one row for each: `weir whatif`.

    Settings are strings such as "expandable_segments:True", "" for the defaults, or dicts such as
    {"max_split_size_mb": 200}. `write` names a file for the predicted history of the only settings."""
    if not confs:
        raise TypeError('whatif needs settings, such as "expandable_segments:True"')
    options = [f"--conf={_conf(conf)}" for conf in confs]
    options += _options(memory=memory, fraction=fraction, device=device, fit=fit, costs=costs, force=force)
    options += _options(threads=threads, write=write)
    return _report("whatif", options, [path])


def tune(
    *paths: Recording,
    memory: Size | None = None,
    fraction: float | None = None,
    device: int | None = None,
    fit: bool = False,
    costs: Path | None = None,
    force: bool = False,
    threads: int | None = None,
    save: Path | None = None,
    pytorch: str | None = None,
) -> Report:
    """Finds the settings under which recorded jobs need the least memory: `weir tune`.

    Its exit_code is 3 if memory runs out under every setting."""
    if not paths:
        raise TypeError("tune needs at least one recording")
    options = _options(memory=memory, fraction=fraction, device=device, fit=fit, costs=costs, force=force)
    options += _options(threads=threads, save=save, pytorch=pytorch)
    return _report("tune", options, paths, (_program.EXIT_OK, _program.EXIT_SHORT))


def diff(
    before: Recording,
    after: Recording,
    *,
    device: int | None = None,
    by: str | Sequence[str] | None = None,
    fail_above: str | None = None,
    rows: int | None = None,
) -> Report:
    """Compares two recorded memory histories: `weir diff`.

    Its exit_code is 3 if a total grew by more than `fail_above`, such as "2%". `by` and `rows` limit the text."""
    if by is not None and not isinstance(by, str):
        try:
            by = ",".join(by)
        except TypeError:
            raise TypeError(f"by is a str or a sequence of str, such as 'stack,size', got {by!r}") from None
    options = _options(device=device, by=by, fail_above=fail_above, list=rows)
    return _report("diff", options, [before, after], (_program.EXIT_OK, _program.EXIT_SHORT))


def leaks(*paths: Recording, device: int | None = None, memory: Size | None = None, rows: int | None = None) -> Report:
    """Finds memory that grows from step to step, in the recordings of one job: `weir leaks`.

    Its exit_code is 3 if there is a leak. `rows` limits the text."""
    if not paths:
        raise TypeError("leaks needs at least one recording")
    options = _options(device=device, memory=memory, list=rows)
    return _report("leaks", options, paths, (_program.EXIT_OK, _program.EXIT_SHORT))


def lint(conf: Conf) -> Report:
    """Checks a configuration string, and shows what it does: `weir lint`.

    Its exit_code is 1 if a key or value is wrong, hurts or has no effect."""
    return _report("lint", ["--", _conf(conf)], answers=(_program.EXIT_OK, _program.EXIT_FAILED))


def replay(
    path: Recording,
    *,
    check: bool = False,
    conf: Conf | None = None,
    memory: Size | None = None,
    fraction: float | None = None,
    device: int | None = None,
    costs: Path | None = None,
    force: bool = False,
) -> Report:
    """Replays a recorded memory history through the allocator: `weir replay`.

    With `check` every decision is compared; its exit_code is 1 if something differs, and otherwise 3 if requests run
    out of memory under `conf` or `memory`."""
    text = None if conf is None else _conf(conf)
    options = _options(check=check, conf=text, memory=memory, fraction=fraction, device=device, costs=costs, force=force)
    answers = (_program.EXIT_OK, _program.EXIT_FAILED, _program.EXIT_SHORT)
    return _report("replay", options, [path], answers)


def view(path: Recording, other: Recording | None = None, *, device: int | None = None) -> Page:
    """Makes a web page that shows a recorded memory history, or compares two: `weir view`."""
    recordings = [path] if other is None else [path, other]
    result = _program.run("view", [*_options(device=device), "--output=-"], recordings)
    names = ["snapshot" if isinstance(given, dict) else os.path.basename(given) for given in recordings]
    # A name that is not UTF-8 has surrogates, which cannot be printed.
    name = " and ".join(os.fsencode(name).decode("utf-8", "backslashreplace") for name in names)
    return Page(result.output.decode("utf-8"), name)


def plot(
    path: Recording,
    kind: str = "memory",
    *,
    by: str | None = None,
    at: str | int | None = None,
    axis: str | None = None,
    device: int | None = None,
    title: str | None = None,
    width: int | None = None,
    height: int | None = None,
    dark: bool = False,
) -> Picture:
    """Draws a recorded memory history: `weir plot`. `kind` is memory, segments, trace or fragmentation."""
    options = _options(kind=kind, by=by, at=at, axis=axis, device=device, title=title, width=width, height=height)
    options += _options(dark=dark, output="-")
    return Picture(_program.run("plot", options, [path]).output.decode("utf-8"))


def export(
    path: Recording,
    to: str,
    output: Path | None = None,
    *,
    at: str | int | None = None,
    device: int | None = None,
    table: str | None = None,
) -> str:
    """Converts a recorded memory history: `weir export`. `to` is json, sqlite, csv, perfetto, collapsed or speedscope.

    Writes the file `output`, and returns its path; without it, returns the text."""
    options = _options(to=to, output=output, at=at, device=device, table=table)
    result = _program.run("export", options, [path])
    return os.fspath(output) if output is not None else result.output.decode("utf-8", "surrogateescape")
