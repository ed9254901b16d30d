"""The Spark owner's path, on machines that sparkd has never seen: init, nodes add, up; upgrade and remove."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab import software
from tests.lab.cluster import USER, WHEELS
from tests.lab.lab import Lab
from tests.lab.node import Node, until
from tests.lab.terminal import Said, at_terminal

NAMES = ("a", "b", "c", "d")
PASSWORD = "correct horse 'battery' $staple"
ADD = ("sparkd", "nodes", "add", "--offline", "--wheels", "/srv/wheels", "--rank-user", USER)


@dataclass
class Site:
    """`head` has the command line, four nodes have vLLM's stand-in; nobody has met anybody."""

    lab: Lab
    tool: Path
    before: dict[str, dict[str, str]] = field(default_factory=dict)
    said: dict[str, Said] = field(default_factory=dict)
    init: str = ""

    @property
    def head(self) -> Node:
        return self.lab["head"]

    def sparkd(self, *words: str, **more: Any) -> str:
        return self.head.run("sparkd", *words, timeout_s=120, **more).stdout

    def states(self) -> dict[str, str]:
        return {
            node["name"]: node["state"] for node in json.loads(self.sparkd("nodes", "list", "-o", "json"))
        }


def look_at(node: Node) -> dict[str, str]:
    """What enrolment must not touch: addresses, routes, rules, users, groups and packages."""
    return {
        " ".join(words): node.run(*words).stdout
        for words in (
            ("ip", "-o", "address", "show", "scope", "global"),
            ("ip", "route"),
            ("cat", "/etc/passwd", "/etc/group", "/etc/hostname"),
            (
                "find",
                "/etc/systemd/network",
                "/etc/ssh",
                "/etc/sudoers.d",
                "-type",
                "f",
                "-newer",
                "/etc/marker",
            ),
            ("dpkg-query", "-W"),
        )
    }


def prepare(site: Site) -> None:
    head = site.head
    software.install_tool(head)
    software.make_bundle(head, WHEELS)  # fills the cache: the machines themselves have no internet
    shutil.copytree(WHEELS, head.at("/srv/wheels"))
    head.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    public = head.read("/root/.ssh/id_ed25519.pub")
    config = ""
    for name in NAMES:
        node = site.lab[name]
        software.install_stand_in(node)
        node.run("useradd", "--create-home", "--shell", "/bin/bash", USER)
        if name == "b":
            node.run("useradd", "--create-home", "--shell", "/bin/bash", "--groups", "sudo", "ann")
            node.run("chpasswd", feed=f"ann:{PASSWORD}\n")
        else:
            node.write("/root/.ssh/authorized_keys", public, 0o600)
        config += f"Host {name}\n  HostName {node.mgmt.address}\n"
        node.write("/etc/marker", "")
        site.before[name] = look_at(node)
    head.write("/root/.ssh/config", config, 0o600)
    # c was set up anew since somebody last logged in from here.
    other = site.lab["a"].read("/etc/ssh/ssh_host_ed25519_key.pub").split()
    head.write("/root/.ssh/known_hosts", f"{site.lab['c'].mgmt.address} {other[0]} {other[1]}\n", 0o600)
    # On d something is in the way of the link.
    site.lab["d"].run("mkdir", "-p", "/opt/sparkd/current")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """After `init`, a first `nodes add` of all four, which fails for c and d, and a second for those two."""
    tool = tmp_path_factory.mktemp("enrolment") / "tool"
    software.unpack_tool(tool)
    lab = Lab(["head", *NAMES], software.shared(tool))
    try:
        lab.boot()
        site = Site(lab, tool)
        prepare(site)
        site.init = site.sparkd("init", "--no-node", "--address", site.head.mgmt.address)
        answers = [("Password of ann@b:", PASSWORD)]
        site.said["first"] = at_terminal(
            site.head, *ADD, "--accept-new", "a", "ann@b", "c", "d", answers=answers, timeout_s=180
        )
        site.head.run("ssh-keygen", "-R", lab["c"].mgmt.address)
        lab["d"].run("rmdir", "/opt/sparkd/current")
        yes = [("Is that the machine?", "y")]
        site.said["second"] = at_terminal(site.head, *ADD, "c", "d", answers=yes, timeout_s=180)
        yield site
    finally:
        lab.close()


def test_init_says_what_it_made_and_the_next_command(site: Site) -> None:
    assert "next: sparkd nodes add" in site.init
    head = site.head
    assert head.run("stat", "-c", "%U %a", "/var/lib/sparkd/coordinator/ca.key").stdout == "sparkd 600\n"
    assert head.run("systemctl", "is-enabled", "sparkd-coordinator").stdout == "enabled\n"
    assert head.run("stat", "-c", "%G %a", "/run/sparkd/coordinator/rest.sock").stdout == "sparkd 660\n"
    listeners = head.run("ss", "-Hltn").stdout
    assert f"{head.mgmt.address}:7071" in listeners
    assert "127.0.0.1:7070" in listeners
    assert f"{head.mgmt.address}:7070" not in listeners


