"""sparkd as it lies on the disks of nodes: what `sparkd nodes add` and a tool installer put there."""

import compileall
import io
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

from sparkd.enrol.bundle import Bundle, agent_bundle
from sparkd.enrol.wheels import Kind, choose, download, lock_file, read_lock
from tests.bed.stand_in import LAUNCHER, VERSION
from tests.lab.image import ENGINE
from tests.lab.node import Node

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = "/usr/bin/python3"
TOOL: Final = "/opt/sparkd-tool"
"""The command line and the coordinator, as `uv tool install` would put them."""
STAND_IN: Final = "/opt/stand-in"
BED: Final = "/opt/bed"
MODELS: Final = "/srv/models"
AGENTS: Final = "/opt/sparkd"

_SPARKD = f"""#!{PYTHON} -I
import sys

sys.path[:0] = ["{TOOL}/lib", "{TOOL}/deps"]
from sparkd.cli import main

sys.exit(main())
"""


def unpack_tool(folder: Path) -> None:
    """Build the wheel of this checkout and unpack it. Its dependencies are those that the tests run with."""
    wheels = folder.with_name(f"{folder.name}-wheel")
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=100)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    compileall.compile_dir(str(folder), quiet=2)


def shared(tool: Path) -> dict[Path, str]:
    """What nodes have in common, and where."""
    folders = {
        tool: f"{TOOL}/lib",
        Path(sysconfig.get_paths()["purelib"]): f"{TOOL}/deps",
        ROOT / "tests" / "bed" / "stand_in": f"{BED}/stand_in",
        ROOT / ".models": MODELS,
    }
    for site in (ROOT / ".venv-vllm" / "lib").glob("python*/site-packages"):
        folders[site] = f"{ENGINE}/lib/{site.parent.name}/site-packages"
    return folders


def make_bundle(node: Node, cache: Path) -> Bundle:
    """The agent for nodes like this one. Raises RuntimeError when its wheels are not to be had."""
    ask = "import json, platform, sys; print(json.dumps([sys.version_info[:2], platform.libc_ver()[1]]))"
    python, libc = json.loads(node.run(PYTHON, "-c", ask).stdout)
    # Compiled packages of this machine's environments are used there.
    assert tuple(python) == sys.version_info[:2], (
        f"the nodes' Python is {python}, ours {sys.version_info[:2]}"
    )
    major, minor = libc.split(".")[:2]
    kind = Kind((python[0], python[1]), platform.machine(), (int(major), int(minor)))
    lock = read_lock(lock_file().read_text())
    choice = choose(lock, [cache], kind)
    if choice.missing:
        reason = download(lock_file(), kind, cache)
        choice = choose(lock, [cache], kind)
        if choice.missing:
            raise RuntimeError(f"no wheels for the nodes: {'; '.join(choice.missing)}: {reason}")
    return agent_bundle(choice.wheels, PYTHON)


def install_tool(node: Node) -> None:
    node.write("/usr/local/bin/sparkd", _SPARKD, 0o755)


def install_stand_in(node: Node) -> str:
    """The light engine; returns its python."""
    python = f"{STAND_IN}/bin/python"
    node.write(python, LAUNCHER.format(python=PYTHON, bed=BED, folder=STAND_IN), 0o755)
    site = f"{STAND_IN}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"
    node.write(f"{site}/vllm-{VERSION}.dist-info/METADATA", metadata)
    return python


def unpack_agent(node: Node, bundle: Bundle) -> None:
    folder = node.at(f"{AGENTS}/{bundle.folder}")
    with zipfile.ZipFile(io.BytesIO(bundle.blob)) as archive:
        archive.extractall(folder)
    (folder / "bin" / "sparkd-agent").chmod(0o755)
    use_agent(node, bundle.folder)


def make_newer(node: Node, bundle: Bundle, version: str) -> str:
    """Another version of the agent beside the one of the bundle: the same code, which calls itself newer.

    Returns its folder, for `use_agent`.
    """
    shutil.copytree(node.at(f"{AGENTS}/{bundle.folder}"), node.at(f"{AGENTS}/{version}"))
    node.write(f"{AGENTS}/{version}/lib/sparkd/__init__.py", f'__version__ = "{version}"\n')
    return version


def use_agent(node: Node, folder: str) -> None:
    """What the agent's unit starts next."""
    fresh = node.at(f"{AGENTS}/.fresh")
    fresh.symlink_to(folder)
    fresh.replace(node.at(f"{AGENTS}/current"))
