"""Compares the recordings of many ranks: `weir digest`, `weir merge` and `weir ranks` as functions.

    import weir.ranks

    print(weir.ranks.compare(weir.ranks.merge(*map(weir.ranks.digest, paths))))

    from distributed import Client
    print(weir.ranks.dask(paths, Client("scheduler:8786")))   # the same on the workers of Dask

A digest is bytes: a line of JSON of at most 100 KB. merge() is associative and commutative, so any engine can run it.
"""

from __future__ import annotations

from weir import _program
from weir.tools import Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from weir._program import Path, Recording

__all__ = ["Comparison", "compare", "dask", "digest", "merge"]


def digest(
    path: Recording, *, rank: int | None = None, role: str | None = None, redact: bool = False, salt: str | None = None
) -> bytes:
    """Summarizes a recording: `weir digest`. One of several devices has a line for each."""
    options = [f"--rank={rank}"] if rank is not None else []
    options += [f"--role={role}"] if role is not None else []
    options += ["--redact"] if redact else []
    options += [f"--salt={salt}"] if salt is not None else []
    return _program.run("digest", options, [path]).output


def merge(*digests: bytes) -> bytes:
    """Unites digests, or unions of digests: `weir merge`. The same bytes, whatever the order and the tree."""
    return _program.run("merge", ["-"], text=b"".join(digests).decode()).output


def compare(digests: bytes, *, ranks: int | None = None, distance: int | None = None, rows: int | None = None) -> Report:
    """Compares ranks by their digests: `weir ranks`. Its exit_code is 3 if a rank is different, missing or ran out of
    memory. `distance` is in percent, `ranks` the number of ranks that the job has, and `rows` limits the text."""
    options = [f"--ranks={ranks}"] if ranks is not None else []
    options += [f"--distance={distance}"] if distance is not None else []
    options += [f"--list={rows}"] if rows is not None else []
    answers = (_program.EXIT_OK, _program.EXIT_SHORT)
    result = _program.run("ranks", [*options, "-"], text=digests.decode(), json=True, answers=answers)
    return Report("ranks", result)


class Comparison(Report):
    """What dask() returns: a report, the union of the digests, and the recordings that have none."""

    def __init__(self, report: Report, digests: bytes, failed: dict[str, str]) -> None:
        self.__dict__.update(report.__dict__)
        self.digests = digests
        self.failed = failed

    def __str__(self) -> str:
        failed = "".join(f"\n  no digest   {path}: {reason}" for path, reason in self.failed.items())
        return super().__str__() + failed


def dask(
    paths: Iterable[Path],
    client: Any = None,
    *,
    fan_in: int = 16,
    retries: int = 3,
    ranks: int | None = None,
    distance: int | None = None,
    rows: int | None = None,
) -> Comparison:
    """Digests the recordings on the workers of Dask, unites `fan_in` digests at a time there, and compares the ranks.

    `client` is a distributed.Client; by default that of this process, or a new one for this machine. The workers must
    have the package and see the paths. What a worker had that dies is done again on another one, up to `retries` times;
    recordings for which there is no digest in the end are in `failed` of the answer, with the reason."""
    from distributed import Client, get_client, wait

    if client is None:
        try:
            client = get_client()
        except ValueError:
            client = Client()
    names = [str(path) for path in paths]
    futures = dict(zip(names, client.map(digest, names, retries=retries, pure=False)))
    wait(list(futures.values()))
    failed = {name: str(future.exception()) for name, future in futures.items() if future.status != "finished"}
    level = [future for future in futures.values() if future.status == "finished"]
    while len(level) > 1:
        groups = [level[i : i + fan_in] for i in range(0, len(level), fan_in)]
        level = [client.submit(merge, *group, retries=retries, pure=False) for group in groups]
    union = level[0].result() if level else b""
    if not union:
        raise _program.ToolError(f"no recording has a digest: {next(iter(failed.values()), 'there is none')}")
    return Comparison(compare(union, ranks=ranks, distance=distance, rows=rows), union, failed)
