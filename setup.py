"""Builds the extension of the package `weir`; pyproject.toml has the rest."""

import re
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))
import kernels  # noqa: E402

# The public header defines the version.
header = Path("include/weir/runtime.h").read_text()
version = ".".join(re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

# The library, with src/offline for pictures, and without what shared libraries beside libweir use. Without libzstd and
# zlib it reads no compressed files, which it need not.
library = [source for source in glob("src/**/*.c", recursive=True) if not source.endswith("_client.c")]
headers = glob("include/weir/*.h") + glob("src/**/*.h", recursive=True)
headers += glob("src/compute/kernels/*") + glob("python/src/*.h") + glob("python/frames/*.[ch]")


class BuildWithKernels(build_ext):
    def build_extension(self, extension):
        folder = Path(self.build_temp) / "kernels"
        extension.extra_objects = kernels.build(folder)
        extension.include_dirs.append(str(folder))
        super().build_extension(extension)


setup(
    version=version,
    cmdclass={"build_ext": BuildWithKernels},
    options={"build": {"build_base": "build/pip"}},
    ext_modules=[
        Extension(
            "weir._weir",
            sorted(library) + sorted(glob("python/src/*.c")) + ["python/frames/walk.c"],
            depends=headers,
            include_dirs=["include", "src"],
            define_macros=[("_GNU_SOURCE", None), ("WEIR_HAVE_COMPUTE", None)],
            # The library is linked in, with hidden symbols, since the process may contain other copies of it.
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl", "m"],
        )
    ],
)
