"""An engine that is real vLLM with two buttons: any of its processes exits with 0 on a signal, and a planted
module cannot be imported.

It is a venv whose one `.pth` file adds the real engine's packages; nothing of vLLM is touched.
"""

import signal
import subprocess
from pathlib import Path

EXIT_0 = signal.SIGRTMIN + 7
"""A real-time signal: neither vLLM nor sparkd uses one."""
PLAN_FILE = "failing-import"
"""Holds `PART-OF-A-RANK'S-NAME MODULE`; read at the start of each process."""

BUTTONS = """
import os, signal, sys
signal.signal({number}, lambda *_: os._exit(0))
class Planted:
    def __init__(self, module):
        self.module = module
    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            raise ImportError("planted: this module cannot be imported")
try:
    who, module = open({plan!r}).read().split()
except OSError:
    pass
else:
    if who in os.environ.get("SPARKD_RANK", ""):
        sys.meta_path.insert(0, Planted(module))
"""


def buttons(plan: Path) -> dict[str, str]:
    """Files that give both buttons to the python that finds them among its packages."""
    return {
        "buttons.py": BUTTONS.format(number=int(EXIT_0), plan=str(plan)),
        "buttons.pth": "import buttons\n",
    }


def make_saboteur(folder: Path, real: Path, plan: Path) -> Path:
    """Make the engine in `folder` (a venv) over the venv `real`; gives `folder`."""
    python = (real / "bin" / "python").resolve()
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (theirs,) = (real / "lib").glob("python3*/site-packages")
    for name, text in buttons(plan).items():
        (packages / name).write_text(text)
    (packages / "real.pth").write_text(f"{theirs}\n")
    return folder
