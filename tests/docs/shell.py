"""shell.py PROGRAM BUILD: runs the shell commands of the documentation, and compares the output that pages show.

The commands run in a folder that looks like a checkout with a build. Commands that need something else are listed below
with the reason. With WEIR_TEST_LONG=1 slow commands run too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from blocks import ROOT, Block, read_blocks

program, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
is_long = os.environ.get("WEIR_TEST_LONG") == "1"

# Why a command is not run here.
NOT_RUN = [(re.compile(pattern), reason) for pattern, reason in (
    (r"^(\w+=\S+ )*(make|ctest|cmake|scripts/\S+)\b", "builds, or runs all tests"),
    (r"\bpkg-config --cflags", "tests/install builds programs in this way"),
    (r"^\./(offline|first)\b", "built by the command above it"),
    (r"^(sudo|apt|apt-get|dpkg|pip|pipx|pip3|npm|ssh|docker|git clone)\b|^(python3? -m )pip\b", "installs software, or needs a network"),
    (r"PYTHONPATH=build/torch|adapters/torch/|bench/torch/|PYTORCH_NO_CUDA_MEMORY_CACHING|python3 \$own\b", "needs PyTorch"),
    (r"/usr/share/doc/weir\b", "needs the Debian package"),
    (r"^bench/all\b", "takes minutes; tests/scripts runs parts of it"),
    (r"WEIR_DRIVER=cuda|compute-sanitizer|adapters/preload/tests/run\.sh|bench/cupy_pairs", "needs a GPU"),
    (r"PYTORCH_CUDA_ALLOC_CONF=\S+ python3", "needs PyTorch"),
    (r"LD_PRELOAD|\./program\b", "needs a CUDA program; adapters/preload/tests has its own"),
    (r"\b(train|job)\.py\b|recordings/|tune_gemm_in_file", "needs a program of the reader"),
    (r"\bbpftrace\b|flamegraph\.pl|\bsqlite3\b", "needs another program"),
    (r"--serve\b", "waits for a browser"),
    (r"make_big\.py|bench_whatif|/tmp/big\.(pickle|html)", "takes minutes"),
    (r"build/(debug|fuzz)/", "needs a build with tests"),
    (r"^cd viewer", "a part of the benchmark of the page"),
    (r"baseline\.pickle", "compares files of the reader"),
)]
# These run in the long form only.
SLOW = re.compile(r"weir tune|--fit|replay --check tests/data/traces/\*")


def commands_of(block: Block) -> list[tuple[str, str]]:
    """Returns the commands of a block, with the output that the page shows below each; "" if it shows none."""
    if block.language == "sh":
        # A heredoc or a loop is one command.
        found, lines = [], block.code.rstrip("\n").split("\n")
        while lines:
            line = lines.pop(0)
            heredoc = re.search(r"<<'?(\w+)'?", line)
            if heredoc:
                while lines and lines[0] != heredoc[1]:
                    line += "\n" + lines.pop(0)
                line += "\n" + lines.pop(0)
            elif re.match(r"(for|while|if)\b", line):
                while lines and not re.match(r"done|fi", lines[0]):
                    line += "\n" + lines.pop(0)
                line += "\n" + lines.pop(0)
            if line.strip() and not line.startswith("#"):
                found.append((line, ""))
        return found
    found = []
    for line in block.code.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found and found[-1][0].count('"') % 2:
            found[-1][0] += "\n" + line
        elif found:
            found[-1][1] += line + "\n"
    return [(command, output) for command, output in found]


def matches(expected: str, actual: str) -> bool:
    """Compares without folding. "..." stands for any text. Times, and the speed of a replay, are those of the machine."""
    def pattern(text: str) -> str:
        text = re.sub(r"\s+", " ", text).strip()
        parts = [re.escape(part.strip()) for part in re.split(r"(?:^| )\.\.\.(?= |$)", text)]
        # Numbers of seconds are those of the machine.
        return r".*?".join(re.sub(r"\d+(\\\.\d+)?\\ (s|ms|µs)\b", r"[0-9.]+ (?:s|ms|µs)", part) for part in parts)

    actual, expected = (re.sub(r"^ +speed .*\n", "", text, flags=re.MULTILINE) for text in (actual, expected))
    return re.search(pattern(expected), re.sub(r"\s+", " ", actual)) is not None


def prepare(folder: Path) -> None:
    """Makes the folder look like a checkout with a build."""
    for path in ROOT.iterdir():
        if path.name not in ("build", ".git"):
            (folder / path.name).symlink_to(path)
    (folder / "build").mkdir()
    for path in build.iterdir():
        (folder / "build" / path.name).symlink_to(path)
    traces = ROOT / "tests" / "data" / "traces"
    for path in traces.glob("*.zst"):
        (folder / path.name).symlink_to(path)
    for name in ("run.pickle", "before.pickle", "oom.pickle"):
        (folder / name).symlink_to(traces / "llama_oom.pickle.zst")
    (folder / "after.pickle").symlink_to(traces / "gpt2_fixed.pickle.zst")


def run(block: Block, folder: Path, environment: dict[str, str]) -> tuple[int, list[str]]:
    count, problems, exports = 0, [], ""
    if SLOW.search(block.code) and not is_long:
        return 0, []
    for command, expected in commands_of(block):
        reason = next((reason for pattern, reason in NOT_RUN if pattern.search(command)), "")
        if reason:
            continue
        result = subprocess.run(["bash", "-c", exports + command], cwd=folder, env=environment, capture_output=True, text=True,
                                timeout=600)
        count += 1
        if re.match(r"export \w+=", command):
            exports += command + "\n"
        # 3 is an answer of weir (memory runs out, or grew), and 1 of replay --check (something differs).
        if result.returncode not in ((0, 1, 3) if expected else (0, 3)):
            problems.append(f"{block.where}: exit code {result.returncode}: {command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        elif expected and not matches(expected, result.stdout + result.stderr):
            problems.append(f"{block.where}: the output differs: {command}\n--- shown\n{expected}--- now\n{result.stdout}{result.stderr}")
    return count, problems


def main() -> int:
    count, problems = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": name, "WEIR_DRIVER": "soft",
                       "PYTHONPATH": str(build / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        for unset in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "COLUMNS"):
            environment.pop(unset, None)
        for block in read_blocks():
            if block.language in ("sh", "console") and not block.not_run:
                ran, found = run(block, folder, environment)
                count += ran
                problems.extend(found)
    print("\n".join(problems))
    print(f"{count} commands ran, {len(problems)} failed or differ")
    assert count >= 20, "the commands are no longer found"
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
