"""Builds the extension of the package `weir`; pyproject.toml has the rest."""

import re
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

# The public header defines the version.
header = Path("include/weir/runtime.h").read_text()
version = ".".join(re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

# All of libweir: src/offline belongs to the program, src/compute is built by CMake alone, and the files *_client.c are for
# libraries beside libweir.
library = [
    source
    for source in glob("src/**/*.c", recursive=True)
    if not source.startswith(("src/offline/", "src/compute/")) and not source.endswith("_client.c")
]
headers = glob("include/weir/*.h") + glob("src/**/*.h", recursive=True)
headers += glob("python/src/*.h") + glob("python/frames/*.[ch]")

setup(
    version=version,
    options={"build": {"build_base": "build/pip"}},
    ext_modules=[
        Extension(
            "weir._weir",
            sorted(library) + sorted(glob("python/src/*.c")) + ["python/frames/walk.c"],
            depends=headers,
            include_dirs=["include", "src"],
            define_macros=[("_GNU_SOURCE", None)],
            # The library is linked in, with hidden symbols, since the process may contain other copies of it.
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl"],
        )
    ],
)
