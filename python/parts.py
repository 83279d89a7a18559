"""What a wheel has besides the extension, for setup.py: the program, libweir.so, the page of `weir view`, and the
adapter for PyTorch with its sources.

WEIR_PAGE=FOLDER takes page.html and weir.wasm from that folder instead of building them. WEIR_BUILD_TORCH=0 leaves out
the adapter's libraries (it is then built on first use), and 1 requires them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
# What a file does not use is left out: the extension does not compress, and has no SQLite.
C_FLAGS = ["-std=c11", "-O2", "-g0", "-fvisibility=hidden", "-fno-tree-slp-vectorize", "-ffunction-sections"]
# As CMakeLists.txt compiles libweir.so: public functions are visible. They are not replaceable, though.
EXPORTS = ["-include", "base/exports.h", "-fno-semantic-interposition"]
# As cmake/hardening.cmake: code that reads what others have written is compiled with checks of memory errors. The
# allocator's fast path does without, since they would make it slower.
HARDENED = ("src/inspect/", "src/offline/", "cli/", "python/", "compute/")
HARDENING = ("-fstack-protector-strong", "-fstack-clash-protection", "-fcf-protection")
LINK_FLAGS = ["-Wl,--gc-sections", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"]
HIDDEN = ["-Wl,--exclude-libs,ALL"]  # the extension exports nothing of the libraries that are linked in
BUILT_PAGE = "viewer/built"  # in a source archive
PAGE_BUILD = Path("build/pip/page")
ADAPTER = (
    "adapters/torch/*.cpp",
    "adapters/torch/*.[ch]",
    "adapters/torch/build.py",
    "adapters/torch/weir_torch/*.py",
    "include/weir/*.h",
    "python/frames/*.[ch]",
)


def say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr, flush=True)


def accepts(compiler: list[str], *flags: str) -> bool:
    """Whether the compiler takes these flags without a warning."""
    code = "#include <string.h>\nint main(void) { return (int)strlen(\"\"); }\n"
    command = [*compiler, "-O2", "-Werror", *flags, "-c", "-x", "c", "-", "-o", os.devnull]
    return subprocess.run(command, input=code, text=True, capture_output=True).returncode == 0


def hardening(compiler: list[str]) -> list[str]:
    """The flags for code that reads what others have written, as far as the compiler has them."""
    found = [flag for flag in HARDENING if accepts(compiler, flag)]
    # Level 3 needs a recent compiler and C library.
    levels = (["-U_FORTIFY_SOURCE", f"-D_FORTIFY_SOURCE={level}"] for level in (3, 2))
    return found + next((flags for flags in levels if accepts(compiler, *flags)), [])


def compile_in_parallel(compiler: Any) -> None:
    """Makes the compiler of setuptools compile several files at a time, those in HARDENED with the flags for it."""
    hardened = hardening(compiler.compiler_so)

    def flags_of(source: str) -> list[str]:
        return hardened if source.startswith(HARDENED) else []

    def compile_all(
        sources: list[str],
        output_dir: str | None = None,
        macros: Any = None,
        include_dirs: Any = None,
        debug: bool = False,
        extra_preargs: Any = None,
        extra_postargs: Any = None,
        depends: Any = None,
    ) -> list[str]:
        macros, objects, extra, options, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = compiler._get_cc_args(options, debug, extra_preargs)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
            jobs = [
                workers.submit(
                    compiler._compile, name, *build[name], arguments, [*extra, *flags_of(build[name][0])], options
                )
                for name in objects
                if name in build
            ]
            for job in jobs:
                job.result()
        return list(objects)

    compiler.compile = compile_all


# ---- The page ----


def has_wasm() -> bool:
    """Whether clang can build for WebAssembly, and CMake is there to do it."""
    if not shutil.which("cmake") or not shutil.which("clang"):
        return False
    probe = ["clang", "--target=wasm32-wasi", "-x", "c", "-o", os.devnull, "-"]
    return subprocess.run(probe, input=b"int main(void) { return 0; }", stderr=subprocess.DEVNULL).returncode == 0


def page() -> dict[str, Path]:
    """Returns the files of the page by their macros in cli/view_page.c. It builds them unless they were given."""
    given = os.environ.get("WEIR_PAGE")
    built = Path(given) if given else ROOT / BUILT_PAGE
    found = {"WEIR_PAGE_FILE": built / "page.html", "WEIR_WASM_FILE": built / "weir.wasm"}
    if found["WEIR_PAGE_FILE"].exists():
        return {name: path.resolve() for name, path in found.items() if path.exists()}
    if given:
        raise SystemExit(f"weir: WEIR_PAGE={given}: there is no page.html in it")
    if not shutil.which("esbuild"):
        say("esbuild was not found: `weir view` will only say so; install esbuild (a Debian package) and build again")
        return {}
    folder = PAGE_BUILD
    found = {"WEIR_PAGE_FILE": folder / "page.html"}
    subprocess.run(["sh", str(ROOT / "viewer/build.sh"), str(found["WEIR_PAGE_FILE"].resolve())], check=True)
    if has_wasm():
        configure = ["cmake", "-S", str(ROOT), "-B", str(folder / "cmake"), "-DWEIR_TORCH=OFF"]
        configure += [f"-DWEIR_BUILD_{part}=OFF" for part in ("TESTS", "PYTHON", "COMPUTE", "BENCH", "EXAMPLES")]
        build = ["cmake", "--build", str(folder / "cmake"), "--target", "weir_wasm", "--parallel"]
        for command in configure, [*build, str(len(os.sched_getaffinity(0)))]:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found["WEIR_WASM_FILE"] = folder / "cmake/viewer/weir.wasm"
    else:
        say("cmake, or clang with wasi-libc, was not found: the page of `weir view` will not have what-if")
    return {name: path.resolve() for name, path in found.items()}


def copy_page(target: Path) -> None:
    for path in page().values():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


# ---- Programs and libraries ----


def can_link(compiler: list[str], header: str, function: str, archive: str) -> bool:
    """Whether the header is there, and the archive can be a part of a shared object."""
    code = f"#include <{header}>\nvoid *weir_probe(void) {{ return (void *){function}; }}\n"
    command = [*compiler, "-shared", "-fPIC", *HIDDEN, "-x", "c", "-", "-x", "none", archive, "-o", os.devnull]
    return subprocess.run(command, input=code, text=True, capture_output=True).returncode == 0


def static_libraries() -> dict[str, str]:
    """The optional libraries that can be linked statically, by their macros. NOTICE has the licence of zstd, which asks
    for it."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    found = {}
    for macro, header, function, library, effect, package in (
        ("WEIR_HAVE_ZSTD", "zstd.h", "ZSTD_createDCtx", "libzstd.a", "read and write .zst files", "libzstd-dev"),
        ("WEIR_HAVE_ZLIB", "zlib.h", "inflate", "libz.a", "read .gz files", "zlib1g-dev"),
        ("WEIR_HAVE_SQLITE", "sqlite3.h", "sqlite3_open", "libsqlite3.a", "export to SQLite", "libsqlite3-dev"),
    ):
        ask = subprocess.run([*compiler, f"-print-file-name={library}"], capture_output=True, text=True)
        archive = ask.stdout.strip()
        if os.path.isabs(archive) and can_link(compiler, header, function, archive):
            found[macro] = archive
        else:
            say(f"{header} or {library} was not found: Weir will not {effect} (Debian package: {package})")
    return found


