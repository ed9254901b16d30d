"""The agent's core: makes its node's document true. Pure: `(core, event, now) -> (core, commands)`."""
