"""Layers, which Weir does not have."""
