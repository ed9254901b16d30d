"""Every record of sparkd, once: frozen slotted dataclasses.

The core computes with them, msgspec moves them over the wire and FastAPI publishes them. Sizes are bytes,
durations seconds, moments seconds since 1970 (`*_at`) unless the name says otherwise.
"""
