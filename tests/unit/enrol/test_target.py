import getpass
from pathlib import Path

import pytest

from sparkd.enrol.target import SshSettings
from sparkd.errors import UsageError


def settings(home: Path, config: str = "", **more: str) -> SshSettings:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_text(config)
    for name, text in more.items():
        (home / ".ssh" / name).write_text(text)
    return SshSettings(home, system=home / "no-etc-ssh")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("spark-1", (getpass.getuser(), "spark-1", 22)),
        ("ann@spark-1", ("ann", "spark-1", 22)),
        ("ann@spark-1:2222", ("ann", "spark-1", 2222)),
        ("10.0.0.1:2222", (getpass.getuser(), "10.0.0.1", 2222)),
    ],
)
def test_what_was_typed(tmp_path: Path, typed: str, expected: tuple[str, str, int]) -> None:
    route = settings(tmp_path).route(typed)
    assert (route.user, route.host, route.port) == expected
    assert route.name == expected[1]
    assert route.keys[0] == tmp_path / ".ssh/id_ed25519"


HOSTILE = [
    "",
    "-oProxyCommand=touch /tmp/x",
    "a b",
    "a;touch",
    "$(touch x)",
    "`x`",
    "a\nb",
    "../../etc",
    "a@b@c",
    "a:0",
    "a:99999",
    "a:x",
    "'a'",
    "[fe80::1%eth0]",
    "x" * 80,
]


@pytest.mark.parametrize("typed", HOSTILE)
def test_hostile_names_are_refused(tmp_path: Path, typed: str) -> None:
    with pytest.raises(UsageError):
        settings(tmp_path).route(typed)


def test_an_alias_keeps_its_name_and_takes_the_rest_from_the_configuration(tmp_path: Path) -> None:
    config = f"""
Host spark-1
  HostName 192.168.1.11
  Port 2222
  User ann
  IdentityFile {tmp_path}/.ssh/spark
  IdentitiesOnly yes
  HostKeyAlias the-first-spark
  UserKnownHostsFile {tmp_path}/hosts
"""
    route = settings(tmp_path, config).route("spark-1")
    assert (route.name, route.user, route.host, route.port) == ("spark-1", "ann", "192.168.1.11", 2222)
    assert route.keys == (tmp_path / ".ssh/spark",)
    assert route.only_these
    assert route.label == "the-first-spark"
    assert route.known_hosts[0] == tmp_path / "hosts"
    # What is typed wins.
    assert settings(tmp_path, config).route("bob@spark-1:23").user == "bob"
    assert settings(tmp_path, config).route("bob@spark-1:23").port == 23


def test_includes_are_followed_and_the_block_around_them_goes_on(tmp_path: Path) -> None:
    config = "Include more/*\nInclude nothing-there\nHost spark-2\n  User ann\n  Include part\n  Port 2202\n"
    (tmp_path / ".ssh/more").mkdir(parents=True)
    (tmp_path / ".ssh/more/a").write_text("Host spark-1\n  HostName 10.0.0.1\n")
    (tmp_path / ".ssh/more/b").write_text("Host spark-2\n  HostName 10.0.0.2\n")
    ssh = settings(tmp_path, config, part="Host other\n  Port 1\n")
    assert ssh.route("spark-1").host == "10.0.0.1"
    second = ssh.route("spark-2")
    assert (second.user, second.host, second.port) == ("ann", "10.0.0.2", 2202)


def test_an_include_that_includes_itself_ends(tmp_path: Path) -> None:
    assert settings(tmp_path, "Include config\nHost a\n  Port 7\n").route("a").port == 7


def test_jumps_are_reached_through_those_before_them(tmp_path: Path) -> None:
    config = "Host inner\n  ProxyJump first,ann@second:2222\nHost second\n  HostName 10.0.0.2\n"
    route = settings(tmp_path, config).route("inner")
    assert route.jump is not None
    assert (route.jump.user, route.jump.host, route.jump.port) == ("ann", "10.0.0.2", 2222)
    assert route.jump.jump is not None
    assert route.jump.jump.host == "first"
    assert route.jump.jump.jump is None


def test_jumps_in_a_circle_and_proxy_commands_are_refused(tmp_path: Path) -> None:
    ssh = settings(
        tmp_path, "Host a\n  ProxyJump b\nHost b\n  ProxyJump a\nHost c\n  ProxyCommand nc %h %p\n"
    )
    with pytest.raises(UsageError, match="circles"):
        ssh.route("a")
    with pytest.raises(UsageError, match="ProxyCommand"):
        ssh.route("c")


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config: Unparsable line"):
        settings(tmp_path, "Host a\n=====\n")
