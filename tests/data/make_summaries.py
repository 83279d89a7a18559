"""make_summaries.py: writes summary_*.txt here.

They contain what memory_summary() prints for the counters of test_summary.c, with Weir's name. The table is 75
characters wide; a size has 6 digits and a unit, a count 7 digits and a unit; the unit is the smallest in which the
first line of a metric is below 768 * 1024 bytes, or 750 * 1000; numbers are rounded down.
"""
import os

METRICS = [
    ("Allocated memory", "size"), ("Active memory", "size"), ("Requested memory", "size"),
    ("GPU reserved memory", "size"), ("Non-releasable memory", "size"), ("Allocations", "count"),
    ("Active allocs", "count"), ("GPU reserved segments", "count"), ("Non-releasable allocs", "count"),
    ("Oversize allocations", "count"), ("Oversize GPU segments", "count"),
]
ONE_LINE = 9  # metrics from here on have no pools
UNITS = {"size": (["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, 768 * 1024, 6),
         "count": ([" ", "K", "M"], 1000, 750 * 1000, 7)}


def number(kind, value, measure):
    units, step, limit, width = UNITS[kind]
    unit = 0
    while unit + 1 < len(units) and measure >= limit:
        unit, value, measure = unit + 1, value // step, measure / step
    return f"{value:{width}d} {units[unit]}" + (" " if kind == "count" else "")


def grown(metric, pool, column):
    return 3 ** (2 * metric + column + 1) * (7, 2, 5)[pool]


def edge(metric, pool, column):
    limit = 768 * 1024 if metric < 5 else 750 * 1000
    step = 1024 if metric < 5 else 1000
    return (limit * step ** (metric % 4)) - (pool + column + metric) % 2


def table(value, device, ooms, retries, abbreviated):
    lines = ["=" * 75,
             " " + " " * 16 + " Weir CUDA memory summary, device ID " + str(device).ljust(20) + " ",
             "-" * 75,
             "  " + " " * 9 + " CUDA OOMs: " + str(ooms).ljust(12) + " | " + " " * 6 + " cudaMalloc retries: " +
             str(retries).ljust(8) + "  ",
             "=" * 75,
             "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  "]
    for i, (title, kind) in enumerate(METRICS):
        lines.append("-" * 75)
        rows = [(title, 0)]
        if i < ONE_LINE and not abbreviated:
            rows += [("      from large pool", 2), ("      from small pool", 1)]
        for name, pool in rows:
            cells = [number(kind, value(i, pool, c), value(i, 0, c)) for c in range(4)]
            lines.append(f" {name:<21} | " + " | ".join(cells) + " ")
    lines.append("=" * 75)
    return "".join(f"|{line}|\n" for line in lines)


here = os.path.dirname(os.path.abspath(__file__))
for name, text in [("full", table(grown, 3, 2, 12345678, False)), ("abbreviated", table(grown, 3, 2, 12345678, True)),
                   ("edges", table(edge, 0, 0, 0, False)), ("zero", table(lambda *_: 0, 15, 0, 0, False))]:
    with open(os.path.join(here, f"summary_{name}.txt"), "w", encoding="ascii") as file:
        file.write(text)
