"""mypy --strict accepts the package and programs that use it, and the stubs match the extension."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import is_long

import weir

ROOT = Path(__file__).parents[2]
PACKAGE = Path(weir.__path__[0]).resolve()

pytestmark = [
    pytest.mark.skipif(shutil.which("mypy") is None, reason="there is no mypy"),
    pytest.mark.skipif(not (PACKAGE / "_weir.pyi").exists(), reason="a build with a sanitizer has no stubs"),
    pytest.mark.skipif(not is_long, reason="takes 20 s: WEIR_TEST_LONG=1 selects it"),
]


def mypy(*arguments, folder):
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(folder / "cache")]
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(["mypy", *options, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_package(tmp_path):
    assert mypy("-p", "weir", folder=tmp_path).startswith("Success")


def test_program(tmp_path):
    """A program sees types, not Any."""
    (tmp_path / "program.py").write_text("""
import weir

report = weir.explain("job.pickle", at="peak", memory="80GiB")
reveal_type(report)
reveal_type(weir.view("job.pickle").html)
reveal_type(weir.memory_allocated())
reveal_type(weir.tools.ToolError("").args)
weir.tune()
weir.explain(3)
weir.explian("job.pickle")
weir.diff, weir.plot, weir.tools.lint
""")
    said = mypy("program.py", folder=tmp_path)
    for expected in (
        'Revealed type is "weir.tools.Report"',
        'Revealed type is "builtins.str"',
        'Revealed type is "builtins.int"',
        'Argument 1 to "explain" has incompatible type "int"',
        'Module has no attribute "explian"',
    ):
        assert expected in said
    assert "program.py:12" not in said  # names that are made when they are first used


def test_lazy_names(tmp_path):
    """Type checkers know every name that the package makes when it is first used, and no other."""
    names = [*(name for name in weir._LATER if name[0] != "_"), *weir._MODULES]
    (tmp_path / "program.py").write_text("import weir\n" + "".join(f"weir.{name}\n" for name in names))
    assert mypy("program.py", folder=tmp_path).startswith("Success")


def test_stubs(tmp_path):
    compute = ["weir.compute._compute"] * ("compute" in dir(weir))
    run = [sys.executable, "-m", "mypy.stubtest", "weir._weir", *compute, "--concise", "--allowlist", str(ROOT / "python/stubs.txt")]
    if subprocess.run([sys.executable, "-c", "import mypy"], capture_output=True).returncode:
        pytest.skip("mypy is for another Python")
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent), "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