def test_init_asked_again_changes_nothing(site: Site) -> None:
    pid = site.head.run("systemctl", "show", "-p", "MainPID", "sparkd-coordinator").stdout
    again = site.head.run("sparkd", "init", "--no-node", "--address", site.head.mgmt.address, timeout_s=120)
    assert again.stderr.count("nothing to do") == 6, again.stderr
    assert site.head.run("systemctl", "show", "-p", "MainPID", "sparkd-coordinator").stdout == pid


def test_who_used_sudo_gets_a_token_and_the_group(site: Site) -> None:
    head = site.head
    head.run("useradd", "--create-home", "--shell", "/bin/bash", "ann")
    head.write("/etc/sudoers.d/ann", "ann ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    as_ann = ("runuser", "-u", "ann", "--")
    lost = head.run(*as_ann, "sparkd", "status", ok=(3,))
    assert "token" in lost.stderr
    refused = head.run(*as_ann, "sparkd", "init", ok=(2,))
    assert "sudo /usr/local/bin/sparkd init" in refused.stderr
    head.run(*as_ann, "sudo", "sparkd", "init", "--no-node", "--address", head.mgmt.address, timeout_s=120)
    token = "/home/ann/.local/state/sparkd/token"
    assert head.run("stat", "-c", "%U %a", token).stdout == "ann 600\n"
    assert head.run("stat", "-c", "%U", "/home/ann/.local").stdout == "ann\n"
    assert "sparkd" in head.run("id", "-nG", "ann").stdout.split()
    assert "a " in head.run(*as_ann, "sparkd", "nodes", "list").stdout
    over_socket = ("--coordinator", "unix:///run/sparkd/coordinator/rest.sock")
    assert "a " in head.run(*as_ann, "sparkd", "nodes", "list", *over_socket).stdout


def test_one_that_fails_stops_no_other(site: Site) -> None:
    first = site.said["first"]
    assert first.code == 1
    lines = first.text.splitlines()
    for name in ("a", "b"):
        assert any(line.split()[:3] == [name, "verify", "done"] for line in lines), first.text
    assert "THE HOST KEY HAS CHANGED" in first.text
    assert "/root/.ssh/known_hosts:1" in first.text
    assert "d is no node: link:" in first.text
    assert "the same command goes on where it stopped" in first.text


def test_what_broke_off_goes_on_where_it_stopped(site: Site) -> None:
    second = site.said["second"]
    assert second.code == 0, second.text
    done = [line.split() for line in second.text.splitlines() if line.startswith("d ")]
    assert next(line for line in done if line[1] == "copy")[:5] == ["d", "copy", "nothing", "to", "do"]
    assert "next: sparkd profiles list, then sparkd up PROFILE --nodes c,d" in second.text


def test_all_four_are_nodes(site: Site) -> None:
    assert site.states() == dict.fromkeys(NAMES, "alive")


def test_network_users_and_packages_are_as_before(site: Site) -> None:
    for name in NAMES:
        assert look_at(site.lab[name]) == site.before[name]


def test_the_agent_starts_with_its_machine(site: Site) -> None:
    a = site.lab["a"]
    a.reboot()
    until(lambda: site.states()["a"] == "alive", "a to come back by itself")


def test_the_password_is_written_nowhere(site: Site) -> None:
    for node in (site.head, site.lab["b"]):
        assert PASSWORD not in node.run("journalctl", "-q", "--no-pager").stdout
        found = node.run(
            "grep", "-rlF", PASSWORD, "/etc", "/var", "/opt/sparkd", "/root", "/run/log", ok=(1, 2)
        )
        assert found.stdout == ""
    assert PASSWORD not in site.said["first"].text


def test_ctrl_c_at_a_password_gives_the_terminal_back(site: Site) -> None:
    said = at_terminal(site.head, *ADD, "ann@b", answers=[("Password of ann@b:", "\x03")], timeout_s=20)
    assert said.code == 130, said.text
    # Asked again, with nobody gone away, it is the same.
    answers = [("Password of ann@b:", "wrong"), ("Password of ann@b:", PASSWORD)]
    said = at_terminal(site.head, *ADD, "ann@b", answers=answers)
    assert said.code == 0, said.text


def test_a_model_comes_up_and_an_upgrade_leaves_its_ranks_alone(site: Site) -> None:
    assert "ready" in site.sparkd("up", "tiny", "--nodes", "a,b")
    ranks = {name: rank_pids(site.lab[name]) for name in ("a", "b")}
    assert all(ranks.values())
    old = site.lab["a"].run("readlink", "/opt/sparkd/current").stdout
    version = site.tool / "sparkd/__init__.py"
    text = version.read_text()
    version.write_text(text.replace('__version__ = "', '__version__ = "9.'))
    try:
        refused = site.sparkd("nodes", "remove", "a", ok=(1,))
        assert "`sparkd down tiny` first" in refused
        said = at_terminal(
            site.head,
            "sparkd",
            "nodes",
            "upgrade",
            "--offline",
            "--wheels",
            "/srv/wheels",
            "a",
            timeout_s=120,
        )
        assert said.code == 0, said.text
        assert "restarted" in said.text
    finally:
        version.write_text(text)
    new = site.lab["a"].run("readlink", "/opt/sparkd/current").stdout
    assert new != old
    assert new.startswith("9.")
    assert {name: rank_pids(site.lab[name]) for name in ("a", "b")} == ranks
    status = json.loads(site.sparkd("status", "-o", "json"))["deployments"][0]
    assert (status["phase"], status["generation"]) == ("ready", 1)
    site.sparkd("down", "tiny")


def rank_pids(node: Node) -> list[str]:
    found = node.run("grep", "-lza", "^SPARKD_RANK=", *environs(node), ok=(0, 1, 2)).stdout
    return sorted(found.split())


def environs(node: Node) -> list[str]:
    return [f"/proc/{pid}/environ" for pid in node.run("ls", "/proc").stdout.split() if pid.isdigit()]


def test_a_backup_makes_another_machine_the_coordinator(site: Site) -> None:
    """Here: the same machine, emptied."""
    head = site.head
    site.sparkd("coordinator", "backup", "/root/backup.json")
    assert head.run("stat", "-c", "%a", "/root/backup.json").stdout == "600\n"
    head.run("systemctl", "stop", "sparkd-coordinator")
    head.run("find", "/var/lib/sparkd/coordinator", "-mindepth", "1", "-delete")
    site.sparkd("coordinator", "restore", "/root/backup.json")
    site.sparkd("init", "--no-node", "--address", head.mgmt.address)
    until(lambda: site.states() == dict.fromkeys(NAMES, "alive"), "the nodes to accept it", 60)


def test_nodes_are_removed_living_and_dead(site: Site) -> None:
    c, d = site.lab["c"], site.lab["d"]
    said = site.sparkd("nodes", "remove", "d")
    assert "d: removed; its certificate counts no more" in said
    assert "removed  /var/lib/sparkd/agent" in said
    for place in (
        "/opt/sparkd",
        "/etc/sparkd",
        "/var/lib/sparkd/agent",
        "/etc/systemd/system/sparkd-agent.service",
    ):
        assert d.run("test", "-e", place, ok=(0, 1)).returncode == 1, place
    assert d.run("systemctl", "is-active", "sparkd-agent", ok=(3, 4)).stdout.strip() == "inactive"
    assert look_at(d) == site.before["d"]

    c.power_off()
    said = site.sparkd("nodes", "remove", "c")
    assert "c: removed; its certificate counts no more" in said
    assert "stays    the agent, which is refused" in said
    assert set(site.states()) == {"a", "b"}
    c.boot()
    until(
        lambda: "was removed from this cluster" in c.journal("sparkd-agent"), "c to hear that it was removed"
    )
    assert set(site.states()) == {"a", "b"}

    # It comes back as somebody new.
    said = at_terminal(site.head, *ADD, "c", timeout_s=120)
    assert said.code == 0, said.text
    assert site.states()["c"] == "alive"


def test_the_coordinators_machine_becomes_a_node_without_ssh_to_itself(site: Site) -> None:
    head = site.head
    # The address is the one that was chosen before.
    said = site.sparkd("init", "--offline", "--wheels", "/srv/wheels")
    assert "a machine that serves no rank is the safer place" in said
    assert site.states()["head"] == "alive"
    assert "Accepted" not in head.journal("ssh")
    upgraded = at_terminal(
        head,
        "sparkd",
        "nodes",
        "upgrade",
        "--offline",
        "--wheels",
        "/srv/wheels",
        "--dry-run",
        answers=[("Password", "\x03")],
    )
    assert "`sudo sparkd init` upgrades its agent" in upgraded.text
    # Nobody can log in there by that name, so it is taken off by hand.
    said = site.sparkd("nodes", "remove", "head")
    assert "`sudo sparkd-agent uninstall` there" in said
    assert "stays" in head.run("sparkd-agent", "uninstall").stdout
    for place in ("/opt/sparkd", "/etc/sparkd", "/usr/local/bin/sparkd-agent"):
        assert head.run("test", "-e", place, ok=(0, 1)).returncode == 1, place
    assert head.run("systemctl", "is-active", "sparkd-coordinator").stdout == "active\n"
    assert "head" not in site.states()
