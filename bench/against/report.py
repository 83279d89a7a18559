"""The tables, the picture and the section of docs/evidence/benchmarks.md that bench/all makes from its JSON file."""
import html
import math
import os
import re

from contestants import TITLES
from rows import GROUPS

BEGIN, END = "<!-- bench/all: begin -->", "<!-- bench/all: end -->"
# The contestants that stand for a package which may not be installed.
PACKAGES = ("torch", "cupy", "rmm", "mimalloc")
# The last column of a table has the ratio of the first of these pairs that was measured.
PAIRS = (("torch", "torch_weir"), ("torch", "weir"))


def number(value):
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 3)}f}"


def cell(result):
    """The text of a cell: the median and the range, or why there is none."""
    if "median" in result:
        least, median, most = (number(result[name]) for name in ("least", "median", "most"))
        return median if least == most else f"{median} ({least} to {most})"
    if "failed" in result:
        return "failed"
    return "not installed" if result.get("absent", "").startswith("not installed") else "-"


def ordered(data):
    """(group, [(key, row)]) for each group with rows, in the order of the tables."""
    for group in GROUPS:
        rows = [(key, row) for key, row in data["rows"].items() if row["group"] == group]
        if rows:
            yield group, rows


def has_numbers(row):
    return any("median" in result for result in row["results"].values())


def has_failures(row):
    return any("failed" in result for result in row["results"].values())


def ratio_of(rows):
    """The first pair of contestants that both have numbers in these rows."""
    for top, bottom in PAIRS:
        if any("median" in row["results"].get(top, {}) and "median" in row["results"].get(bottom, {})
               for _, row in rows):
            return top, bottom
    return None


