"""Arguments of layers on several devices, which Weir does not have."""
