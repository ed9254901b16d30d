"""How a node runs ranks, and what it says it cannot do, from what it may and what its configuration says."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd_agent.config import AgentConfig
from sparkd_agent.privileges import CAPABILITIES, Offer, Privileges, look, offer

ALL = frozenset(one.name for one in CAPABILITIES)
ROOT = Privileges(root=True, held=ALL, systemd=True)
USER = Privileges(root=False, held=frozenset(), systemd=True)
CONFIG = AgentConfig(
    node_id="n1",
    name="n1",
    address="192.0.2.1",
    fabric_address="192.0.2.1",
    fabric_interface=None,
    local=False,
    urls=("http://127.0.0.1:7071",),
    holder="h",
    engines={},
    model_roots=(),
    state=Path("/var/lib/sparkd/agent"),
    rank_user="root",
)


def told(made: Offer, words: str) -> str:
    """The one limit that says so."""
    (found,) = (limit for limit in made.limits if words in limit)
    return found


def test_root_with_all_it_needs_has_no_limits_and_names_whom_ranks_run_as() -> None:
    made = offer(CONFIG, ROOT)
    assert made.runtimes == ("systemd", "process")
    assert made.limits == ()
    assert made.account is not None
    assert (made.account.name, made.account.uid, made.account.home) == ("root", 0, "/root")


def test_ranks_never_run_as_root_because_nobody_said_otherwise() -> None:
    made = offer(replace(CONFIG, rank_user=None), ROOT)
    assert made.runtimes == ()
    assert "set rank.user in agent.toml" in told(made, "it starts no rank")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rank_user": "nobody-of-that-name"}, "rank.user: this machine knows no user 'nobody-of-that-name'"),
        ({"rank_group": "no-such-group"}, "rank.group: this machine knows no group 'no-such-group'"),
    ],
)
def test_a_user_that_is_not_there_is_named(wrong: dict[str, str], said: str) -> None:
    made = offer(replace(CONFIG, **wrong), ROOT)
    assert made.runtimes == ()
    assert said in told(made, "it starts no rank")


def test_another_group_than_the_users_own_comes_first() -> None:
    made = offer(replace(CONFIG, rank_group="daemon"), ROOT)
    assert made.account is not None
    assert made.account.group == "daemon"
    assert made.account.gid in made.account.groups


@pytest.mark.parametrize("missing", CAPABILITIES, ids=lambda one: one.name)
def test_each_capability_that_is_missing_is_told_with_what_it_costs_and_the_remedy(missing) -> None:  # noqa: ANN001
    made = offer(CONFIG, replace(ROOT, held=ALL - {missing.name}))
    remedy = "sparkd-agent.service asks for it, the machine or its container must grant it"
    assert made.limits == (f"it cannot {missing.lost} (no CAP_{missing.name.upper()}): {remedy}",)
    assert made.runtimes == ("systemd", "process"), "what is missing is told, and ranks run all the same"


def test_who_is_not_root_runs_plain_processes_as_itself_and_says_what_that_costs() -> None:
    made = offer(replace(CONFIG, rank_user="spark"), USER)
    assert (made.runtimes, made.account) == (("process",), None)
    assert len([limit for limit in made.limits if "CAP_" in limit]) == len(CAPABILITIES)
    assert all("run it as root, by sparkd-agent.service" in limit for limit in made.limits)
    told(made, "its ranks run as its own user and not as spark")
    told(made, "no units of systemd, for which it must be root")


def test_without_systemd_ranks_are_plain_processes() -> None:
    made = offer(CONFIG, replace(ROOT, systemd=False))
    assert made.runtimes == ("process",)
    told(made, "systemd, which is not PID 1 here")


def test_the_configuration_can_name_the_only_runtime() -> None:
    assert offer(replace(CONFIG, rank_runtime="process"), ROOT) == replace(
        offer(CONFIG, ROOT), runtimes=("process",)
    )
    made = offer(replace(CONFIG, rank_runtime="systemd"), USER)
    assert made.runtimes == (), "named and impossible: no other one is taken in silence"
    told(made, "no units of systemd")


def test_plain_processes_of_another_user_need_what_the_unit_takes_away() -> None:
    by_the_unit = replace(ROOT, becomes_others=False)
    other = replace(CONFIG, rank_user="daemon")
    assert offer(other, by_the_unit) == replace(offer(other, ROOT), runtimes=("systemd",))
    assert offer(CONFIG, by_the_unit).runtimes == ("systemd", "process"), "root stays root"
    told(offer(replace(other, rank_runtime="process"), by_the_unit), "leave out rank.runtime")


def test_a_user_whose_shared_memory_goes_at_logout_is_told() -> None:
    lasting = offer(CONFIG, USER).limits
    passing = offer(CONFIG, replace(USER, lingers=False))
    assert set(passing.limits) - set(lasting) == {told(passing, "loginctl enable-linger")}


def test_a_local_set_runs_plain_processes_as_whoever_started_it() -> None:
    made = offer(replace(CONFIG, local=True, rank_user=None), ROOT)
    assert (made.runtimes, made.account, made.limits) == (("process",), None, ())


def test_what_is_held_in_words() -> None:
    assert ROOT.in_words() == (
        *("root", "dac_override", "kill", "ipc_lock", "sys_ptrace", "sys_resource", "syslog"),
    )
    assert USER.in_words() == ()


# Reading it.


def proc_with(folder: Path, uid: int, capabilities: int) -> Path:
    (folder / "self").mkdir()
    text = f"Name:\tx\nUid:\t1000\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities:016x}\n"
    (folder / "self" / "status").write_text(text)
    return folder


def test_the_effective_user_and_capabilities_count(tmp_path: Path) -> None:
    (tmp_path / "root" / "run/systemd/system").mkdir(parents=True)
    held = look(proc_with(tmp_path, 0, 1 << 5 | 1 << 34), tmp_path / "root")
    assert held == Privileges(True, frozenset({"kill", "syslog"}), systemd=True, becomes_others=False)


def test_becoming_another_user_takes_two_capabilities(tmp_path: Path) -> None:
    assert look(proc_with(tmp_path, 0, 1 << 6 | 1 << 7), tmp_path).becomes_others


def test_no_systemd_where_it_is_not_pid_1(tmp_path: Path) -> None:
    assert not look(proc_with(tmp_path, 0, 0), tmp_path).systemd


@pytest.mark.parametrize(("uid", "lingers"), [(0, True), (2, True), (65534, False)])
def test_only_ordinary_users_are_logged_out(tmp_path: Path, uid: int, *, lingers: bool) -> None:
    """0 is root, 2 one of the system's, 65534 `nobody`, whom logind takes for a person."""
    root = tmp_path / "root"
    (root / "run/systemd/system").mkdir(parents=True)
    assert look(proc_with(tmp_path, uid, 0), root).lingers == lingers
    (root / "var/lib/systemd/linger").mkdir(parents=True)
    (root / "var/lib/systemd/linger" / "nobody").touch()
    assert look(tmp_path, root).lingers


def test_this_very_process() -> None:
    held = look()
    assert held.root == (os.geteuid() == 0)
    assert held.systemd == Path("/run/systemd/system").is_dir()
