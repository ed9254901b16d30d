"""What the agent watches beside its ranks. It samples and acts; detectors are in `sparkd.detect`."""
