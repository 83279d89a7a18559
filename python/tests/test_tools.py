"""The tools of the program as calls: their texts and numbers are those of the commands, and errors are exceptions."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import is_long, run_python

import weir
from weir import _program, _tables, tools

TRACES = Path(__file__).parents[2] / "tests" / "data" / "traces"
MESSAGE = str(TRACES.parent / "corpus" / "message" / "native")
OOM, OTHER = str(TRACES / "llama_oom.pickle.zst"), str(TRACES / "gpt2_fixed.pickle.zst")

try:
    PROGRAM, missing = _program.find(), ""
except tools.ToolError as error:  # scripts/build-python builds none
    PROGRAM, missing = "", str(error)
pytestmark = pytest.mark.skipif(PROGRAM == "", reason=missing)


def command(*arguments):
    done = subprocess.run(["weir", *arguments], executable=PROGRAM, capture_output=True)
    assert done.returncode != 2, done.stderr
    return done.stdout.decode()


CASES = {
    "explain": (lambda: weir.explain(OOM, at="peak"), ["--at", "peak", OOM]),
    "explain a message": (lambda: weir.explain(MESSAGE, message=True), ["--message", MESSAGE]),
    "summary": (lambda: weir.summary(OOM), [OOM]),
    "whatif": (
        lambda: weir.whatif(OOM, {"expandable_segments": True, "max_split_size_mb": 200}, ""),
        ["--conf", "expandable_segments:True,max_split_size_mb:200", "--conf", "", OOM],
    ),
    "tune": (lambda: weir.tune(OOM, memory="13GiB"), ["--memory", "13GiB", OOM]),
    "diff": (lambda: weir.diff(OOM, OTHER, by=["size", "stream"]), ["--by", "size,stream", OOM, OTHER]),
    "leaks": (lambda: weir.leaks(OOM, OTHER), [OOM, OTHER]),
    "lint": (lambda: weir.lint("max_split_size:1"), ["max_split_size:1"]),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_the_command(name):
    call, arguments = CASES[name]
    if name == "tune" and not is_long:
        pytest.skip("takes seconds: WEIR_TEST_LONG=1 selects it")
    name = name.split()[0]
    report = call()
    assert f"{report}\n" == command(name, *arguments)
    assert report.to_dict() == json.loads(command(name, *arguments, "--json"))
    assert report.keys() == list(report.to_dict()) == list(report) and len(report) == len(report.keys())
    assert report[report.keys()[0]] == report.to_dict()[report.keys()[0]] and "no such key" not in report
    assert repr(report) == str(report)


def test_commands_to_paste():
    """Texts name the command, not the program inside the package."""
    assert "  next        to see the effect, run:\n              weir replay --conf" in str(weir.explain(OOM))
    assert weir.__path__[0] not in str(weir.summary(OOM)) and "next: weir explain" in str(weir.summary(OOM))


def test_get():
    report = weir.lint("expandable_segments:True")
    key = report.keys()[0]
    assert report.get(key) == report[key] and report.get("no such key") is None and report.get("no such key", 3) == 3


def test_a_message():
    """A text is not taken for a recording, and options of recordings do not apply to it."""
    with pytest.raises(tools.ToolError, match="add --message .in Python, message=True.$"):
        weir.explain(MESSAGE)
    assert weir.explain(MESSAGE, message=True)["messages"][0]["cause"] == "fragmented"
    with pytest.raises(ValueError, match="--message reads a text, to which --at does not apply"):
        weir.explain(MESSAGE, message=True, at="peak")


def test_the_text_of_a_message():
    """The text itself instead of a file: str(error) of an exception."""
    text = Path(MESSAGE).read_text()
    report, of_file = weir.explain(message=text), weir.explain(MESSAGE, message=True)
    assert report.to_dict() == {**of_file.to_dict(), "file": "-"}
    assert str(report).split() == str(of_file).replace(MESSAGE, "standard input", 1).split()
    try:
        weir.buffer(1 << 60)
    except weir.OutOfMemoryError as error:
        assert weir.explain(message=str(error))["messages"][0]["cause"] == "too large"
    assert "messages" in weir.explain(message=text + "\udc80\ud800")
    for wrong in ("", "all is well"):
        with pytest.raises(tools.ToolError, match="no out-of-memory error"):
            weir.explain(message=wrong)
    with pytest.raises(TypeError, match="^explain takes a path or a message, not both"):
        weir.explain(OOM, message=text)
    with pytest.raises(TypeError, match="^explain needs a recording or a message"):
        weir.explain()
    with pytest.raises(TypeError, match=r"^message is the text of an error \(str\) or a bool, got ValueError$"):
        weir.explain(message=ValueError(text))


def test_replay():
    report = weir.replay(OOM, check=True)
    assert (report.exit_code, report["differences"], report["checked"]) == (0, 0, True)
    assert weir.replay(OOM, memory="11GiB").exit_code == 3


def test_dicts_are_copies():
    report = weir.lint("expandable_segments:True")
    report.to_dict().clear()
    assert report.to_dict()


def test_exit_codes():
    assert weir.lint("expandable_segments:True").exit_code == 0 and weir.lint("foo:1").exit_code == 1
    assert weir.diff(OOM, OTHER, fail_above="1%").exit_code == 3 and weir.diff(OOM, OOM, fail_above="1%").exit_code == 0


def test_page_and_picture(tmp_path):
    try:
        page = weir.view(OOM)
    except tools.ToolError as error:
        assert "this build of Weir has no page" in str(error)
    else:
        assert page.html == command("view", "--output=-", OOM) and "</html>" in page.html
        assert page.save(tmp_path / "page.html").read_text() == page.html
        assert "llama_oom" in str(page)
        assert repr(page).startswith("<weir.tools.Page of llama_oom.pickle.zst: ") and "html" not in repr(page)
    picture = weir.plot(OOM, "segments", width=800)
    assert picture._repr_svg_() == command("plot", "--kind", "segments", "--width", "800", OOM)
    assert picture.save(tmp_path / "picture.svg").read_text() == str(picture)


def test_export(tmp_path):
    assert weir.export(OOM, "csv", table="segments") == command("export", "--to", "csv", "--table", "segments", OOM)
    path = tmp_path / "events.csv"
    assert weir.export(OOM, "csv", path) == str(path) and path.stat().st_size > 1000


# ---- Notebooks ----


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def test_html():
    report, parser = weir.explain(OOM), Tags()
    parser.feed(report._repr_html_())
    assert [tag for tag, _ in parser.tags] == ["div", "pre", "b", "details", "summary", "pre"]
    assert parser.text.startswith(str(report)) and '"cause": "fragmented"' in parser.text


class Table(HTMLParser):
    """The cells of the only table, by row."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.is_cell = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.is_cell = tag in ("th", "td")
        if tag == "tr":
            self.rows.append([])
        elif self.is_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.is_cell = False

    def handle_data(self, data):
        if self.is_cell:
            self.rows[-1][-1] += data


