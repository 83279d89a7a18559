"""Tables of predictions, in HTML, for the reports of weir.whatif and weir.tune in notebooks."""

from __future__ import annotations

import html

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _bytes(number: float) -> str:
    """A number of bytes, as the program prints it. So are times and shares."""
    if number < 1024:
        return f"{number} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        number /= 1024
        if number < 1023.995:
            break
    return f"{number:.2f} {unit}"


def _time(ns: float) -> str:
    size, unit = (1e9, "s") if ns >= 1e9 else (1e6, "ms") if ns >= 1e6 else (1e3, "us")
    number = ns / size
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


_FIGURES: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("reserved", "peak_reserved", _bytes),
    ("allocated", "peak_allocated", _bytes),
    ("unused", "fragmentation", _percent),
    ("cost", "cost_ns", _time),
    ("retries", "retries", str),
    ("failed", "failures", str),
)
_MARKS = {"best": "best", "best_moving": "best with Weir's allocator", "recorded": "recorded"}


def _figures(row: dict[str, Any]) -> list[str]:
    """The figures of a prediction. They are ranges if they depend on whether streams were busy."""
    cells = []
    for _, key, text in _FIGURES:
        if key in row:
            ends = sorted({row[key], (row.get("streams_busy") or row)[key]})
            cells.append(" to ".join(dict.fromkeys(text(end) for end in ends)))
    return cells


def _mark(row: dict[str, Any], data: dict[str, Any]) -> str:
    if row["recorded"] and "is_recording" in row:
        return "recorded" if row["is_recording"] else "recorded, replayed"
    return ", ".join(mark for key, mark in _MARKS.items() if data.get(key) == row)


def predictions(data: dict[str, Any]) -> str:
    """The table of what `weir whatif --json` or `weir tune --json` prints."""
    rows: list[dict[str, Any]] = [*(data["predictions"] if "predictions" in data else data["front"])]
    rows += [data[key] for key in _MARKS if data.get(key) and data[key] not in rows]
    lines: list[list[str]] = []
    for row in rows:
        cells = [_mark(row, data), *_figures(row), row["conf"] or "(defaults)"]
        # The replay of a recording that it reproduces says nothing new.
        if not (cells[0] == "recorded, replayed" and lines and lines[-1][1:] == cells[1:]):
            lines.append(cells)
    titles = ["", *(title for title, key, _ in _FIGURES if key in rows[0]), "settings"]

    def line(tag: str, cells: list[str]) -> str:
        sides = ["left", *["right"] * (len(cells) - 2), "left"]
        style = "white-space:nowrap; padding:0.1em 0.7em; text-align:"
        made = (f'<{tag} style="{style}{side}">{html.escape(cell)}</{tag}>' for side, cell in zip(sides, cells))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line("td", cells) for cells in lines)
    return f"<table><thead>{line('th', titles)}</thead><tbody>{body}</tbody></table>"
