"""Nodes of one gang that differ: vLLM compares nothing, and serves nonsense or hangs."""
