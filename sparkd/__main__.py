"""`python -m sparkd` is `sparkd`."""

import sys

from sparkd.cli import main

sys.exit(main())
