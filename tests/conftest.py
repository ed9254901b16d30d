"""What holds for every test."""

import signal

# A run that was started in the background inherits an ignored SIGINT, and would hand it on to the programs
# that it starts: Ctrl-C could not be tested. With a handler here they begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
