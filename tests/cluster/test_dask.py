#!/usr/bin/env python3
"""weir.ranks on this machine, and on Dask with three workers, one of which is killed in the middle.

    test_dask.py MAKE_RANK
"""
import os
import subprocess
import sys
import tempfile
import threading
import time

import weir.ranks

RANKS, ENTRIES, SEED = 48, 40000, 21
WAIVED = 77


def make(folder, make_rank):
    paths = []
    for rank in range(RANKS):
        paths.append(os.path.join(folder, f"rank{rank}.ring"))
        with open(paths[-1], "wb") as file:
            subprocess.run([make_rank, str(RANKS), str(ENTRIES), str(SEED), str(rank)], stdout=file, check=True)
    truth = subprocess.run([make_rank, str(RANKS), str(ENTRIES), str(SEED), "truth"], capture_output=True, text=True)
    planted = [line.split() for line in truth.stdout.splitlines()]
    return paths, planted


def check(report, planted):
    outliers = {o["rank"] for o in report["outliers"]}
    assert outliers == {int(rank) for rank, kind, *_ in planted if kind != "divergence"}, outliers
    partings = {p["rank"] for p in report["partings"]}
    assert partings == {int(rank) for rank, kind, *_ in planted if kind == "divergence"}, partings


def test_functions(paths, planted):
    digests = [weir.ranks.digest(path) for path in paths]
    union = weir.ranks.merge(*digests)
    half = weir.ranks.merge(*digests[::2])
    assert weir.ranks.merge(weir.ranks.merge(*digests[1::2]), half, half) == union
    report = weir.ranks.compare(union)
    check(report, planted)
    assert report.exit_code == 3 and str(report).startswith(f"{RANKS} digests"), report
    assert b'"text"' not in weir.ranks.digest(paths[0], redact=True, salt="x")
    assert b'"rank":7,' in weir.ranks.digest(paths[0], rank=7, role="x")
    return union


def kill_one(client, killed):
    """Kills a worker as soon as it has a digest, which is lost with it."""
    while not killed:
        has = [worker for worker, keys in client.has_what().items() if keys]
        if has:
            killed.append(client.run(os.getpid)[has[0]])
            os.kill(killed[0], 9)
        time.sleep(0.01)


def test_dask(paths, planted, union):
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            killed = []
            killer = threading.Thread(target=kill_one, args=(client, killed), daemon=True)
            killer.start()
            found = weir.ranks.dask(paths, client, fan_in=5)
            killer.join(10)
            assert killed, "no worker was killed"
            assert found.digests == union and not found.failed, found.failed
            check(found, planted)
            print(f"dask: {RANKS} ranks, worker {killed[0]} was killed, the union is that of one process")
            # A recording that cannot be read is named, and its rank is missing.
            with open(paths[3], "wb") as file:
                file.write(b"damaged")
            found = weir.ranks.dask(paths, client, ranks=RANKS)
            assert list(found.failed) == [paths[3]] and found["missing"] == [3], (found.failed, found["missing"])
            assert "no digest" in str(found), found


def main():
    if os.environ.get("WEIR_TEST_LONG") != "1":
        print("waived: WEIR_TEST_LONG is not 1")
        return WAIVED
    with tempfile.TemporaryDirectory() as folder:
        paths, planted = make(folder, sys.argv[1])
        union = test_functions(paths, planted)
        try:
            import distributed  # noqa: F401
        except ImportError:
            print("waived: there is no Dask (Debian: python3-distributed)")
            return WAIVED
        test_dask(paths, planted, union)
    return 0


if __name__ == "__main__":
    sys.exit(main())
