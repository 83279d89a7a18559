"""Builds the extension of the package `weir`; pyproject.toml has the rest."""

import os
import re
import subprocess
from glob import glob
from pathlib import Path
from shutil import which

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# The public header defines the version.
header = Path("include/weir/runtime.h").read_text()
version = ".".join(re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

# All of libweir: src/offline belongs to the program, src/compute follows below, and the files *_client.c are for libraries
# beside libweir.
library = [
    source
    for source in glob("src/**/*.c", recursive=True)
    if not source.startswith(("src/offline/", "src/compute/")) and not source.endswith("_client.c")
]
headers = glob("include/weir/*.h") + glob("src/**/*.h", recursive=True)
headers += glob("python/src/*.h") + glob("python/frames/*.[ch]")


class BuildWithKernels(build_ext):
    """Adds libweir_compute if there is a C++ compiler, as cmake/compute.cmake does."""

    kernels = Path("src/compute/kernels")
    flags = "-std=c++17 -O2 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics"
    flags += " -fno-strict-aliasing -ffp-contract=off -w -x c++ -c"

    def build_extension(self, extension):
        compiler = which(os.environ.get("CXX", "c++"))
        if compiler:
            self.add_kernels(extension, compiler)
        else:
            print("no C++ compiler was found: weir.kernel is left out")
        super().build_extension(extension)

    def add_kernels(self, extension, compiler):
        generated = Path(self.build_temp) / "compute"
        generated.mkdir(parents=True, exist_ok=True)
        sources = sorted(self.kernels.glob("*.cu"))
        texts, declarations, table = [self.embed(self.kernels / "device.h")], [], []
        for source in sources:
            name, ptx = source.stem, Path(f"src/compute/ptx/{source.stem}.ptx")
            texts.append(self.embed(source))
            if ptx.exists():
                texts.append(self.embed(ptx))
            found = f"{name}_ptx, sizeof {name}_ptx" if ptx.exists() else "NULL, 0"
            declarations.append(f"extern const weir_soft_image weir__builtin_image_{name};")
            table.append(f'  {{"{name}", {name}_cu, sizeof {name}_cu, {found}, &weir__builtin_image_{name}}},')
            target = generated / f"{name}.o"
            command = [compiler, *self.flags.split(), f"-DWEIR_SOFT_FILE={name}"]
            subprocess.run(
                [*command, "-include", str(self.kernels / "soft_cuda.h"), str(source), "-o", str(target)], check=True
            )
            extension.extra_objects.append(str(target))
        struct = (
            "typedef struct builtin_file { const char *name; const unsigned char *source; size_t source_bytes;\n"
            "  const unsigned char *ptx; size_t ptx_bytes; const weir_soft_image *image; } builtin_file;"
        )
        lines = ['#include "builtin_texts.h"', '#include "weir/soft.h"', *declarations, struct]
        lines += ["static const builtin_file builtin_files[] = {", *table, "};"]
        (generated / "builtin_files.h").write_text("\n".join(lines) + "\n")
        (generated / "builtin_texts.h").write_text("\n".join(texts))
        soft = [self.embed(self.kernels / name) for name in ("soft_cuda.h", "soft_cuda_functions.h")]
        (generated / "soft_texts.h").write_text("\n".join(soft))
        extension.sources += sorted(glob("src/compute/*.c"))
        extension.include_dirs.append(str(generated))
        extension.define_macros.append(("WEIR_HAVE_COMPUTE", None))
        extension.libraries.append("m")

    @staticmethod
    def embed(path):
        name = re.sub(r"\W", "_", path.name)
        numbers = ",".join(str(byte) for byte in path.read_bytes())
        return f"static const unsigned char {name}[] = {{{numbers}}};\n"


setup(
    version=version,
    options={"build": {"build_base": "build/pip"}},
    cmdclass={"build_ext": BuildWithKernels},
    ext_modules=[
        Extension(
            "weir._weir",
            sorted(library) + sorted(glob("python/src/*.c")) + ["python/frames/walk.c"],
            depends=headers + glob("src/compute/kernels/*.cu") + glob("src/compute/ptx/*.ptx"),
            include_dirs=["include", "src"],
            define_macros=[("_GNU_SOURCE", None)],
            # The library is linked in, with hidden symbols, since the process may contain other copies of it.
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl"],
        )
    ],
)
