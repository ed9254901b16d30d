"""What runs on a node while it is being set up: read as text, sent over SSH, fed to the node's own Python.

Standard library only, and nothing newer than Python 3.9: a node whose Python is too old must be able to say
so. A conversation is one JSON line a question (`{"verb", "args", "bytes"}`, then so many raw bytes) and one
line an answer, with the mark of this conversation before it. Nothing here takes a command: each verb does
one thing, and does nothing when it is done already.
"""

from importlib import resources
from typing import Final

MODULES: Final = ("place", "look", "change", "talk")
"""In the order in which one needs the other."""


def script() -> bytes:
    """The whole of it as one program for `python3 -I`, which finds the mark as its first argument."""
    folder = resources.files(__name__)
    own = [
        (f"{__name__}.{name}", folder.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in MODULES
    ]
    above = [(name, "") for name in ("sparkd", "sparkd.enrol", __name__)]
    return f"SOURCES = {above + own!r}\n{_LOADER}".encode()


_LOADER: Final = """
import sys, types
for name, source in SOURCES:
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules["sparkd.enrol.onnode.talk"].converse(sys.argv[1])
"""
