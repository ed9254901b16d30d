"""What vLLM itself says when it does not start, or ends."""
