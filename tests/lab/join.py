"""join.py GROUP... -- COMMAND...: enter the control groups, then become the command."""

import os
import sys
from pathlib import Path

words = sys.argv[1:]
split = words.index("--")
for group in words[:split]:
    Path(group, "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
command = words[split + 1 :]
os.execvp(command[0], command)
