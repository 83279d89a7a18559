"""What a test file needs of torch.testing."""
