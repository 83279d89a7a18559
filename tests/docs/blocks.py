"""The code blocks of the documentation.

A block that no test runs has a reason on the line above it: <!-- not run: REASON -->. C that cannot be run by itself is
compiled, at least: <!-- compiled, not run: REASON -->. Python that uses PyTorch or CuPy needs no reason: the tests of the
adapters, which run where these are installed, do the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Block:
    page: str  # "docs/c/allocator.md"
    number: int  # of the blocks in this language on the page, from 1
    line: int
    language: str  # "c", "python", "sh", "console" for commands with their output, or "text"
    code: str
    not_run: str  # the reason, or ""
    compiled: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def name(self) -> str:
        """The name of its file in the build folder."""
        return f"{Path(self.page).stem.lower().replace('-', '_')}_{self.number}"

    def parts(self) -> list[str]:
        """Returns C without its lines "...", which stand for other code: what is between them can be in different
        places of a program."""
        parts = re.split(r"^[ \t]*\.\.\.(?:[ \t]*/\*.*?\*/)?[ \t]*\n", self.code, flags=re.MULTILINE)
        return [part for part in parts if part.strip()]


def read_blocks() -> list[Block]:
    blocks = []
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "compute" / "docs").rglob("*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        lines = path.read_text().split("\n")
        numbers: dict[str, int] = {}
        at = 0
        while at < len(lines):
            fence = re.match(r"^( *)```(\w*)$", lines[at])
            if not fence:
                at += 1
                continue
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            code = "\n".join(line.removeprefix(fence[1]) for line in lines[at + 1 : end]) + "\n"
            language = fence[2] or ("console" if re.search(r"^\$ ", code, re.MULTILINE) else "text")
            mark = re.fullmatch(r" *<!-- (not run|compiled, not run): (.+) -->", lines[at - 1] if at else "")
            numbers[language] = numbers.get(language, 0) + 1
            not_run = mark[2] if mark and mark[1] == "not run" else ""
            if language == "python" and re.search(r"^(?:import|from) (?:torch|cupy|weir_torch)\b|\btorch\.cuda\.", code, re.MULTILINE):
                not_run = not_run or "needs another package"
            compiled = mark[2] if mark and mark[1] != "not run" else ""
            blocks.append(Block(page, numbers[language], at + 1, language, code, not_run, compiled))
            at = end + 1
    return blocks
