"""torch._C._profiler: stacks that are captured on request."""

from __future__ import annotations

from weir import CapturedTraceback as CapturedTraceback
from weir import gather_traceback as gather_traceback
from weir import symbolize_tracebacks as symbolize_tracebacks
