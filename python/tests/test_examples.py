"""The examples in Python run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weir

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_examples(name):
    environment = {**os.environ, "PYTHONPATH": str(Path(weir.__file__).parents[1])}
    command = [sys.executable, EXAMPLES / name]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
