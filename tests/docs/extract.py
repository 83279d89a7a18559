"""extract.py OUT: writes the C of the documentation to files for tests/docs/fragments*.c to include.
extract.py --check FRAGMENTS...: every block of code is run by a test, or says why it is not.

A block that is a part of an example, or all of it but the comment at its top, needs no file: the tests run the example.
Every other block must be included by one of the FRAGMENTS. Python is run by python/tests/test_docs.py, and the shell's
commands by shell.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from blocks import ROOT, read_blocks

EXAMPLES = (ROOT / "examples", ROOT / "compute" / "examples")


def normalize(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip() for line in text.split("\n") if line.strip()]


def is_part(lines: list[str], whole: list[str]) -> bool:
    return any(whole[i : i + len(lines)] == lines for i in range(len(whole) - len(lines) + 1))


def main() -> int:
    arguments = sys.argv[1:]
    out = None if arguments[0] == "--check" else Path(arguments[0])
    if out:
        out.mkdir(parents=True, exist_ok=True)
    examples = [normalize(path.read_text()) for folder in EXAMPLES for path in sorted(folder.glob("*.c"))]
    cpp_examples = [normalize(path.read_text()) for folder in EXAMPLES for path in sorted(folder.glob("*.cpp"))]
    included = "".join(Path(path).read_text() for path in arguments[1:])
    problems, known = [], set()
    for block in read_blocks():
        if block.language == "c" and not block.not_run:
            # Blank lines of a block may stand for other lines of the example.
            pieces = [normalize(piece) for piece in re.split(r"\n\s*\n", block.code) if piece.strip()]
            if any(all(is_part(piece, example) for piece in pieces) for example in examples):
                continue
            parts = block.parts()
            for number, part in enumerate(parts, 1):
                name = f"{block.name}_{number}.inc" if len(parts) > 1 else f"{block.name}.inc"
                known.add(name)
                if out:
                    (out / name).write_text(f'#line {block.line + 1} "{block.page}"\n{part}')
                elif f'#include "{name}"' not in included:
                    problems.append(f"{block.where}: no test runs this C: include {name} in tests/docs/fragments.c, take the code"
                                    " from an example, or give a reason: <!-- not run: REASON -->")
        elif block.language == "cpp" and not block.not_run:
            pieces = [normalize(piece) for piece in re.split(r"\n\s*\n", block.code) if piece.strip()]
            if not all(any(is_part(piece, example) for example in cpp_examples) for piece in pieces):
                problems.append(f"{block.where}: no test runs this C++: take the code from an example")
        elif block.language not in ("c", "python", "sh", "console", "text") and not block.not_run:
            problems.append(f"{block.where}: no test runs {block.language}: give a reason: <!-- not run: REASON -->")
    if not out:
        problems.extend(f"tests/docs: {name} is included, but the documentation has no such block"
                        for name in re.findall(r'#include "(\w+\.inc)"', included) if name not in known)
        print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems and not out else 0


if __name__ == "__main__":
    sys.exit(main())
