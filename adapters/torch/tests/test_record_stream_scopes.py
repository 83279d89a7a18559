"""Uses by other streams count while a pool or a capture is open anywhere on the device. PyTorch's own allocator may drop
them; what it does is printed, and fails no test."""
import json
import os
import subprocess
import sys

import harness
from harness import equal

torch = harness.install()
import record_stream_scopes  # noqa: E402


def run(case, weir, conf=""):
    environment = dict(os.environ, WEIR_TORCH="1" if weir else "0", WEIR_ALLOC_CONF=conf)
    process = subprocess.run([sys.executable, os.path.join(harness.HERE, "record_stream_scopes.py"), case],
                             env=environment, capture_output=True, text=True, timeout=200)
    if process.returncode:
        return f"exit code {process.returncode}: {process.stderr.strip().splitlines()[-1:]}"
    return json.loads(process.stdout.splitlines()[-1])["wrong_bytes"]


def check(case):
    print(f"  {case}: {run(case, weir=False)} wrong bytes with PyTorch's own allocator", flush=True)
    for conf in ("", "expandable_segments:True", "moving_pages:True", "graph_capture_record_stream_reuse:True"):
        equal(run(case, weir=True, conf=conf), 0, f"wrong bytes, {case}, {conf or 'no setting'}")


for name in record_stream_scopes.CASES:
    globals()["test_" + "".join(c if c.isalnum() else "_" for c in name)] = lambda name=name: check(name)

if __name__ == "__main__":
    harness.main(globals())