WHATIF = "expandable_segments:True", "", "max_split_size_mb:200"
TABLES = {
    "whatif": (lambda: weir.whatif(OTHER, *WHATIF), "recorded", 4),
    "whatif of what is not reproduced": (lambda: weir.whatif(OOM, *WHATIF, memory="13GiB"), "recorded, replayed", 5),
    "tune": (lambda: weir.tune(OTHER), "best, recorded", 6),
}


@pytest.mark.parametrize("name", TABLES)
def test_html_of_tables(name):
    """Each row has the figures of a line of the text, and all settings have a row."""
    call, mark, count = TABLES[name]
    if name == "tune" and not is_long:
        pytest.skip("takes seconds: WEIR_TEST_LONG=1 selects it")
    report = call()
    shown = report._repr_html_()
    assert shown.index("<table>") < shown.index("<pre") and shown.count("<table>") == 1
    titles, *rows = Table(shown).rows
    assert titles[:2] == ["", "reserved"] and "cost" in titles and titles[-1] == "settings"
    lines = str(report).splitlines()
    for row in rows:
        assert any(all(cell in line for cell in row[1:]) for line in lines), row
    assert mark in [row[0] for row in rows] and len(rows) == count, rows
    predicted = [row["conf"] for row in report.get("predictions", report.get("front")) if not row["recorded"]]
    assert predicted and {conf or "(defaults)" for conf in predicted} <= {row[-1] for row in rows}


