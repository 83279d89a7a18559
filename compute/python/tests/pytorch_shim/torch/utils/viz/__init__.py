"""Parts of PyTorch that have a counterpart of another name in Weir."""
