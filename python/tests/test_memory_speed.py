"""Loose bounds that reveal a tenfold slowdown even on a busy machine. bench/python.py measures the real numbers."""

from __future__ import annotations

import time

import pytest
import weir
from conftest import is_sanitized
from memory_tools import clean
from weir import _weir

pytestmark = pytest.mark.skipif(is_sanitized, reason="the sanitizer is slow")


def best(function, repeats, rounds=7):
    times = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            function()
        times.append((time.perf_counter_ns() - begin) / repeats)
    return min(times)


@pytest.fixture(autouse=True)
def cleaned():
    clean()


def test_empty_and_release():
    weir.buffer(4096)
    assert best(lambda: weir.buffer(4096), 2000) < 20_000


def test_memory_stats():
    assert best(weir.memory_stats, 200) < 200_000


def test_stack_of_ten_frames():
    def deep(n):
        return _weir._time_frames(2000) if n == 0 else deep(n - 1)

    assert min(deep(9) for _ in range(5)) < 10_000
