"""The parts of torch.testing._internal that a test file imports, for Weir."""
