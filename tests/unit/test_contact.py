import os
from pathlib import Path

import msgspec
import pytest

from sparkd.contact import find_coordinator
from sparkd.daemon import boot_id
from sparkd.errors import Unauthorized
from sparkd.local_set import LocalSet
from sparkd.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    config = tmp_path / "config"
    config.mkdir()
    (tmp_path / "local").mkdir()
    return Paths((config,), tmp_path / "state", tmp_path / "local", (tmp_path,))


def write_local_set(paths: Paths, start_time: int | None = None) -> None:
    """A set whose coordinator is this test's process."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    found = LocalSet(
        "http://127.0.0.1:4711",
        "http://127.0.0.1:4712",
        2,
        os.getpid(),
        int(stat[19]) if start_time is None else start_time,
        boot_id(),
    )
    (paths.local / "coordinator.json").write_bytes(msgspec.json.encode(found))


def test_the_order_is_that_of_the_design(paths: Paths) -> None:
    env = {"SPARKD_COORDINATOR": "http://env:7070"}
    write_local_set(paths)
    (paths.config[0] / "s.toml").write_text('[cli]\ncoordinator = "http://file:7070"\n')
    found = find_coordinator("http://flag:7070", env, paths)
    assert (found.url, found.how) == ("http://flag:7070", "--coordinator")
    found = find_coordinator(None, env, paths)
    assert (found.url, found.how) == ("http://env:7070", "SPARKD_COORDINATOR")
    found = find_coordinator(None, {}, paths)
    assert (found.url, found.how) == ("http://file:7070", str(paths.config[0] / "s.toml"))
    (paths.config[0] / "s.toml").unlink()
    found = find_coordinator(None, {}, paths)
    assert (found.url, found.how, found.is_local) == ("http://127.0.0.1:4711", "local set", True)
    (paths.local / "coordinator.json").unlink()
    found = find_coordinator(None, {}, paths)
    assert (found.url, found.how, found.is_guess) == ("http://127.0.0.1:7070", "default", True)


def test_another_process_with_the_pid_of_the_coordinator_is_no_live_set(paths: Paths) -> None:
    write_local_set(paths, start_time=1)
    assert find_coordinator(None, {}, paths).is_guess


def test_an_address_without_scheme_is_http(paths: Paths) -> None:
    assert find_coordinator("spark-1:7070/", {}, paths).url == "http://spark-1:7070"


def test_the_local_sets_token_goes_to_the_local_set_only(paths: Paths) -> None:
    write_local_set(paths)
    assert find_coordinator(None, {}, paths).token_file == paths.local / "token"
    assert find_coordinator("http://127.0.0.1:4711", {}, paths).token_file == paths.local / "token"
    assert find_coordinator("http://elsewhere:7070", {}, paths).token_file == paths.state / "token"


def test_a_token_file_can_be_named(paths: Paths) -> None:
    (paths.config[0] / "s.toml").write_text('[cli]\ntoken_file = "/from/config"\n')
    assert find_coordinator(None, {}, paths).token_file == Path("/from/config")
    assert find_coordinator(None, {"SPARKD_TOKEN_FILE": "/from/env"}, paths).token_file == Path("/from/env")


def test_a_token_that_others_may_read_is_refused(paths: Paths, tmp_path: Path) -> None:
    file = tmp_path / "token"
    contact = find_coordinator(None, {"SPARKD_TOKEN_FILE": str(file)}, paths)
    assert contact.token() is None
    file.touch(0o600)
    file.write_text("abc\n")
    assert contact.token() == "abc"
    file.chmod(0o640)
    with pytest.raises(Unauthorized, match="chmod 600"):
        contact.token()
