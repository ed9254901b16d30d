"""What the coordinator judges of a gang as a whole."""
