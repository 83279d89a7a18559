#!/usr/bin/env python3
"""What moving pages trade bytes for: fragmentation and time in the driver, for each recording and each slack.

    bench/moving_curve.py [--weir PROGRAM] [--slack LIST] RECORDING...

Replays each recording with expandable segments and with moving pages. Prints the live peak, and for each setting the
fragmentation at the peak and the milliseconds in driver calls. The last column is what the default does not meet of this:

    above      no more is reserved than with expandable segments
    bytes      2.6 % of fragmentation; 4 % for generation, and for graphs, whose pages stay, what 1.0.0 had
    time       at most the longest of 2.2 times that of expandable segments, 1 % of the recorded time, and 40 us for each
               page of 2 MiB of the live peak

The exit code is 1 if a recording does not meet them. A slack that lies above expandable segments is named too.
"""
import argparse
import json
import os
import subprocess
import sys

GIB, PAGE = 1 << 30, 2 << 20
MOST, OTHERS = 2.6, {"llm_generate_small": 4, "cuda_graphs": 4.1, "cuda_graphs_expandable": 4.6}


def ask(weir, command, recording, *arguments):
    done = subprocess.run([weir, command, recording, "--json", *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def missed(name, expandable, row, seconds):
    live = row["peak_allocated"]
    most_ns = max(2.2 * expandable["cost_ns"], seconds * 1e9 / 100, 40e3 * live / PAGE)
    found = ["above"] if row["peak_reserved"] > expandable["peak_reserved"] else []
    if 100 * row["fragmentation"] > OTHERS.get(name, MOST):
        found.append("bytes")
    if row["cost_ns"] > most_ns:
        found.append("time")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="weir")
    parser.add_argument("--slack", default="0,0.05", help="others than the default")
    parser.add_argument("recording", nargs="+")
    options = parser.parse_args()
    slacks = options.slack.split(",") if options.slack else []
    confs = ["expandable_segments:True", "moving_pages:True"]
    confs += [f"moving_pages:True,moving_pages_slack:{slack}" for slack in slacks]
    print("%-31s %10s %14s %14s" % ("", "live", "expandable", "default") + "".join("%14s" % f"slack {s}" for s in slacks))
    failed = False
    for recording in options.recording:
        summary = ask(options.weir, "summary", recording)["devices"][0]
        seconds = (summary["last_us"] - summary["first_us"]) / 1e6
        rows = ask(options.weir, "whatif", recording, *(word for conf in confs for word in ("--conf", conf)))["predictions"]
        expandable, *moving = [row for row in rows if not row["recorded"]]
        name = os.path.basename(recording).split(".")[0]
        problems = missed(name, expandable, moving[0], seconds)
        failed |= bool(problems)
        problems += [f"slack {slack} above" for slack, row in zip(slacks, moving[1:])
                     if row["peak_reserved"] > expandable["peak_reserved"]]
        print("%-31s %6.2f GiB" % (name, expandable["peak_allocated"] / GIB)
              + "".join(" %5.2f %% %5.1f" % (100 * row["fragmentation"], row["cost_ns"] / 1e6) for row in [expandable, *moving])
              + ("  " + ", ".join(problems) if problems else ""))
    return failed


if __name__ == "__main__":
    sys.exit(main())
