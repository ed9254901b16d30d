import sys
from pathlib import Path

import pytest

from sparkd.errors import Conflict
from sparkd_agent.config import read_config
from sparkd_agent.procfs import ProcFs
from sparkd_agent.uninstall import uninstall
from tests.bed.node_folder import NodeFolder


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    node = NodeFolder(tmp_path)
    for name, text in {
        "etc/sparkd/agent.toml": CONFIG,
        "var/lib/sparkd/agent/tls/node.key": "key",
        "var/lib/sparkd/agent/tls/node.crt": "certificate",
        "var/lib/sparkd/agent/node-id": "id-1",
        "etc/systemd/system/sparkd-agent.service": "[Unit]",
        "opt/sparkd/0.1.0-aaa/manifest.json": "{}",
        "opt/sparkd/0.1.0-aaa/lib/x.py": "",
        "opt/sparkd/.incoming-x/half": "",
        "var/lib/sparkd/agent/ledger.sqlite": "ledger",
    }.items():
        place = node.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    (node.root / "opt/sparkd/current").symlink_to("0.1.0-aaa")
    (node.root / "usr/local/bin/sparkd-agent").symlink_to("/opt/sparkd/current/bin/sparkd-agent")
    return node


CONFIG = """
[node]
id = "id-1"
name = "spark-1"
address = "10.0.0.1"
[coordinator]
urls = ["http://127.0.0.1:7071"]
token_file = "/etc/sparkd/token"
holder = "h"
[engine.default]
python = "/home/ann/vllm/bin/python"
[models]
roots = ["/srv/models"]
[state]
dir = "/var/lib/sparkd/agent"
"""


def proc(tmp_path: Path, *ranks: str) -> ProcFs:
    for pid, rank in enumerate(ranks, 100):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "environ").write_bytes(b"A=b\0SPARKD_RANK=" + rank.encode() + b"\0")
    (tmp_path / "proc").mkdir(parents=True, exist_ok=True)
    return ProcFs(tmp_path / "proc")


def test_all_that_is_ours_goes_and_what_stays_is_named(node: NodeFolder, tmp_path: Path) -> None:
    config = read_config(node.root / "etc/sparkd/agent.toml")
    done = uninstall(config, root=node.root, systemctl=str(node.systemctl), procfs=proc(tmp_path))
    assert node.snapshot() == {}
    assert not (node.root / "etc/sparkd").exists()
    assert not (node.root / "opt/sparkd").exists()
    assert "/var/lib/sparkd/agent" in done.removed
    assert node.calls == ["stop sparkd-agent.service", "disable sparkd-agent.service", "daemon-reload"]
    left = "\n".join(done.left)
    assert "/srv/models" in left
    assert "/home/ann/vllm/bin/python" in left


def test_a_coordinator_on_the_same_machine_is_left_alone(node: NodeFolder, tmp_path: Path) -> None:
    for name in ("etc/sparkd/coordinator.toml", "opt/sparkd/notes", "var/lib/sparkd/coordinator/ca.key"):
        place = node.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("mine")
    command = node.root / "usr/local/bin/sparkd-agent"
    command.unlink()
    command.symlink_to("/home/ann/.local/bin/sparkd-agent")
    uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=proc(tmp_path))
    assert set(node.snapshot()) == {
        "etc/sparkd/coordinator.toml",
        "opt/sparkd/notes",
        "usr/local/bin/sparkd-agent",
        "var/lib/sparkd/coordinator/ca.key",
    }


def test_while_ranks_live_it_is_refused_and_forced_they_go_on(node: NodeFolder, tmp_path: Path) -> None:
    before = node.snapshot()
    living = proc(tmp_path, "sparkd-glm-g3-r1", "sparkd-glm-g3-r1")
    with pytest.raises(Conflict, match="sparkd-glm-g3-r1; end them"):
        uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=living)
    assert node.snapshot() == before
    assert node.calls == []
    done = uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=living, force=True)
    assert any("rank sparkd-glm-g3-r1, running" in line for line in done.left)
    # Its shim writes there.
    assert (node.root / "var/lib/sparkd/agent/ledger.sqlite").exists()
    assert not (node.root / "var/lib/sparkd/agent/tls").exists()


def test_one_step_that_fails_stops_no_other(node: NodeFolder, tmp_path: Path) -> None:
    node.systemctl.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no bus')\n")
    done = uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=proc(tmp_path))
    assert [line for line in done.left if "no bus" in line] == [
        "sparkd-agent.service: stop failed: no bus",
        "sparkd-agent.service: disable failed: no bus",
    ]
    assert node.snapshot() == {}


def test_twice_is_the_same_as_once(node: NodeFolder, tmp_path: Path) -> None:
    uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=proc(tmp_path))
    done = uninstall(None, root=node.root, systemctl=str(node.systemctl), procfs=proc(tmp_path / "again"))
    assert done.removed == ()
