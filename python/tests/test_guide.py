"""The code of docs/tools/guide-oom.md, and of `weir explain --message`, records a failure that can be explained.

It is written for PyTorch. The names that it uses are those of Weir's package too, so it runs here with that in the
place of `torch`, on the software device.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from conftest import is_soft, run_python

import weir

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tools" / "guide-oom.md").read_text(), re.DOTALL)
PROGRAM = Path(weir.__file__).parents[2] / "weir"

pytestmark = pytest.mark.skipif(not is_soft, reason="needs a small device")

TORCH = """
import sys, types, weir, weir._C
torch = types.ModuleType("torch")
torch.cuda, torch._C, torch.OutOfMemoryError = weir, weir._C, weir.OutOfMemoryError
sys.modules["torch"] = torch
"""
JOB = """
def train():
    kept = []
    while True:
        kept.append(weir.buffer(200 << 20))
"""


def run_job(code: str, folder: Path) -> str:
    """Runs the code, and a job that fails, in a folder. Returns what the failure prints."""
    result = run_python(f"import os\nos.chdir({str(folder)!r})\n{TORCH}\n{code}", check=False)
    assert result.returncode == 1 and "CUDA out of memory" in result.stderr, result.stderr
    return result.stderr


def explain(*arguments: str) -> str:
    if not PROGRAM.exists():
        pytest.skip("the program is not built")
    return subprocess.run([PROGRAM, "explain", *arguments], capture_output=True, text=True, check=True).stdout


def check_dump(folder: Path) -> None:
    (dump,) = folder.glob("oom*.pickle")
    report = explain(str(dump))
    assert "out of memory, entry" in report
    assert "Not enough memory: 1000.00 MiB in use plus 200.00 MiB requested" in report
    assert re.search(r"from +train \(<string>:", report), report


def test_observer(tmp_path):
    run_job(f"{BLOCKS[0]}\n{JOB}\ntrain()", tmp_path)
    check_dump(tmp_path)


def test_exception(tmp_path):
    record = BLOCKS[0].split("\n\n\n")[0]
    run_job(f"{record}\n{JOB}\n{BLOCKS[1]}", tmp_path)
    check_dump(tmp_path)


def test_message(tmp_path):
    """The text that the job prints is explained alike, and the advice for PyTorch is code that records a failure."""
    log = tmp_path / "train.log"
    log.write_text(run_job(f"{JOB}\ntrain()", tmp_path))
    assert "Not enough memory: 1000.00 MiB allocated" in explain("--message", str(log))
    log.write_text(log.read_text().replace("by Weir", "by PyTorch"))
    report = explain("--message", str(log))
    lines = report.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() == "import os, torch")
    code = textwrap.dedent("\n".join(lines[first : first + 4]))
    run_job(f"{code}\n{JOB}\ntrain()", tmp_path)
    check_dump(tmp_path)
