"""Processes of ranks that ended by a signal: who sent it is told only where there is evidence."""
