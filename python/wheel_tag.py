#!/usr/bin/env python3
"""The platform tag of a wheel, from what its ELF files need.

    python3 python/wheel_tag.py FILE.whl|FOLDER

prints the tag, and on stderr the file that decides it. The tag is manylinux_X_Y_ARCH for the highest version X.Y of
glibc whose symbols any file uses (readelf -V), if no file needs a library beyond those of glibc (readelf -d); otherwise
pip may install the wheel only where it was built, and the tag is linux_ARCH. readelf is a part of binutils.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

GLIBC = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|ld-linux.*\.so\.\d+")
OWN = re.compile(r"libweir\w*\.so\.\d+|_weir\..*\.so")  # in the wheel itself


def readelf(option: str, path: Path) -> str:
    try:
        done = subprocess.run(["readelf", option, "-W", str(path)], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise SystemExit("weir: readelf was not found; it is a part of binutils") from None
    return done.stdout


def elf_files(folder: Path) -> list[Path]:
    def is_elf(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"

    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path))


def needed(path: Path) -> list[str]:
    """The libraries that a file needs."""
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", readelf("-d", path))


def glibc_of(path: Path) -> tuple[int, int]:
    """The highest version of glibc whose symbols a file uses."""
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("-V", path))
    return max(((int(major), int(minor)) for major, minor in versions), default=(2, 0))


def of_folder(folder: Path, platform: str) -> str:
    """The tag for an unpacked wheel. `platform` is that of the machine, such as linux_x86_64."""
    if not platform.startswith("linux_"):
        return platform
    files = elf_files(folder)
    for path in files:
        foreign = [name for name in needed(path) if not GLIBC.fullmatch(name) and not OWN.fullmatch(name)]
        if foreign:
            print(f"weir: {path.name} needs {', '.join(foreign)}: the wheel is for this machine only", file=sys.stderr)
            return platform
    if not files:
        return platform
    (major, minor), decides = max((glibc_of(path), path.name) for path in files)
    print(f"weir: {decides} needs glibc {major}.{minor}", file=sys.stderr)
    return platform.replace("linux_", f"manylinux_{major}_{minor}_", 1)


def main() -> None:
    path = Path(sys.argv[1])
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if path.is_dir():
        print(of_folder(path, platform))
        return
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(path).extractall(folder)
        print(of_folder(Path(folder), platform))


if __name__ == "__main__":
    main()
