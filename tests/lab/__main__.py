"""`python -m tests.lab [--vllm] [NAME...]`: a cluster to try things on by hand, until Ctrl-D.

The prompt is Python's, with `cluster`, `lab`, its nodes by name, and the faults:

    >>> print(cluster.sparkd("up", "tiny"))
    >>> b.power_off()
    >>> print(cluster.sparkd("status"))
    >>> with pulled(lab.network, a.fabric): input("Enter plugs it in again ")
    >>> shell(head)
"""

import argparse
import code
import os
import readline  # noqa: F401 - the prompt's line editing
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab import faults
from tests.lab.cluster import Engine, cluster
from tests.lab.node import Node


def shell(node: Node) -> None:
    """A shell on a node, as root."""
    subprocess.run(node.command("bash", "-i"), env={**os.environ, "HOME": "/root"}, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description="A cluster to try things on.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the nodes (default: a b c d)")
    parser.add_argument("--vllm", action="store_true", help="the real vLLM, not the light stand-in")
    options = parser.parse_args()
    engine: Engine = "vllm" if options.vllm else "stand-in"
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), options.names or ("a", "b", "c", "d"), engine) as made,
    ):
        names = {**vars(faults), **made.lab.nodes, "cluster": made, "lab": made.lab, "shell": shell}
        sys.stdout.write(f"{__doc__}\n{made.sparkd('status')}\n")
        code.interact(banner="", local=names, exitmsg="")


main()
