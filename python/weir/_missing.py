"""Explains why the extension module could not be imported, and what to do about it."""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def explanation(folder: str) -> Optional[str]:
    """Describes what is wrong with the extension in the package's folder. Returns None if it matches this Python.

    This code also runs in Python versions that Weir does not support, so it needs nothing newer than Python 3.7.
    """
    from importlib.machinery import EXTENSION_SUFFIXES

    running = "%d.%d" % sys.version_info[:2]
    built = sorted(name for name in os.listdir(folder) if name.startswith("_weir.") and name.endswith((".so", ".pyd")))
    if any(name == "_weir" + suffix for name in built for suffix in EXTENSION_SUFFIXES):
        return None
    if built:
        versions = [re.sub(r"^_weir\.cpython-(\d)(\d+)\w*-.*$", r"Python \1.\2", name) for name in built]
        problem = "the weir extension in %s was built for %s, but this is Python %s (%s)." % (
            folder,
            " and ".join("%s (%s)" % pair if pair[0] != pair[1] else pair[1] for pair in zip(versions, built)),
            running,
            sys.executable,
        )
    else:
        problem = "the weir extension is not built: there is no _weir*.so in %s." % folder
    if sys.version_info < (3, 10):
        return problem + " Weir needs Python 3.10 or later."
    return problem + (
        " To build it for this Python, run one of these in Weir's source folder: `%s -m pip install .`, or"
        " `scripts/build-python %s FOLDER` and add FOLDER to PYTHONPATH." % (sys.executable, sys.executable)
    )
