"""Pictures and texts of a snapshot, with the names of torch.cuda._memory_viz.

A snapshot is what weir.memory._snapshot() or torch.cuda.memory._snapshot() returns. Pages are self-contained: they hold
SVG pictures, no scripts, and load nothing. The program `weir` draws the same pictures: weir plot.
"""

from __future__ import annotations

import html
import os
import pickle
import tempfile

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Snapshot = dict[str, Any]
    Format = Callable[[str], str]

__all__ = [
    "compare",
    "memory",
    "plot",
    "profile_plot",
    "save",
    "segment_plot",
    "segments",
    "segsum",
    "trace",
    "trace_plot",
]


def plot(snapshot: Snapshot, kind: str = "memory", **options: Any) -> str:
    """Draws a snapshot as an SVG document.

    Args:
        snapshot: a dict with "segments" and, unless `kind` is "segments", "device_traces".
        kind: "memory" (in use over time), "segments" (the map at a moment), "trace" (each block over time and
            addresses) or "fragmentation".
        by: how blocks are grouped: "auto", "stack", "class", "size", "stream" or "pool".
        at: the moment of "segments": "auto", "oom", "peak", "end", or "event" with `event`.
        device: the number of a device; by default the first that ran out of memory, else the first with a history.
        width, height: in pixels.
        dark: light on dark.
        title: replaces the title.
    """
    if options.get("device") is None:
        options.pop("device", None)
    return _weir._plot(pickle.dumps(_whole(snapshot)), kind=kind, **options)


def _whole(snapshot: Snapshot | list[dict[str, Any]]) -> Snapshot:
    """A bare list of segments is a snapshot without a history."""
    return snapshot if isinstance(snapshot, dict) else {"segments": snapshot, "device_traces": []}


def _has_history(snapshot: Snapshot, device: int | None = None) -> bool:
    traces = _whole(snapshot).get("device_traces", [])
    return any(traces) if device is None else device < len(traces) and bool(traces[device])


def save(text: str, filename: str | os.PathLike[str]) -> None:
    """Writes a file that appears complete or not at all."""
    folder = os.path.dirname(os.path.abspath(filename))
    number, temporary = tempfile.mkstemp(dir=folder, prefix=".weir-", suffix=".part")
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, filename)
    except BaseException:
        os.unlink(temporary)
        raise


