"""The examples of the documentation run, and the stubs match the module."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from conftest import run_python

import weir

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "docs"))
from blocks import read_blocks  # noqa: E402

BLOCKS = [block for block in read_blocks() if block.language == "python"]
EXAMPLES = [pytest.param(block, id=f"{Path(block.page).stem}-{block.number}") for block in BLOCKS if not block.not_run]


@pytest.mark.parametrize("block", EXAMPLES)
def test_examples(block, tmp_path):
    # In a file, since a spawned process imports the program.
    program = tmp_path / "example.py"
    program.write_text(block.code)
    code = f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('example.py', run_name='__main__')"
    output = run_python(code).stdout
    assert output or "print(" not in block.code


def test_there_are_examples():
    assert len(EXAMPLES) >= 20


# ---- Stubs ----


def members(body):
    """Returns the names in a module or class of the stubs, and the bodies of its classes."""
    names, classes = set(), {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            classes[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names, classes


STUBS, STUB_CLASSES = members(ast.parse((ROOT / "python" / "weir" / "_weir.pyi").read_text()).body)


def test_stubs_name_all_that_is_there():
    private = {name for name in STUB_CLASSES if "Protocol" in ast.unparse(STUB_CLASSES[name])}
    there = {name for name in dir(weir._weir) if not name.startswith("__") or name == "__version__"}
    assert STUBS - private == there


@pytest.mark.parametrize("name", [name for name in STUB_CLASSES if hasattr(weir._weir, name)])
def test_stubs_of_classes(name):
    there = getattr(weir._weir, name)
    stubs, _ = members(STUB_CLASSES[name].body)
    public = {member for member in vars(there) if not member.startswith("__")}
    if not issubclass(there, BaseException):
        assert {member for member in stubs if not member.startswith("__")} == public
        for member in stubs - {"__buffer__"}:  # classes have this since Python 3.12
            assert hasattr(there, member), member


def test_everything_explains_itself():
    for name in STUB_CLASSES:
        kind = getattr(weir._weir, name, None)
        if kind is None:
            continue
        assert kind.__doc__, name
        for member, value in vars(kind).items():
            if not member.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{member}"
