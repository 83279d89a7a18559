"""The command `weir`, and `python -m weir`: runs the program that the package carries."""

from __future__ import annotations

import os
import signal
import sys

from weir import _program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    arguments = sys.argv[1:]
    if arguments[:1] == ["torch-build"]:
        try:
            from weir_torch import _build
        except ModuleNotFoundError:
            sys.exit(
                "weir: this package is without the adapter for PyTorch: install it with `pip install .`, or run "
                "`python3 adapters/torch/build.py` in Weir's source folder"
            )
        sys.exit(_build.main(arguments[1:]))
    try:
        path = _program.find()
    except _program.ToolError as error:
        sys.exit(f"weir: {error}")
    name = sys.argv[0] if not sys.argv[0].endswith("__main__.py") else _program.NAME
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and a program that it runs would, too
    os.execv(path, [name, *arguments])


if __name__ == "__main__":
    main()
