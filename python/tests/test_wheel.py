"""How a wheel is named, that source archives are reproducible, and what a build says that leaves something out.

tests/install/wheel.sh tests whole wheels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.append(str(Path(__file__).parents[1]))
import parts
import source_archive
import wheel_tag


def compile_to(path, *options):
    path.with_suffix(".c").write_text("#include <stdio.h>\nint main(void) { return puts(\"\") < 0; }\n")
    subprocess.run(["cc", str(path.with_suffix(".c")), "-o", str(path), *options], check=True)


@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("readelf"), reason="there is no compiler or readelf")
def test_tag(tmp_path, capsys):
    assert wheel_tag.of_folder(tmp_path, "linux_x86_64") == "linux_x86_64"  # no machine code: nothing is known
    compile_to(tmp_path / "program")
    tag = wheel_tag.of_folder(tmp_path, "linux_x86_64")
    major, minor = wheel_tag.glibc_of(tmp_path / "program")
    assert tag == f"manylinux_{major}_{minor}_x86_64" and (2, 0) < (major, minor) < (3, 0)
    assert f"program needs glibc {major}.{minor}" in capsys.readouterr().err
    assert wheel_tag.of_folder(tmp_path, "linux_aarch64").endswith("_aarch64")
    assert wheel_tag.of_folder(tmp_path, "musllinux_1_2_x86_64") == "musllinux_1_2_x86_64"
    # One that needs another library makes the wheel one for this machine.
    subprocess.run(["cc", "-shared", "-o", str(tmp_path / "libother.so"), "-x", "c", "/dev/null"], check=True)
    compile_to(tmp_path / "user", "-Wl,--no-as-needed", str(tmp_path / "libother.so"))
    assert wheel_tag.of_folder(tmp_path, "linux_x86_64") == "linux_x86_64"
    assert re.search(r"user needs .*libother\.so: the wheel is for this machine only", capsys.readouterr().err)


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no compiler")
def test_hardening(tmp_path):
    assert "-fstack-protector-strong" in parts.hardening(["cc"])
    assert not parts.accepts(["cc"], "-fno-such-flag")
    # One that has none of the flags.
    old = tmp_path / "old-cc"
    old.write_text('#!/bin/sh\ncase "$*" in *-fstack*|*-fcf*|*FORTIFY*) exit 1 ;; esac\nexec cc "$@"\n')
    old.chmod(0o755)
    assert parts.hardening([str(old)]) == []
    # One that knows an older level only.
    old.write_text('#!/bin/sh\ncase "$*" in *FORTIFY_SOURCE=3*|*-fcf*) exit 1 ;; esac\nexec cc "$@"\n')
    flags = parts.hardening([str(old)])
    assert flags[-1] == "-D_FORTIFY_SOURCE=2" and "-fcf-protection" not in flags


def test_which_files_are_hardened(monkeypatch):
    class Compiler:
        compiler_so = ("cc",)
        calls: ClassVar[dict[str, list[str]]] = {}

        def _setup_compile(self, folder, macros, include, sources, depends, extra):
            return macros, [f"{name}.o" for name in sources], extra, [], {f"{name}.o": (name, ".c") for name in sources}

        def _get_cc_args(self, options, debug, before):
            return []

        def _compile(self, out, source, suffix, arguments, extra, options):
            self.calls[source] = extra

    monkeypatch.setattr(parts, "hardening", lambda compiler: ["-hardened"])
    compiler = Compiler()
    parts.compile_in_parallel(compiler)
    fast, others = ("src/alloc/cache/arena.c", "src/base/lock.c"), ("src/offline/read/pickle.c", "cli/main.c")
    compiler.compile([*fast, *others], extra_postargs=["-O2"])
    assert all(compiler.calls[name] == ["-O2"] for name in fast)
    assert all(compiler.calls[name] == ["-O2", "-hardened"] for name in others)


def test_source_archives_are_the_same(tmp_path):
    """Times, owners, the umask and the order in which files were made leave no trace."""
    archives = []
    for number, names in enumerate((["b", "a"], ["a", "b"])):
        folder = tmp_path / str(number) / "weir-1.0"
        (folder / "part").mkdir(parents=True, mode=0o755 if number else 0o700)
        for name in names:
            (folder / "part" / name).write_text(name)
            (folder / "part" / name).chmod(0o644 if number else 0o600)
            os.utime(folder / "part" / name, (number, number))
        (folder / "part" / "a").chmod(0o755 if number else 0o700)
        source_archive.write(tmp_path / f"{number}.tar.gz", folder, 1700000000)
        archives.append((tmp_path / f"{number}.tar.gz").read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(tmp_path / "0.tar.gz") as tar:
        found = {item.name: (item.mode, item.mtime, item.uname) for item in tar.getmembers()}
    modes = {"weir-1.0": 0o755, "weir-1.0/part": 0o755, "weir-1.0/part/a": 0o755, "weir-1.0/part/b": 0o644}
    assert found == {name: (mode, 1700000000, "") for name, mode in modes.items()}


def test_a_build_without_wheel_says_so():
    pytest.importorskip("setuptools")
    code = """