def table(group, rows):
    """A table in Markdown. Each package that is not installed has one column that says so."""
    keys = []
    for key in TITLES:
        cells = [row["results"][key] for _, row in rows if key in row["results"]]
        missing = key in PACKAGES and any(cell(one) == "not installed" for one in cells)
        if missing or any("median" in one or "failed" in one for one in cells):
            keys.append(key)
    pair = ratio_of(rows) if GROUPS[group][1] == "ns" else None
    head = ["", *(TITLES[key] for key in keys)]
    if pair:
        head.append(f"{TITLES[pair[0]]} / {TITLES[pair[1]]}")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for _, row in rows:
        cells = [row["title"], *(cell(row["results"].get(key, {})) for key in keys)]
        if pair:
            top, bottom = (row["results"].get(key, {}).get("median") for key in pair)
            cells.append(number(top / bottom) if top and bottom else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def reasons(data):
    """Why contestants are missing, and what failed, a line each."""
    found, lines = {}, []
    for key, row in data["rows"].items():
        for contestant, result in row["results"].items():
            why = result.get("failed") or result.get("absent")
            if why and why != "does not have it":
                name = key.removesuffix("." + row["group"])  # a job has several rows
                found.setdefault((contestant, "failed" if "failed" in result else "absent", why), {})[name] = None
    for (contestant, what, why), keys in found.items():
        where = f"failed in {', '.join(f'`{key}`' for key in keys)}: " if what == "failed" else ""
        lines.append(f"- {TITLES[contestant]}: {where}{why.replace('|', '/')}")
    return list(dict.fromkeys(lines))


def machine_lines(data):
    machine, versions = data["machine"], data["versions"]
    gpu = "no GPU: Weir runs on its software device"
    if machine["gpu"]:
        driver = f", driver {machine['driver']}" if machine["driver"] else ""
        gpu = f"{machine['gpu']} ({machine['gpu_memory']}{driver})"
    named = {"weir": "Weir", "torch": "PyTorch", "cuda": "CUDA", "cupy": "CuPy", "rmm": "RMM", "mimalloc": "mimalloc",
             "glibc": "glibc", "python": "Python"}
    present = ", ".join(f"{title} {versions[key]}" for key, title in named.items() if versions.get(key))
    system = re.sub(r"^(\w+ \d+\.\d+).*", r"\1", machine["system"])  # the rest is about one machine
    text = [f"{gpu}; {machine['cpu']}, {machine['cores']} cores; {system}; {present}."]
    if data["quick"]:
        text.append("Measured with `--quick`: these numbers are rough.")
    return text


def markdown(data, picture=None):
    """Everything as Markdown."""
    lines = [*machine_lines(data), ""]
    if picture:
        lines += [f"![times of an allocation and its free, and the fragmentation of jobs]({picture})", ""]
    lines += ["Each cell has the median of the rounds and, in parentheses, the range. The allocators take turns.", ""]
    for group, rows in ordered(data):
        rows = [(key, row) for key, row in rows if has_numbers(row) or has_failures(row)]
        if rows:
            title, unit, what = GROUPS[group]
            lines += [f"**{title}, {unit}.** {what}", "", *table(group, rows), ""]
    notes = reasons(data)
    if notes:
        lines += ["Not measured:", "", *notes, ""]
    return "\n".join(lines)


# ---- The picture ----

COLORS = {  # light, dark
    "torch": ("#d1495b", "#ff7b8a"), "torch_expandable": ("#e58c3a", "#ffb066"), "torch_async": ("#a8791c", "#e3bf57"),
    "torch_weir": ("#1d7a8c", "#4cc3d9"), "torch_weir_moving": ("#3b9b6a", "#6fdca0"), "cupy": ("#8a5bb0", "#c39be6"),
    "cupy_weir": ("#5b6fb0", "#9db1f2"), "rmm": ("#77a12e", "#b5dd6b"), "weir": ("#0b4f9c", "#6ea8fe"),
    "weir_moving": ("#0d8f7f", "#48d6c4"), "mimalloc": ("#6b6b6b", "#b0b0b0"), "malloc": ("#9a9a9a", "#808080"),
}
PICTURE_ROWS = {  # and what is written before their titles
    "pairs.512B": "", "live.1000_1MiB": "", "live.20000_1MiB": "", "threads.1": "", "threads.16": "",
    "history.entries": "with history, ", "python.pair_4KiB": "from Python: ", "pinned.64KiB": "pinned: ",
}
WIDTH, LABEL, RIGHT, LINE = 960, 270, 30, 26


def shown(data, keys):
    rows = [(key, data["rows"][key]) for key in keys if key in data["rows"] and has_numbers(data["rows"][key])]
    found = [key for key in TITLES if any("median" in row["results"].get(key, {}) for _, row in rows)]
    return rows, found


def text(x, y, words, kind="", anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{html.escape(words)}</text>'


class Axis:
    """Positions of values from least to most, logarithmic or linear from zero."""

    def __init__(self, values, logarithmic):
        self.logarithmic = logarithmic
        if logarithmic:
            self.low = math.floor(math.log10(min(values)))
            self.high = max(self.low + 1, math.ceil(math.log10(max(values))))
        else:
            self.low, self.high = 0, max(max(values) * 1.05, 1e-9)

    def at(self, value):
        value = math.log10(value) if self.logarithmic else value
        return LABEL + (WIDTH - LABEL - RIGHT) * (value - self.low) / (self.high - self.low)

    def ticks(self):
        if self.logarithmic:
            return [10.0**power for power in range(self.low, self.high + 1)]
        step = 10 ** math.floor(math.log10(self.high))
        while self.high / step < 4:
            step /= 2
        return [i * step for i in range(int(self.high / step) + 1)]


def with_unit(value, unit):
    for larger in ("µs", "ms") if unit == "ns" else ():
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:g} {unit}"


def panel(y, title, rows, keys, unit, logarithmic):
    """A line for each row, with a dot for each contestant and a stroke for the range. Returns the next y, and SVG."""
    results = [row["results"][key] for _, row in rows for key in keys if "median" in row["results"].get(key, {})]
    values = [max(result[name], 1e-3) for result in results for name in ("least", "most")]
    axis, parts = Axis(values, logarithmic), [text(16, y, title, "title")]
    top, bottom = y + 18, y + 18 + LINE * len(rows)
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="grid"/>')
        parts.append(text(x, bottom + 16, with_unit(tick, unit), "tick", "middle"))
    for index, (name, row) in enumerate(rows):
        middle = top + LINE * index + LINE / 2
        label = PICTURE_ROWS.get(name, "") + row["title"].replace("`", "")
        parts.append(text(LABEL - 12, middle + 4, label, "label", "end"))
        for key in sorted(keys, key=lambda key: "weir" in key):
            result = row["results"].get(key, {})
            if "median" not in result:
                continue
            least, at, most = (axis.at(max(result[name], 1e-3)) for name in ("least", "median", "most"))
            parts.append(f'<line x1="{least:.1f}" x2="{most:.1f}" y1="{middle}" y2="{middle}" class="range {key}"/>')
            radius = 4 if "weir" in key else 6  # equal values stay visible, since Weir's are drawn later
            hint = html.escape(f"{TITLES[key]}: {cell(result)} {unit}")
            circle = f'<circle cx="{at:.1f}" cy="{middle}" r="{radius}" class="{key}">'
            parts.append(f"{circle}<title>{hint}</title></circle>")
    return bottom + 52, parts


def legend(y, keys):
    parts, x = [], 16
    for key in keys:
        width = 26 + 7.2 * len(TITLES[key])
        if x + width > WIDTH - 16:
            x, y = 16, y + 20
        parts.append(f'<circle cx="{x + 6}" cy="{y - 4}" r="5" class="{key}"/>' + text(x + 16, y, TITLES[key], "label"))
        x += width
    return y + 30, parts


def svg(data):
    """A picture with the colours of a light or a dark page."""
    panels = []
    times, with_times = shown(data, PICTURE_ROWS)
    jobs, with_jobs = shown(data, [key for key, row in data["rows"].items() if row["group"] == "fragmentation"])
    keys = [key for key in TITLES if key in with_times or key in with_jobs]
    y, parts = legend(30, keys)
    if times:
        panels.append(("Time of an allocation and its free (logarithmic)", times, with_times, "ns", True))
    if jobs:
        title = "Fragmentation of whole jobs: reserved memory that was not allocated"
        panels.append((title, jobs, with_jobs, "%", False))
    for title, rows, found, unit, logarithmic in panels:
        y, more = panel(y + 8, title, rows, found, unit, logarithmic)
        parts += more
    machine = data["machine"]
    where = f"{machine['gpu'] or 'software device'}; {machine['cpu']}, {machine['cores']} cores"
    parts.append(text(16, y, where, "tick"))
    light = "".join(f".{key}{{fill:{COLORS[key][0]};stroke:{COLORS[key][0]}}}" for key in keys)
    dark = "".join(f".{key}{{fill:{COLORS[key][1]};stroke:{COLORS[key][1]}}}" for key in keys)
    style = ("text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}"
             ".tick{font-size:11px;fill:#57606a}.grid{stroke:#d0d7de}.back{fill:#ffffff}"
             f"circle{{stroke-width:0;fill-opacity:.9}}.range{{stroke-width:3;stroke-opacity:.45}}{light}"
             "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.tick{fill:#9198a1}.grid{stroke:#30363d}"
             f".back{{fill:#0d1117}}{dark}}}")
    height = y + 14
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
                      f'height="{height:.0f}" role="img">', f"<style>{style}</style>",
                      f'<rect class="back" width="{WIDTH}" height="{height:.0f}" rx="6"/>', *parts, "</svg>", ""])


