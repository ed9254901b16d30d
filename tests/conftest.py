"""What holds for every test."""

import signal

from hypothesis import settings

# A run that was started in the background inherits an ignored SIGINT, and would hand it on to the programs
# that it starts: Ctrl-C could not be tested. With a handler here they begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No example is too slow in itself: on a machine that does other things too a deadline fails now and then.
settings.register_profile("sparkd", deadline=None)
settings.load_profile("sparkd")
