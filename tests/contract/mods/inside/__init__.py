"""What runs inside vLLM's own interpreter: cases that a test calls by name, and what they share."""
