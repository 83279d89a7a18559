"""Removes the beginning of the history of a snapshot, like a ring that has wrapped.

usage: make_late.py FROM TO PART     PART 0.6 removes the first 60 % of the events. Both files are compressed with zstd.

Only for trusted snapshots: a pickle can run any code.
"""

import pickle
import subprocess
import sys

source, target, part = sys.argv[1], sys.argv[2], float(sys.argv[3])
raw = subprocess.run(["zstd", "-dc", source], capture_output=True, check=True).stdout
snapshot = pickle.loads(raw)
snapshot["device_traces"] = [trace[int(len(trace) * part) :] for trace in snapshot["device_traces"]]
data = pickle.dumps(snapshot, protocol=4)
subprocess.run(["zstd", "-19", "-q", "-f", "-o", target], input=data, check=True)
