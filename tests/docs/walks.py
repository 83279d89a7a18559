"""walks.py: the functions that docs/guide-source.md names exist in the files that it links to, and its numbers of
files are right."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide-source.md"

# Words in backticks that are no functions: entries of the driver table, actions and settings.
OTHERS = re.compile(r"Mem[A-Z]\w+|reserved|segment_\w+|weir|[A-Z_]+|cuMem\w+")

NUMBERS = "Five Six Seven Eight Nine Ten Eleven Twelve Thirteen".split()


def main() -> int:
    problems = []
    page = PAGE.read_text()
    walks = re.split(r"^## ", page, flags=re.MULTILINE)[2:]
    # Later walks refer to files of earlier ones, and to other files of a folder by their names alone.
    linked = {(PAGE.parent / path).resolve() for path in re.findall(r"\]\((\.\./[^)#]+)\)", page)}
    linked |= {ROOT / path for walk in walks for path in re.findall(r"`((?:src|cli|include)/[\w/]+\.[ch])`", walk)}
    problems.extend(f"{path} does not exist" for path in linked if not path.exists())
    texts = [path.read_text() for path in linked if path.is_file()]
    for section in walks:
        title = section.split("\n")[0]
        files = len({path for path in re.findall(r"\]\(\.\./([^)#]+\.[ch])\)", section)})
        for number in re.findall(r"\b([A-Z]\w+) files\b", section):
            if number in NUMBERS and NUMBERS.index(number) + 5 != files:
                problems.append(f"{title}: {number} files, but {files} are linked")
        for name in dict.fromkeys(re.findall(r"`(\w+)`", section)):
            if not OTHERS.fullmatch(name) and not any(re.search(rf"\b{name}\b", text) for text in texts):
                problems.append(f"{title}: no linked file has {name}")
    if len(re.findall(r"`\w+`", page)) < 100:
        problems.append("the names are no longer found")
    print("\n".join(dict.fromkeys(problems)))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
