"""The files of the model."""
