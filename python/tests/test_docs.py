"""The examples of the documentation run, and classes have descriptions."""

from __future__ import annotations

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


# ---- Descriptions ----


@pytest.mark.parametrize("name", [name for name, value in vars(weir._weir).items() if isinstance(value, type)])
def test_everything_explains_itself(name):
    kind = getattr(weir._weir, name)
    assert kind.__doc__, name
    for member, value in vars(kind).items():
        if not member.startswith("_") and callable(value):
            assert value.__doc__, f"{name}.{member}"
