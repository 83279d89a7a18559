"""Writes a source archive whose bytes depend on names, contents and a given time alone."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from typing import Union

    AnyPath = Union[str, os.PathLike[str]]


def write(archive: AnyPath, folder: AnyPath, time: int) -> None:
    """Packs a folder into a .tar.gz. Files have one time and no owner, and whether they can be run is all that is kept
    of their modes."""
    top = Path(folder)

    def normalize(item: tarfile.TarInfo) -> tarfile.TarInfo:
        item.mtime, item.uid, item.gid, item.uname, item.gname = time, 0, 0, "", ""
        item.mode = 0o755 if item.isdir() or item.mode & 0o100 else 0o644
        return item

    with open(archive, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(top, top.name, filter=normalize)  # in the order of names
