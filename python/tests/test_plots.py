"""Pictures and texts of snapshots: the names of torch.cuda._memory_viz."""

from __future__ import annotations

import os
import pickle
import re
import xml.etree.ElementTree as xml

import pytest
import weir
from weir import _memory_viz as viz

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def snapshot():
    """A snapshot with a history, a block in use and a hole."""
    weir.memory.empty_cache()
    weir.memory._record_memory_history(stacks="python")
    try:
        first = weir.buffer(3 << 20)
        second = weir.buffer(5 << 20)
        del first
        yield weir.memory._snapshot()
        del second
    finally:
        weir.memory._record_memory_history(None)


def pictures(text):
    """The pictures of a page, parsed."""
    assert "<script" not in text and not re.search(r'(src|href)="', text)
    return [xml.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]


def test_save_memory_usage(snapshot, tmp_path):
    file = tmp_path / "out.svg"
    weir.memory._save_memory_usage(file, snapshot)
    root = xml.parse(file).getroot()
    assert root.tag == SVG + "svg" and root.get("data-kind") == "memory"
    assert int(root.get("data-entries")) == len(snapshot["device_traces"][0])
    assert "snapshot" in file.read_text() or "test_plots.py" in file.read_text()  # the stacks of this file
    assert os.listdir(tmp_path) == ["out.svg"]


def test_save_segment_usage(snapshot, tmp_path):
    file = tmp_path / "out.svg"
    weir.memory._save_segment_usage(str(file), snapshot)
    group = xml.parse(file).getroot().find(f"{SVG}g[@class='map']")
    device = [s for s in snapshot["segments"] if s["device"] == 0]
    assert int(group.get("data-reserved")) == sum(s["total_size"] for s in device)
    assert int(group.get("data-segments")) == len(device)


def test_save_now(tmp_path, monkeypatch):
    """The default is a snapshot of this moment, and output.svg. Without a history there is still a map."""
    monkeypatch.chdir(tmp_path)
    block = weir.buffer(1 << 20)
    weir.memory._save_segment_usage()
    weir.memory._save_memory_usage("memory.svg")
    assert xml.parse("output.svg").getroot().get("data-kind") == "segments"
    assert xml.parse("memory.svg").getroot().get("data-kind") == "segments"
    del block


def test_save_fails(snapshot, tmp_path):
    with pytest.raises(OSError):
        weir.memory._save_memory_usage(tmp_path / "no" / "out.svg", snapshot)
    with pytest.raises(ValueError, match="segments"):
        weir.memory._save_memory_usage(tmp_path / "out.svg", {"segments": 5, "device_traces": []})
    assert os.listdir(tmp_path) == []


def test_plot(snapshot):
    for kind in ("memory", "segments", "trace", "fragmentation"):
        root = xml.fromstring(viz.plot(snapshot, kind, width=500, height=340, dark=True, title="<&>"))
        assert root.get("width") == "500" and root.find(SVG + "title").text == "<&>"
    with pytest.raises(ValueError, match="there is no kind 'pie'"):
        viz.plot(snapshot, "pie")
    with pytest.raises(ValueError, match="there is no entry 1000000"):
        viz.plot(snapshot, "segments", at="event", event=1000000)
    with pytest.raises(RuntimeError, match="device 17"):
        viz.plot(snapshot, device=17)


def test_pages(snapshot):
    assert [p.get("data-kind") for p in pictures(viz.segment_plot(snapshot))] == ["segments", "segments"]
    assert [p.get("data-kind") for p in pictures(viz.segment_plot(snapshot["segments"]))] == ["segments"]
    assert [p.get("data-kind") for p in pictures(viz.trace_plot(snapshot, device=0))] == ["memory", "trace"]
    assert [p.get("data-kind") for p in pictures(viz.trace_plot(snapshot, plot_segments=True))] == ["fragmentation"]
    assert [p.get("data-kind") for p in pictures(viz.profile_plot(snapshot))] == ["memory"]


def test_texts(snapshot):
    def total(text):
        return sum(int(line.rpartition(" ")[2]) for line in text.splitlines())

    reserved = sum(s["total_size"] for s in snapshot["segments"])
    assert total(viz.segments(snapshot)) == reserved
    assert total(viz.memory(snapshot)) == reserved
    assert "snapshot (test_plots.py:" in viz.memory(snapshot)
    assert viz.memory(snapshot, format_flamegraph=len) == len(viz.memory(snapshot))
    assert viz.compare(snapshot, snapshot) == ""
    assert total(viz.compare({"segments": []}, snapshot)) == reserved
    lines = viz.segsum(snapshot).splitlines()
    assert len(lines) == len(snapshot["segments"]) + 1
    assert any(re.search(r"\[#+\.*\]|\[\.+#+\.*\]", line) for line in lines), lines
    entries = viz.trace(snapshot).splitlines()
    assert len(entries) == sum(len(t) + 1 for t in snapshot["device_traces"] if t)
    assert any(" alloc " in line and "5.0 MiB" in line for line in entries)
    broken = pickle.loads(pickle.dumps(snapshot))
    broken["segments"][0]["total_size"] += 512
    with pytest.raises(ValueError, match="expected"):
        viz.segsum(broken)
