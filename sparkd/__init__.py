"""sparkd: the launcher for vLLM on several DGX Sparks that stays up."""

__version__ = "0.1.0"
