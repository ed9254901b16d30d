"""Where the interpreter begins: `-I` and `-S` leave it nothing but the standard library to import from."""

import sys
from os.path import dirname

if __name__ == "__main__":
    # Last, so that nothing beside the agent can take the place of a module of Python's own.
    sys.path.append(dirname(dirname(dirname(__file__))))
    from sparkd_agent.shim.shim import main

    main()
