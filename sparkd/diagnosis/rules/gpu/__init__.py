"""The GPU and its driver."""
