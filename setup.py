"""Builds the extensions of the package `weir`, the program `weir` and libweir.so; pyproject.toml has the rest."""

import os
import re
import subprocess
import sys
import sysconfig
import time
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    try:
        from wheel.bdist_wheel import bdist_wheel
    except ImportError:
        sys.exit("weir: the build needs the package wheel, or setuptools 70.1 or later: pip install wheel")

sys.path[:0] = [str(Path(__file__).resolve().parent / folder) for folder in ("python", "compute/python")]
import kernels  # noqa: E402
import names  # noqa: E402
import parts  # noqa: E402
import source_archive  # noqa: E402
import wheel_tag  # noqa: E402

# The public header defines the version.
header = Path("include/weir/runtime.h").read_text()
version = ".".join(re.findall(r"#define WEIR_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))

# What is built needs libc alone: parts.py links libzstd, zlib and SQLite in if there are static libraries of them.
library = sorted(glob("src/**/*.c", recursive=True))
headers = glob("include/weir/*.h") + glob("python/src/*.h")
core_headers = headers + glob("src/**/*.h", recursive=True) + glob("cli/*.h") + glob("python/frames/*.[ch]")
compute_headers = headers + glob("compute/include/weir/compute/*.h") + glob("compute/*/*.h")
compute_headers += [*glob("compute/kernels/*"), "compute/ptx.tar.xz"]
core_name = "_weir" + sysconfig.get_config_var("EXT_SUFFIX")


class BuildAll(build_ext):
    """Builds the extensions; and from the objects of the core's the program and the library, as files of the package."""

    def build_extension(self, extension):
        parts.compile_in_parallel(self.compiler)
        if extension is core:
            linked = parts.static_libraries()
            extension.define_macros += [(macro, None) for macro in linked]
            extension.extra_objects = list(linked.values())
            super().build_extension(extension)
            self.weir_outputs = [self.make_stubs("python/src/types.txt", core)]
            parts.add_all(self, extension, library, Path(self.get_ext_fullpath(extension.name)).parent)
            return
        folder = Path(self.build_temp) / "kernels"
        extension.extra_objects = [*kernels.build(folder), self.get_ext_fullpath(core.name)]
        extension.include_dirs.append(str(folder))
        super().build_extension(extension)
        self.weir_outputs.append(self.make_stubs("compute/python/src/types.txt", core, compute))

    def make_stubs(self, table, *extensions):
        package, last = Path(self.get_ext_fullpath(core.name)).parent, Path(self.get_ext_fullpath(extensions[-1].name))
        command = [sys.executable, "python/stubs.py", str(package), table, *(extension.name for extension in extensions)]
        subprocess.run(command, check=True)
        return str(last.with_name(extensions[-1].name.rpartition(".")[2] + ".pyi"))

    def get_outputs(self):
        return super().get_outputs() + getattr(self, "weir_outputs", [])


class BuildModules(build_py):
    """Adds the modules of the package that are compute's, and the list of their names."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        if package == "weir":
            listed = Path("build/pip/_names.py")
            listed.parent.mkdir(parents=True, exist_ok=True)
            names.write(listed)
            found += [("weir", Path(file).stem, file) for file in [*sorted(glob("compute/python/weir/*.py")), str(listed)]]
        return found


class TaggedWheel(bdist_wheel):
    """Names the wheel after the oldest glibc that can run all that is in it."""

    def get_tag(self):
        python, abi, platform = super().get_tag()
        return python, abi, wheel_tag.of_folder(Path(self.bdist_dir), platform)


class SdistWithPage(sdist):
    """Adds the page of `weir view`, so that a build from the archive needs neither esbuild nor clang. Two archives of
    the same source have the same bytes."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        parts.copy_page(Path(base_dir) / parts.BUILT_PAGE)

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != "gztar" or root_dir:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        Path(base_name).parent.mkdir(parents=True, exist_ok=True)
        time_of_files = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
        source_archive.write(base_name + ".tar.gz", base_dir, time_of_files)
        return base_name + ".tar.gz"


core = Extension(
    "weir._weir",
    library + sorted(glob("python/src/*.c")) + ["python/frames/walk.c"],
    depends=core_headers,
    include_dirs=["include", "src", "python/src"],
    define_macros=[("_GNU_SOURCE", None)],
    # The library is in it, since the process may contain other copies of it.
    extra_compile_args=[*parts.C_FLAGS, *parts.EXPORTS],
    extra_link_args=[
        *("-Wl,--version-script=python/extension.map", "-Wl,-Bsymbolic-functions", f"-Wl,-soname,{core_name}"),
        *(*parts.HIDDEN, *parts.LINK_FLAGS),
    ],
    libraries=["pthread", "dl", "m"],
)
compute = Extension(
    "weir.compute._compute",
    sorted(glob("compute/src/*.c") + glob("compute/python/src/*.c")),
    depends=compute_headers,
    include_dirs=["include", "compute/include", "compute", "compute/python/src", "python/src"],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=[*parts.C_FLAGS, "-include", "src/exports.h"],
    extra_link_args=["-Wl,--version-script=compute/python/extension.map", *parts.LINK_FLAGS],
    libraries=["pthread", "dl", "m"],
)

setup(
    version=version,
    cmdclass={"build_ext": BuildAll, "build_py": BuildModules, "bdist_wheel": TaggedWheel, "sdist": SdistWithPage},
    options={"build": {"build_base": "build/pip"}},
    ext_modules=[core, compute],
)
