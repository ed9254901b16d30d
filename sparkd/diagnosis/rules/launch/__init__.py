"""What keeps a gang from being started."""
