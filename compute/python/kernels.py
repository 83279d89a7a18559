"""Builds the built-in kernels of compute/ without CMake, for setup.py and scripts/build-python. It does what
compute/CMakeLists.txt does.

    python3 compute/python/kernels.py FOLDER

writes builtin_files.h to the folder, compiles each kernel for the software device to an object file there, and prints
the names of the object files. CXX is respected.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "compute" / "kernels"
FLAGS = (
    "-O2 -std=c++17 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-strict-aliasing"
)


def array_of(name: str, content: bytes) -> str:
    name = "".join(c if c.isalnum() else "_" for c in name)
    return f"static const unsigned char {name}[] = {{{','.join(map(str, content))},}};\n"


def arrays_of(paths: list[Path]) -> list[str]:
    return [array_of(path.name, path.read_bytes()) for path in paths]


def macro(name: str, rows: list[str]) -> str:
    return f"#define {name}(X)" + "".join(f" \\\n  X({row})" for row in rows) + "\n"


def write_lists(folder: Path, sources: list[Path]) -> None:
    with tarfile.open(ROOT / "compute" / "ptx.tar.xz") as archive:
        archive.extractall(folder / "ptx")  # noqa: S202
    headers = sorted(path for path in KERNELS.glob("*.h") if not path.name.startswith("soft_"))
    files = []
    for source in sources:
        ptx = folder.resolve() / "ptx" / f"{source.stem}.ptx"
        files.append(f'{source.stem}, "{source}", "{ptx if ptx.exists() else "/dev/null"}"')
    folder.joinpath("builtin_files.h").write_text(
        macro("BUILTIN_HEADERS", [f'{path.stem}, "{path}"' for path in headers]) + macro("BUILTIN_FILES", files)
    )
    folder.joinpath("jit_texts.h").write_text("".join(arrays_of([KERNELS / "device.h", KERNELS / "complex.h"])))
    soft = [KERNELS / "soft_cuda.h", KERNELS / "soft_cuda_functions.h"]
    folder.joinpath("soft_texts.h").write_text("".join(arrays_of(soft)))


def build(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(KERNELS.glob("*.cu"))
    write_lists(folder, sources)
    objects = []
    place = KERNELS.relative_to(ROOT)  # an assertion contains the name of its file: not that of the folder
    for source in sources:
        made = str((folder / f"{source.stem}.o").resolve())
        command = [
            *shlex.split(os.environ.get("CXX", "c++")),
            *FLAGS.split(),
            *("-ffp-contract=off", f"-DWEIR_SOFT_FILE={source.stem}", "-include", str(place / "soft_cuda.h")),
            *("-x", "c++", "-c", str(place / source.name), "-o", made),
        ]
        subprocess.run(command, check=True, cwd=ROOT)
        objects.append(made)
    return objects


if __name__ == "__main__":
    print(" ".join(build(Path(sys.argv[1]))))