def test_html_of_ranges():
    row = {"conf": "<b>", "recorded": False, "is_recording": False, "peak_reserved": 3 << 30, "cost_ns": 1500}
    busy = {"peak_reserved": 2 << 30, "cost_ns": 1500}
    shown = _tables.predictions({"predictions": [{**row, "streams_busy": busy}]})
    assert Table(shown).rows == [["", "reserved", "cost", "settings"], ["", "2.00 GiB to 3.00 GiB", "1.50 us", "<b>"]]
    assert "<b>" not in shown


@pytest.mark.parametrize(
    "number, text",
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), ((1 << 30) - 1, "1.00 GiB"), (5 << 50, "5120.00 TiB")],
)
def test_bytes_in_tables(number, text):
    assert _tables._bytes(number) == text


def test_html_of_hostile_names(tmp_path):
    path = tmp_path / "<script>alert(1)<" / '"><img src=x onerror=alert(1)>.pickle'.replace("/", "")
    path.parent.mkdir()
    path.symlink_to(Path(OTHER).resolve())
    for shown in (weir.summary(path), tools.Page("<script>alert(1)</script>\"'>", path.name)):
        parser = Tags()
        parser.feed(shown._repr_html_())
        assert not {"script", "img"} & {tag for tag, _ in parser.tags}
    ((frame, attributes),) = parser.tags
    assert frame == "iframe" and attributes["srcdoc"] == "<script>alert(1)</script>\"'>"
    assert "allow-same-origin" not in attributes["sandbox"]


# ---- Errors ----


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pickle"):
        weir.explain(tmp_path / "nowhere.pickle")
    bad = tmp_path / "bad.pickle"
    bad.write_bytes(b"\x80\x04no pickle")
    with pytest.raises(tools.ToolError, match=r"^.*bad\.pickle"):
        weir.explain(bad)
    with pytest.raises(tools.ToolError):
        weir.summary(tmp_path)
    with pytest.raises(ValueError, match="^--at takes oom, peak, end or the number of an entry"):
        weir.explain(OOM, at="never")
    for call in (lambda: weir.whatif(OOM, "", "foo:1"), lambda: weir.replay(OOM, conf={"foo": 1})):
        with pytest.raises(ValueError, match="^--conf foo:1: settings: column 1: there is no key 'foo'"):
            call()
    with pytest.raises(TypeError, match="whatif needs settings"):
        weir.whatif(OOM)
    for call in (weir.leaks, weir.tune):
        with pytest.raises(TypeError, match="at least one recording"):
            call()
    with pytest.raises(ValueError, match="null"):
        weir.explain("a\0b")
    assert issubclass(tools.ToolError, RuntimeError)


class BytesPath:
    def __fspath__(self):
        return OTHER.encode()


@pytest.mark.parametrize("wrong", [OTHER.encode(), BytesPath(), [], [OTHER], None, 3])
def test_arguments_of_wrong_types(wrong):
    with pytest.raises(TypeError, match=f"^expected a recording: .* got {type(wrong).__name__}$"):
        weir.summary(wrong)
    with pytest.raises(TypeError, match=f"^expected a recording: .* got {type(wrong).__name__}$"):
        weir.diff(OTHER, wrong)
    if wrong is not None and wrong != 3:
        with pytest.raises(TypeError, match=f"^output cannot be of type {type(wrong).__name__}$"):
            weir.export(OTHER, "csv", wrong)
    with pytest.raises(TypeError, match=f"^settings are a str or a dict, got {type(wrong).__name__}$"):
        weir.whatif(OTHER, wrong)


