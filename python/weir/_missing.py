"""Why the extension module could not be imported, in words that say what to do."""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


def explanation(folder: str) -> Optional[str]:
    """What is wrong with the extension in the package's folder; None if it was built for this Python.

    This runs in Pythons that Weir does not support too, so it uses nothing that is newer than Python 3.7.
    """
    from importlib.machinery import EXTENSION_SUFFIXES

    running = "%d.%d" % sys.version_info[:2]
    built = sorted(name for name in os.listdir(folder) if name.startswith("_weir.") and name.endswith((".so", ".pyd")))
    if any(name == "_weir" + suffix for name in built for suffix in EXTENSION_SUFFIXES):
        return None
    if built:
        versions = [re.sub(r"^_weir\.cpython-(\d)(\d+)\w*-.*$", r"Python \1.\2", name) for name in built]
        problem = "the extension of weir in %s is built for %s, and this is Python %s (%s)." % (
            folder,
            " and ".join("%s (%s)" % pair if pair[0] != pair[1] else pair[1] for pair in zip(versions, built)),
            running,
            sys.executable,
        )
    else:
        problem = "the extension of weir is not built: there is no _weir*.so in %s." % folder
    if sys.version_info < (3, 10):
        return problem + " Weir needs Python 3.10 or later."
    return problem + (
        " To build it for this Python, run one of these in Weir's source folder: `%s -m pip install .`, or"
        " `scripts/build-python %s FOLDER` and add FOLDER to PYTHONPATH." % (sys.executable, sys.executable)
    )