def build_program(build: Any, extension: Any, library: list[str], out: Path) -> None:
    temp, compiler = Path(build.build_temp), build.compiler
    macros = [*extension.define_macros, *((name, f'"{path}"') for name, path in page().items())]
    own = compiler.compile(
        sorted(glob("cli/*.c")), str(temp / "program"), macros, extension.include_dirs, extra_postargs=C_FLAGS
    )
    archives = [path for path in extension.extra_objects if path.endswith(".a")]
    objects = [*own, *compiler.object_filenames(library, output_dir=str(temp)), *archives]
    out.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-pie", "-Wl,--as-needed", *LINK_FLAGS]
    compiler.link_executable(objects, str(out), libraries=extension.libraries, extra_postargs=flags)


def build_library(build: Any, objects: list[str], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-Wl,--version-script=src/libweir.map", f"-Wl,-soname,{out.name}", "-Wl,--as-needed", "-Wl,-z,nodelete"]
    build.compiler.link_shared_object(
        objects, str(out), libraries=["pthread", "dl"], extra_postargs=[*flags, "-Wl,--no-undefined", *LINK_FLAGS]
    )


# ---- The adapter for PyTorch ----


def copy_adapter(folder: Path) -> list[Path]:
    """Copies the sources of the adapter, in the layout of the project."""
    copies = []
    for pattern in ADAPTER:
        for path in sorted(ROOT.glob(pattern)):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copies.append(copy)
    return copies


def build_adapter(temp: Path, weir: Path, package: Path) -> list[Path]:
    """Builds the adapter's libraries if this Python has a PyTorch that they can be built for."""
    wanted = os.environ.get("WEIR_BUILD_TORCH", "auto")
    if wanted == "0":
        return []
    script, environment = str(ROOT / "adapters/torch/build.py"), {**os.environ, "WEIR_TORCH": "0"}
    check = subprocess.run([sys.executable, script, "--check"], env=environment, capture_output=True, text=True)
    if check.returncode:
        reason = check.stderr.strip().splitlines()[-1:] or ["unknown"]
        if wanted == "1":
            raise SystemExit(f"weir: WEIR_BUILD_TORCH=1, but the adapter cannot be built: {reason[0]}")
        say(f"the adapter for PyTorch is built when WEIR_TORCH=1 first needs it ({reason[0]})")
        return []
    out = temp / "torch"
    done = subprocess.run([sys.executable, script, "--weir", str(weir), "--out", str(out)], env=environment)
    if done.returncode:
        if wanted == "1":
            raise SystemExit("weir: the adapter for PyTorch could not be built; the compiler's messages are above")
        say("the adapter for PyTorch could not be built; WEIR_TORCH=1 tries again when it first needs it")
        return []
    package.mkdir(parents=True, exist_ok=True)
    built = [*(out / "weir_torch").glob("*.so*"), out / "weir_torch" / "built_for"]
    return [Path(shutil.copy(path, package)) for path in built]


# ---- All of it ----


def add_all(build: Any, extension: Any, library: list[str], package: Path) -> None:
    """Adds everything to the folder of the package. The objects of the extension are there already."""
    temp = str(build.build_temp)

    def objects_of(sources: Iterable[str]) -> list[str]:
        return list(build.compiler.object_filenames(list(sources), output_dir=temp))

    program, shared = package / "bin" / "weir", package / "lib" / "libweir.so.0"
    build_program(build, extension, library, program)
    core = (source for source in library if not source.startswith("src/offline/"))
    build_library(build, objects_of(core), shared)
    outputs = [program, shared, *copy_adapter(package / "adapter")]
    outputs += build_adapter(Path(temp), shared, package.parent / "weir_torch")
    build.weir_outputs += [str(path) for path in outputs]