def test_options_of_wrong_types():
    for call in (weir.explain, weir.tune, weir.leaks, weir.replay, weir.view, weir.plot):
        for wrong in (True, False):
            with pytest.raises(TypeError, match="^device cannot be of type bool$"):
                call(OTHER, device=wrong)
    for wrong in (5, [5], 2.5):
        with pytest.raises(TypeError, match="^by is a str or a sequence of str, such as 'stack,size', got "):
            weir.diff(OTHER, OTHER, by=wrong)
    assert weir.replay(OTHER, check=False, force=False).exit_code == 0


def test_outputs_do_not_replace_inputs(tmp_path):
    path = tmp_path / "job.pickle"
    path.write_bytes(Path(OTHER).read_bytes())
    for call in (
        lambda: weir.export(path, "json", path),
        lambda: weir.whatif(path, "", write=path),
        lambda: weir.tune(path, save=path),
    ):
        with pytest.raises(tools.ToolError, match=r"job\.pickle: the output would overwrite the input$"):
            call()
    assert path.read_bytes() == Path(OTHER).read_bytes()


def test_a_name_that_is_not_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/job\xff.pickle")
    os.symlink(Path(OTHER).resolve(), path)
    page = weir.view(path)
    assert page.name == "job\\xff.pickle"
    for text in (str(page), repr(page), page._repr_html_()):
        text.encode("utf-8")


def test_without_standard_input():
    run_python(f"""
        import os, weir
        os.close(0)
        assert weir.summary({OTHER!r})["file"] == {OTHER!r}
        os.close(1), os.close(2)
        if weir.summary({OTHER!r})["file"] != {OTHER!r}:
            os._exit(1)
        os._exit(0)
        """)


# ---- Snapshots that are not in a file ----


def test_snapshot(tmp_path):
    weir.memory._record_memory_history()
    kept = weir.buffer(3 << 20)
    snapshot, path = weir.memory._snapshot(), str(tmp_path / "snapshot.pickle")
    weir.memory._record_memory_history(enabled=None)
    with open(path, "wb") as file:
        pickle.dump(snapshot, file)
    del kept
    report = weir.explain(snapshot)
    assert report["file"] == "-" and {**report.to_dict(), "file": path} == weir.explain(path).to_dict()
    of_file = str(weir.explain(path)).replace(path, "standard input", 1)
    assert str(report).split() == of_file.replace(path, "-").split()
    assert weir.plot(snapshot).svg == weir.plot(path).svg.replace("snapshot.pickle · ", "")
    assert weir.export(snapshot, "csv", table="segments") == weir.export(path, "csv", table="segments")
    assert "snapshot.pickle" in str(weir.diff(path, snapshot)) and "snapshot.pickle" in str(weir.diff(snapshot, path))
    assert weir.leaks(snapshot).exit_code == 0 and len(weir.whatif(snapshot, "")["predictions"]) > 1
    with pytest.raises(TypeError, match="^only one recording can be a dict: write the others to files"):
        weir.diff(snapshot, snapshot)
    with pytest.raises(tools.ToolError, match="the snapshot: there is no key 'segments'$"):
        weir.explain({})


def test_a_file_that_looks_like_an_option(tmp_path, monkeypatch):
    (tmp_path / "--help").symlink_to(Path(OTHER).resolve())
    (tmp_path / "-").symlink_to(Path(OTHER).resolve())
    monkeypatch.chdir(tmp_path)
    assert weir.summary("--help")["file"] == "./--help" and weir.summary("-")["file"] == "./-"


