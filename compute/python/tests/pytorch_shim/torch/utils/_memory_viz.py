"""torch.cuda._memory_viz: what Weir has of it, and the picture of a profile, which needs PyTorch's profiler."""

import torch
from weir._memory_viz import *
from weir._memory_viz import profile_plot, segment_plot, trace_plot


def _profile_to_snapshot(profile):
    return torch.profiler.profile
