"""What pip calls to build Weir: setuptools, from the packages that are installed if they have it.

pip builds in an environment of its own and would fetch setuptools into it, which needs a network. So nothing is
required if the Python that pip runs in, or the one that its virtual environment was made with, has setuptools and wheel:
for example by Debian's packages python3-setuptools and python3-wheel.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

REQUIRED = ["setuptools>=61", "wheel"]

# Prints the folders of setuptools and wheel. setuptools has been without wheel since 70.1.
PROBE = """
from importlib.util import find_spec
from os.path import dirname
from setuptools import __version__
version = tuple(int(part) for part in __version__.split(".")[:2])
specs = [find_spec("setuptools"), find_spec("wheel")]
if version >= (61, 0) and (specs[1] or version >= (70, 1)):
    print(*{dirname(dirname(spec.origin)): None for spec in specs if spec}, sep="\\n")
"""


def installed() -> list[str]:
    """The folders of setuptools and wheel; none if they are not installed. -I hides pip's environment from Python."""
    for python in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", sys.executable))):
        done = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout:
            return done.stdout.splitlines()
    return []


def required(_config: Any = None) -> list[str]:
    return [] if installed() else REQUIRED


get_requires_for_build_wheel = get_requires_for_build_sdist = get_requires_for_build_editable = required


def __getattr__(name: str) -> Any:
    """The other hooks are those of setuptools. What pip has fetched comes first."""
    if name.startswith("__"):
        raise AttributeError(name)
    sys.path.extend(folder for folder in installed() if folder not in sys.path)
    return getattr(import_module("setuptools.build_meta"), name)
