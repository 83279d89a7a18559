"""Parallel layers, which Weir does not have."""

from torch.nn.parallel import scatter_gather
