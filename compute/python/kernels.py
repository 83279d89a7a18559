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


def write_table(folder: Path, sources: list[Path]) -> None:
    with tarfile.open(ROOT / "compute" / "ptx.tar.xz") as archive:
        ptx_texts = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    headers = sorted(path for path in KERNELS.glob("*.h") if not path.name.startswith("soft_"))
    texts, declarations, rows = arrays_of(headers), [], []
    for source in sources:
        name, ptx = source.stem, f"{source.stem}.ptx"
        texts.append(array_of(source.name, source.read_bytes()))
        if ptx in ptx_texts:
            texts.append(array_of(ptx, ptx_texts[ptx]))
        declarations.append(f"extern const weir_soft_image weir__builtin_image_{name};\n")
        text = f"{name}_ptx, sizeof {name}_ptx" if ptx in ptx_texts else "NULL, 0"
        rows.append(f'    {{"{name}", {name}_cu, sizeof {name}_cu, {text}, &weir__builtin_image_{name}}},\n')
    folder.joinpath("builtin_texts.h").write_text("".join(texts))
    folder.joinpath("jit_texts.h").write_text("".join(arrays_of([KERNELS / "device.h", KERNELS / "complex.h"])))
    soft = [KERNELS / "soft_cuda.h", KERNELS / "soft_cuda_functions.h"]
    folder.joinpath("soft_texts.h").write_text("".join(arrays_of(soft)))
    named = "".join(f'    {{"{path.name}", {path.stem}_h, sizeof {path.stem}_h}},\n' for path in headers)
    folder.joinpath("builtin_files.h").write_text(
        '#include "builtin_texts.h"\n#include "weir/soft.h"\n'
        + "".join(declarations)
        + "typedef struct builtin_header {\n"
        "  const char *name;\n"
        "  const unsigned char *text;\n"
        "  size_t bytes;\n"
        "} builtin_header;\n"
        "static const builtin_header builtin_headers[] = {\n" + named + "};\n"
        "typedef struct builtin_file {\n"
        "  const char *name;\n"
        "  const unsigned char *source;\n"
        "  size_t source_bytes;\n"
        "  const unsigned char *ptx;\n"
        "  size_t ptx_bytes;\n"
        "  const weir_soft_image *image;\n"
        "} builtin_file;\n"
        "static const builtin_file builtin_files[] = {\n" + "".join(rows) + "};\n"
    )


def build(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(KERNELS.glob("*.cu"))
    write_table(folder, sources)
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