# ---- The documentation ----

def section(results):
    """The generated section for {name: data}."""
    if not results:
        return "\nThere are no results in [bench/results](../../bench/results).\n"
    parts = []
    for name, data in results.items():
        heading = data["machine"]["gpu"] or "Without a GPU"
        link = f"[bench/results/{name}.json](../../bench/results/{name}.json)"
        runs = " and ".join(dict.fromkeys(f"{run['date']} at commit {run['commit'] or 'unknown'}" for run in data["runs"]))
        parts.append(f"### {heading}\n\nMeasured on {runs}, in {len(data['runs'])} run{'s'[:len(data['runs']) > 1]}; all rounds are"
                     f" in {link}.\n\n" + markdown(data, f"../pictures/bench-{name}.svg"))
    return "\n" + "\n".join(parts)


HEADLINES = (  # of the README: title, row, unit
    ("pair of 512 B", "pairs.512B", "ns"),
    ("1,000 live blocks", "live.1000_1MiB", "ns"),
    ("16 threads (wall time / all pairs)", "threads.16", "ns"),
)
HEADLINE_COLUMNS = ("torch", "torch_expandable", "torch_async", "torch_weir", "torch_weir_moving")


def headlines(data):
    """The table of the README, without what was not measured."""
    def value(row, key, unit):
        result = data["rows"].get(row, {"results": {}})["results"].get(key, {})
        return f"{number(result['median'])} {unit}" if "median" in result else ""

    def fragmentation(key):
        rows = [row["results"][key]["median"] for name, row in data["rows"].items()
                if name.endswith(".fragmentation") and "median" in row["results"].get(key, {})]
        return f"{min(rows):.1f} to {max(rows):.0f} %" if rows else ""

    lines = ["| | " + " | ".join(TITLES[key] for key in HEADLINE_COLUMNS) + " |", "|---" * (len(HEADLINE_COLUMNS) + 1) + "|"]
    for title, row, unit in HEADLINES:
        lines.append(f"| {title} | " + " | ".join(value(row, key, unit) for key in HEADLINE_COLUMNS) + " |")
    lines.append("| fragmentation | " +
                 " | ".join(fragmentation(key) for key in HEADLINE_COLUMNS) + " |")
    return "\n".join(lines)


def replace_section(page, content):
    """Returns a page with new content between the marks."""
    pattern = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END), re.S)
    if not pattern.search(page):
        raise ValueError(f"there is no section {BEGIN} ... {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{content}\n{END}", page, count=1)


def documents(root, results):
    """{path: content} of the files that the results determine."""
    page = os.path.join(root, "docs", "evidence", "benchmarks.md")
    with open(page, encoding="utf-8") as file:
        files = {page: replace_section(file.read(), section(results))}
    if "h200" in results:
        readme = os.path.join(root, "README.md")
        with open(readme, encoding="utf-8") as file:
            files[readme] = replace_section(file.read(), "\n" + headlines(results["h200"]) + "\n")
    for name, data in results.items():
        files[os.path.join(root, "docs", "pictures", f"bench-{name}.svg")] = svg(data)
    return files