# ---- Pages ----

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ margin: 2em auto; max-width: 1240px; padding: 0 1em; font: 15px system-ui, sans-serif; color: #1b1f24; background: #fff }}
h1 {{ font-size: 1.4em }}
figure {{ margin: 0 0 2em }}
svg {{ width: 100%; height: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
{figures}
</body>
</html>
"""


def _page(title: str, pictures: Iterable[str]) -> str:
    figures = "\n".join(f"<figure>\n{picture}</figure>" for picture in pictures)
    return _PAGE.format(title=html.escape(title), figures=figures)


def segment_plot(data: Snapshot, device: int | None = None) -> str:
    """Returns a page with the map of segments at the end, and at the peak if there is a history."""
    pictures = [plot(data, "segments", at="end", device=device, title="Segments at the end")]
    if _has_history(data, device):
        pictures.append(plot(data, "segments", at="peak", device=device, title="Segments at the peak"))
    return _page("Segments", pictures)


def trace_plot(data: Snapshot, device: int | None = None, plot_segments: bool = False) -> str:
    """Returns a page with memory over time and with blocks over time and addresses.

    Args:
        data: a snapshot with a history.
        device: the number of a device.
        plot_segments: shows reserved memory and its fragmentation instead.
    """
    kinds = ["fragmentation"] if plot_segments else ["memory", "trace"]
    return _page("Memory over time", [plot(data, kind, device=device) for kind in kinds])


def profile_plot(profile: Snapshot, device: int | None = None) -> str:
    """Returns a page with memory over time by class: weights, gradients, optimizer state, activations, temporary.

    PyTorch's function of this name takes a profile, whose categories it draws. Here the classes follow from the history
    of a snapshot; see docs/tools/explain.md.
    """
    return _page("Memory over time by class", [plot(profile, "memory", by="class", device=device)])


# ---- Texts ----


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number /= 1024
    else:
        unit = "TiB"
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"


def _frame(frame: dict[str, Any]) -> str:
    name = f"{frame['name']} ({os.path.basename(frame['filename'])}:{frame['line']})"
    return name.replace(";", ":").replace("\n", " ")


def _stack(frames: list[dict[str, Any]]) -> str:
    """From the outermost frame to the innermost, as flame graphs have it."""
    return ";".join(_frame(frame) for frame in reversed(frames)) if frames else "no stack recorded"


def _lines(sums: dict[str, int]) -> str:
    return "".join(f"{stack} {count}\n" for stack, count in sorted(sums.items()))


def _blocks(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    address = segment["address"]
    for block in segment["blocks"]:
        yield {"address": address, **block}
        address += block["size"]


def segments(snapshot: Snapshot, format_flamegraph: Format = str) -> str:
    """Returns reserved bytes by stream and state, and for blocks in use by stack, as collapsed stacks.

    Args:
        snapshot: a snapshot.
        format_flamegraph: is given the text; its result is returned.
    """
    sums: dict[str, int] = {}
    for segment in _whole(snapshot)["segments"]:
        for block in segment["blocks"]:
            key = f"stream {segment['stream']};segment at {segment['address']:#x};{block['state']}"
            if block["state"] != "inactive":
                key += ";" + _stack(block.get("frames", []))
            sums[key] = sums.get(key, 0) + block["size"]
    return format_flamegraph(_lines(sums))


def memory(snapshot: Snapshot, format_flamegraph: Format = str) -> str:
    """Returns the bytes in use by stream and stack, and what is free, as collapsed stacks."""
    sums: dict[str, int] = {}
    for segment in _whole(snapshot)["segments"]:
        for block in segment["blocks"]:
            used = block["requested_size"] if block["state"] != "inactive" else 0
            for state, count in ((block["state"], used), ("inactive", block["size"] - used)):
                key = f"stream {segment['stream']};{state}"
                if state != "inactive":
                    key += ";" + _stack(block.get("frames", []))
                if count:
                    sums[key] = sums.get(key, 0) + count
    return format_flamegraph(_lines(sums))


def compare(before: Snapshot, after: Snapshot, format_flamegraph: Format = str) -> str:
    """Returns the segments that only one of two snapshots has, as collapsed stacks."""

    def keyed(snapshot: Snapshot) -> dict[tuple[int, int, int], dict[str, Any]]:
        return {(s["device"], s["address"], s["total_size"]): s for s in _whole(snapshot)["segments"]}

    first, second = keyed(before), keyed(after)
    sums: dict[str, int] = {}
    for name, only in (("only before", first.keys() - second.keys()), ("only after", second.keys() - first.keys())):
        for key in only:
            segment = (first if name == "only before" else second)[key]
            stack = f"{name};stream {segment['stream']};{_stack(segment.get('frames', []))}"
            sums[stack] = sums.get(stack, 0) + segment["total_size"]
    return format_flamegraph(_lines(sums))


def segsum(data: Snapshot) -> str:
    """Returns a line for each segment with a bar that shows what is in use (#), freed and still used by a stream (+),
    lost to rounding (~), and free (.), and the sums.
    """
    width = 64
    out = []
    totals = {"#": 0, "+": 0, "~": 0, ".": 0}
    for segment in sorted(_whole(data)["segments"], key=lambda s: (s["device"], -s["total_size"], s["address"])):
        size = segment["total_size"]
        cells = [dict.fromkeys(totals, 0.0) for _ in range(width)]
        sums = dict.fromkeys(totals, 0)
        at = 0
        for block in segment["blocks"]:
            used = block["requested_size"]
            if block["state"] == "inactive":
                parts = [(".", block["size"])]
            elif block["state"] == "active_allocated":
                parts = [("#", used), ("~", block["size"] - used)]
            else:
                parts = [("+", block["size"])]
            for mark, count in parts:
                sums[mark] += count
                begin, end = at * width / size, (at + count) * width / size
                for cell in range(int(begin), min(width, int(end) + 1)):
                    cells[cell][mark] += max(0.0, min(end, cell + 1) - max(begin, cell))
                at += count
        if at != size:
            raise ValueError(f"the blocks of the segment at {segment['address']:#x} have {at} bytes, expected {size}")
        for mark, count in sums.items():
            totals[mark] += count
        bar = "".join(max(cell, key=lambda mark: cell[mark]) for cell in cells)
        where = f"device {segment['device']}, stream {segment['stream']}"
        out.append(f"{_size(size):>10}  [{bar}]  {_size(sums['#']):>10} in use, {_size(sums['.']):>10} free  {where}")
    out.append(
        f"{_size(sum(totals.values())):>10}  in all: {_size(totals['#'])} in use, {_size(totals['+'])} waiting for "
        f"streams, {_size(totals['~'])} rounding, {_size(totals['.'])} free"
    )
    return "\n".join(out) + "\n"


def trace(data: Snapshot) -> str:
    """Returns the history as text, a line for each entry, with the memory in use and reserved after it.

    Both begin at 0, so they are relative if the recording began late.
    """
    out = []
    for device, entries in enumerate(_whole(data).get("device_traces", [])):
        if entries:
            out.append(f"device {device}: {len(entries)} entries")
        used = reserved = 0
        for number, entry in enumerate(entries):
            action, size = entry["action"], entry["size"]
            used += size if action == "alloc" else -size if action == "free_requested" else 0
            reserved += size if action in ("segment_alloc", "segment_map") else 0
            reserved -= size if action in ("segment_free", "segment_unmap") else 0
            where = f"{entry['device_free']} bytes free" if action == "oom" else f"{entry['addr']:#x}"
            frames = entry.get("frames") or []
            out.append(
                f"{number:>8}  {action:<16} {_size(size):>10}  {where:<18} {_size(used):>10} in use of "
                f"{_size(reserved):>10}" + (f"  {_frame(frames[0])}" if frames else "")
            )
    return "\n".join(out) + "\n" if out else ""
