"""The machinery of mods. Its public part is `declare`; a mod needs nothing else of it."""