import runpy, sys
sys.modules.update(dict.fromkeys(["setuptools.command.bdist_wheel", "wheel", "wheel.bdist_wheel"]))
runpy.run_path("setup.py")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=parts.ROOT, capture_output=True, text=True)
    line = "weir: the build needs the package wheel, or setuptools 70.1 or later: pip install wheel\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_a_build_without_esbuild_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("WEIR_PAGE", raising=False)
    monkeypatch.setattr(parts, "BUILT_PAGE", str(tmp_path / "nowhere"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert parts.page() == {}
    assert "esbuild was not found: `weir view` will only say so" in capsys.readouterr().err
    monkeypatch.setenv("WEIR_PAGE", str(tmp_path))
    with pytest.raises(SystemExit, match=r"there is no page\.html in it"):
        parts.page()
    (tmp_path / "page.html").write_text("a page")
    assert parts.page() == {"WEIR_PAGE_FILE": tmp_path / "page.html"}


def test_a_build_without_libraries_says_so(monkeypatch, tmp_path, capsys):
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert parts.static_libraries() == {}
    assert capsys.readouterr().err.splitlines() == [
        "weir: zstd.h or libzstd.a was not found: Weir will not read and write .zst files (Debian package: libzstd-dev)",
        "weir: zlib.h or libz.a was not found: Weir will not read .gz files (Debian package: zlib1g-dev)",
        "weir: sqlite3.h or libsqlite3.a was not found: Weir will not export to SQLite (Debian package: libsqlite3-dev)",
    ]


def test_notice_has_all_terms():
    """NOTICE, which is in the wheel, has the terms that debian/copyright quotes, and the other licences."""
    notice, copyright = ((parts.ROOT / name).read_text() for name in ("NOTICE", "debian/copyright"))
    terms = copyright.split("\nLicense: CUDA-libdevice\n")[1].replace("\n .\n", "\n\n").replace("\n ", "\n")[1:]
    assert "1.1.2. Distribution Requirements\n" in terms and terms in notice
    (named,) = re.findall(r'^license = { text = "(.*)" }$', (parts.ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert named.split(" AND ") == ["Apache-2.0", "LicenseRef-CUDA-libdevice", "MIT", "BSD-2-Clause", "BSD-3-Clause"]
    assert "\nMIT licence (" in notice and "\nBSD licence (" in notice and "Apache License 2.0" in notice


def test_the_adapter_is_complete(tmp_path):
    copies = {str(path.relative_to(tmp_path)) for path in parts.copy_adapter(tmp_path)}
    for needed in ("adapters/torch/build.py", "adapters/torch/allocator.cpp", "include/weir/weir.h", "python/frames/walk.c"):
        assert needed in copies


def test_build_without_network(monkeypatch):
    """In the environment that pip makes, setuptools cannot be imported; it is found where it is installed."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import build_backend as b;"
        "print(b.get_requires_for_build_wheel(), b.build_wheel.__name__, hasattr(b, 'prepare_metadata_for_build_wheel'))"
    )
    folder = str(Path(__file__).parents[1])
    pytest.importorskip("wheel")
    bare = subprocess.run([sys.executable, "-S", "-c", "import setuptools"], capture_output=True)
    assert bare.returncode != 0
    done = subprocess.run([sys.executable, "-S", "-c", code, folder], capture_output=True, text=True)
    assert done.stdout == "[] build_wheel True\n", done.stderr
    import build_backend

    monkeypatch.setattr(build_backend, "installed", list)
    assert build_backend.get_requires_for_build_wheel() == ["setuptools>=61", "wheel"]
