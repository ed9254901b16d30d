"""A node apart from its load: its kernel, its clock, what else runs there, who may speak for it."""