def test_remarks_are_warnings(monkeypatch, tmp_path):
    script = tmp_path / "weir"
    script.write_text('#!/bin/sh\necho "weir lint: a remark" >&2\nexec ' + PROGRAM + ' "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(_program, "_found", str(script))
    with pytest.warns(tools.ToolWarning, match="^a remark$") as caught:
        weir.lint("expandable_segments:True")
    assert caught[0].filename == __file__
    script.write_text('#!/bin/sh\necho "weir $1: a remark" >&2\nexec ' + PROGRAM + ' "$@"\n')
    for call in (
        partial(weir.plot, OTHER),
        partial(weir.view, OTHER),
        partial(weir.export, OTHER, "csv"),
        partial(weir.explain, message=Path(MESSAGE).read_text()),
    ):
        with pytest.warns(tools.ToolWarning, match="^a remark$") as caught:
            call()
        assert caught[0].filename == __file__


def test_a_program_that_crashes(monkeypatch, tmp_path):
    script = tmp_path / "weir"
    script.write_text("#!/bin/sh\nkill -KILL $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(_program, "_found", str(script))
    with pytest.raises(tools.ToolError, match="^weir summary was ended by signal 9$"):
        weir.summary(OTHER)


def test_without_a_program(monkeypatch, tmp_path):
    monkeypatch.setattr(_program, "_found", None)
    monkeypatch.setattr(_program, "__file__", str(tmp_path / "_program.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tools.ToolError, match="there is no program: .* PATH has no weir"):
        weir.lint("")
    (tmp_path / "weir").symlink_to(PROGRAM)
    assert weir.lint("").exit_code == 0
    monkeypatch.setattr(_program, "_found", None)
    (tmp_path / "weir").unlink()
    (tmp_path / "weir").symlink_to("/bin/true")
    with pytest.raises(tools.ToolError, match="is not Weir, but the package is weir"):
        weir.lint("")


# ---- Threads and signals ----


def slow_program(folder):
    script = folder / "weir"
    script.write_text("#!/bin/sh\nexec sleep 30\n")
    script.chmod(0o755)
    return str(script)


def test_other_threads_run(monkeypatch, tmp_path):
    """The lock of Python is free while a tool works, and several can work at a time."""
    monkeypatch.setattr(_program, "_found", PROGRAM)
    results = []
    threads = [threading.Thread(target=lambda: results.append(str(weir.summary(OOM)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1 and len(results) == 4


def test_interrupt(tmp_path):
    code = f"""
        import weir
        from weir import _program
        _program._found = {slow_program(tmp_path)!r}
        print("ready", flush=True)
        try:
            weir.summary({OTHER!r})
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    child = subprocess.Popen(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(child.pid, signal.SIGINT)  # to Python alone, as a notebook does
    assert child.communicate(timeout=20)[0] == "interrupted\n"
    assert time.monotonic() - began < 20


# ---- The program ----


def test_module(tmp_path):
    def python(*arguments, **environment):
        line = [sys.executable, "-m", "weir", *arguments]
        return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **environment})

    assert python("--version").stdout == f"weir {weir.__version__}\n"
    assert python("explain", OOM).stdout.splitlines()[0] == command("explain", OOM).splitlines()[0]
    assert python().stderr.startswith("Usage: weir COMMAND [OPTION...]\n\nInspect:\n  summary  show what ")
    assert python("explain", "/nowhere").returncode == 1 and python("frobnicate").returncode == 2
    done = python("torch-build", PYTHONPATH=f"{weir.__path__[0]}/..:{Path(__file__).parents[2]}/adapters/torch")
    assert done.returncode == 1 and "PyTorch is not installed" in done.stderr or "no sources of the adapter" in done.stderr


def test_a_pipe_that_is_closed():
    """Ends the command without a message, as if a shell had started it."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "weir", "explain", OOM]
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == -signal.SIGPIPE and done.stderr == b""


def test_import_is_lazy():
    run_python("""
        import sys, weir
        assert "weir.tools" not in sys.modules and "subprocess" not in sys.modules
        assert weir.tools.explain is weir.explain
        assert not weir.is_initialized()
        """)
