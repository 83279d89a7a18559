"""Reports of device memory in reference cycles."""

from __future__ import annotations

import gc
import os
import re

import pytest

import weir
from weir.cycles import observe_tensor_cycles, warn_tensor_cycles


def noop():
    pass


@pytest.fixture
def pages():
    gc.collect()
    found = []
    stop = observe_tensor_cycles(found.append)
    yield found
    stop()
    gc.collect()
    assert gc.get_debug() == 0 and gc.garbage == []


def cycle_with(thing):
    def foo(p):
        if p:
            return foo(not p)
        return thing

    return foo


def test_cycles(pages):
    def create():
        x = weir.buffer(3 * 4 * 4)

        def foo(p):
            if p:
                return foo(not p)
            else:
                return x

        return foo

    before = weir.memory_allocated()
    create()
    assert weir.memory_allocated() > before
    gc.collect()
    noop()  # the report comes with the next call
    (page,) = pages
    assert "weir.Buffer" in page and "test_cycles" in page and "cell_contents" in page
    assert "48 bytes" in page
    assert weir.memory_allocated() == before
    gc.collect()
    noop()
    assert len(pages) == 1


def test_no_report_without_device_memory(pages):
    cycle_with([1, 2, 3])
    cycle_with(weir.host_empty(64))
    kept = cycle_with(weir.buffer(512))
    gc.collect()
    noop()
    assert pages == []
    assert kept(True).nbytes == 512
    del kept
    gc.collect()
    noop()
    assert len(pages) == 1


class Holder:
    pass


def test_references_have_names(pages):
    holder = Holder()
    holder.itself, holder.values = holder, {"weight": [weir.buffer(1024)]}
    del holder
    gc.collect()
    noop()
    (page,) = pages
    for text in ("Holder", "itself", "weight", "[0]", "1024 bytes"):
        assert text in page
    targets, rows = set(re.findall(r"href='#(\w+)'", page)), set(re.findall(r"id='(\w+)'", page))
    assert targets <= rows and len(rows) == 4


def test_stacks_of_the_history(pages):
    weir.memory._record_memory_history("state", stacks="python")
    try:
        cycle_with(weir.buffer(2048))
        gc.collect()
        noop()
    finally:
        weir.memory._record_memory_history(None)
    assert "test_cycles.py" in pages[0] and "test_stacks_of_the_history" in pages[0]


def test_young_generations(pages):
    cycle_with(weir.buffer(512))
    before = weir.memory_allocated()
    gc.collect(0)
    noop()
    assert len(pages) == 1 and weir.memory_allocated() == before - 512


def test_warn_tensor_cycles():
    gc.collect()
    stop = warn_tensor_cycles()
    try:
        cycle_with(weir.buffer(512))
        with pytest.warns(UserWarning, match="Reference cycle includes device memory") as caught:
            gc.collect()
            noop()
    finally:
        stop()
    path = str(caught[0].message).split()[-1]
    with open(path) as file:
        assert "weir.Buffer" in file.read()
    os.remove(path)
