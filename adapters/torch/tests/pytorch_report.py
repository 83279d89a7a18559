"""What pytorch_own.py makes of its results: differences, stated reasons, a summary, the table in docs/evidence/torch-tests.md.

Results are {file: {mode: {test: {"result", "why", "seconds", "alone"}}}}. The repository keeps a summary of them.
"""
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
REASONS = os.path.join(HERE, "pytorch_reasons.txt")
SUMMARY = os.path.join(HERE, "pytorch_results.json")
PAGE = os.path.join(ROOT, "docs", "evidence", "torch-tests.md")
BEGIN, END = "<!-- pytorch_own.py: begin -->", "<!-- pytorch_own.py: end -->"

MODES = ("native", "exact", "moving")
TITLES = {"native": "PyTorch's allocator", "exact": "Weir", "moving": "Weir, moving pages"}
MULTIGPU = "test_cuda_multigpu.py"
UNFINISHED = ("not finished", "not run")
KINDS = ("passed", "failed", "crashed", "timed out", "skipped", "not finished")


class Reason:
    def __init__(self, modes, file, test, text, line):
        self.modes, self.file, self.test, self.text, self.line = modes, file, test, text, line
        self.used = False

    def covers(self, mode, file, test):
        return mode in self.modes and self.file in ("*", file) and self.test == test


def read_reasons(path=REASONS):
    """Reads the stated reasons. Raises ValueError for a line without one."""
    found = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            left, mark, text = line.partition("#")
            words = left.split()
            if not mark or not text.strip():
                raise ValueError(f"{path}:{number}: the reason is missing: MODES FILE Class.test # REASON")
            modes = words[0].split(",")
            if len(words) != 3 or not set(modes) <= {"exact", "moving"}:
                raise ValueError(f"{path}:{number}: expected MODES FILE Class.test # REASON, found '{left.strip()}'")
            found.append(Reason(modes, words[1], words[2], text.strip(), number))
    return found


def differing(results, file, mode):
    """[(test, native, other)] of the tests whose result is not the native one. Unfinished tests are left out."""
    native, other, found = results.get(file, {}).get("native", {}), results.get(file, {}).get(mode, {}), []
    for test, theirs in native.items():
        ours = other.get(test)
        if ours and theirs["result"] != ours["result"] and not {theirs["result"], ours["result"]} & set(UNFINISHED):
            found.append((test, theirs, ours))
    return found


def last_line(text):
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def compare(results, reasons):
    """Returns the differences, each with its stated reason or None."""
    found = []
    for file in results:
        for mode in MODES[1:]:
            for test, theirs, ours in differing(results, file, mode):
                reason = next((one for one in reasons if one.covers(mode, file, test)), None)
                if reason:
                    reason.used = True
                why = ours["why"] if ours["result"] != "passed" else theirs["why"]
                found.append({"file": file, "test": test, "mode": mode, "native": theirs["result"],
                              "weir": ours["result"], "reason": reason.text if reason else None, "why": why})
    return found


def is_stale(reason, results):
    """Whether a reason is for a test that ran, and did not differ in any of the files and modes that it names."""
    ran = any(reason.test in results[file].get(mode, {}) and reason.test in results[file].get("native", {})
              for file in results if reason.file in ("*", file) for mode in reason.modes)
    return ran and not reason.used


def counts(results, file, mode):
    found = dict.fromkeys(KINDS, 0)
    for one in results[file].get(mode, {}).values():
        found["not finished" if one["result"] in UNFINISHED else one["result"]] += 1
    return found


def summarize(results, differences, about):
    """What is worth keeping: the counts, the differences, and the tests that crash natively."""
    files = {file: {mode: {kind: count for kind, count in counts(results, file, mode).items() if count}
                    for mode in MODES if mode in results[file]} for file in results}
    crashed = [f"{file}::{test}" for file in results for test, one in results[file].get("native", {}).items()
               if one["result"] in ("crashed", "timed out")]
    short = [{**one, "why": last_line(one["why"])} for one in differences]
    return {"format": 1, "about": about, "files": files, "differences": short, "native_crashes": crashed}


def print_report(results, differences, reasons):
    """Prints counts and differences. Returns how many tests passed under Weir, and how many differ without a reason."""
    passed, bad = 0, 0
    for file in results:
        for mode in MODES:
            if mode in results[file]:
                of = counts(results, file, mode)
                passed += of["passed"] if mode != "native" else 0
                alone = sum(one["alone"] > 0 for one in results[file][mode].values())
                print(f"{file}, {TITLES[mode]}: " + ", ".join(f"{n} {kind}" for kind, n in of.items() if n)
                      + (f"; {alone} were repeated alone" if alone else ""))
    for one in differences:
        name = f"{one['file']}::{one['test']}, {TITLES[one['mode']]}: {one['weir']}, natively {one['native']}"
        if one["reason"]:
            print(f"differs {name}: {one['reason']}")
        else:
            bad += 1
            print(f"FAILED {name}\n    | " + one["why"].strip().replace("\n", "\n    | "))
    for reason in reasons:
        if is_stale(reason, results):
            print(f"note: {os.path.basename(REASONS)}:{reason.line}: {reason.test} does not differ any more")
    return passed, bad


# ---- The documentation ----

def section(summary):
    if not summary:
        return "\nThere are no results yet.\n"
    about = summary["about"]
    what = f"PyTorch {about['torch']} with the tests of {about['source']}, {about['gpu']}, Weir {about['weir']}."
    lines = ["", what, "", "| file | allocator | " + " | ".join(KINDS) + " |", "|---|---|" + "---|" * len(KINDS)]
    for file, modes in summary["files"].items():
        for mode, of in modes.items():
            lines.append(f"| `{file}` | {TITLES[mode]} | " + " | ".join(str(of.get(kind, 0)) for kind in KINDS) + " |")
    if MULTIGPU not in summary["files"]:
        lines += ["", f"`{MULTIGPU}` was not run: it needs two GPUs."]
    if summary["differences"]:
        lines += ["", "These tests differ:", "", "| test | allocator | natively | with Weir | reason |",
                  "|---|---|---|---|---|"]
        for one in summary["differences"]:
            reason = (one["reason"] or f"not known: {one['why']}").replace("|", "/")
            name = f"`{one['file']}::{one['test']}`"
            lines.append(f"| {name} | {TITLES[one['mode']]} | {one['native']} | {one['weir']} | {reason} |")
    else:
        lines += ["", "No test differs."]
    if summary["native_crashes"]:
        names = ", ".join(f"`{name}`" for name in summary["native_crashes"])
        lines += ["", f"With PyTorch's own allocator these end their process or do not end: {names}."]
    return "\n".join([*lines, ""])


def replace_section(page, summary):
    pattern = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END), re.S)
    if not pattern.search(page):
        raise ValueError(f"there is no section {BEGIN} ... {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{section(summary)}\n{END}", page, count=1)
