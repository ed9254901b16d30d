import json
from pathlib import Path

import pytest

from sparkd.errors import UsageError
from sparkd_agent.config import AgentConfig, read_config


def config(folder: Path, urls: list[str], node: str = "", **credentials: str) -> AgentConfig:
    file = folder / "agent.toml"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in credentials.items()]
    file.write_text(
        '[node]\nid = "a"\nname = "a"\naddress = "10.0.0.1"\n'
        f'{node}[coordinator]\nholder = "h"\nurls = {json.dumps(urls)}\n{"".join(lines)}'
        '[engine.default]\npython = "/opt/python"\n[state]\ndir = "/var/lib/sparkd/agent"\n'
    )
    return read_config(file)


@pytest.mark.parametrize("url", ["http://127.0.0.1:7071", "http://[::1]:7071", "http://localhost:7071"])
def test_a_token_may_travel_within_this_machine(tmp_path: Path, url: str) -> None:
    read = config(tmp_path, [url], token_file="/t")
    assert (read.token_file, read.identity) == (Path("/t"), None)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.2:7071",
        "http://spark-1:7071",
        "http://127.evil.example:7071",
        "http://localhost.evil.example",
        "http://0.0.0.0:7071",
        "http://",
    ],
)
def test_and_over_no_network(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match="over a network: use https"):
        config(tmp_path, ["http://127.0.0.1:7071", url], token_file="/t")


def test_https_goes_with_certificates(tmp_path: Path) -> None:
    read = config(tmp_path, ["https://10.0.0.2:7071", "https://spark-1:7071"], identity="/i")
    assert (read.token_file, read.identity) == (None, Path("/i"))
    with pytest.raises(UsageError, match=r"coordinator\.identity"):
        config(tmp_path, ["https://10.0.0.2:7071"], token_file="/t")


@pytest.mark.parametrize("urls", [["https://a", "http://127.0.0.1"], ["ftp://a"], ["spark-1:7071"]])
def test_ways_that_do_not_go_together(tmp_path: Path, urls: list[str]) -> None:
    with pytest.raises(UsageError, match="all http:// or all https://"):
        config(tmp_path, urls, token_file="/t", identity="/i")


@pytest.mark.parametrize("written", ["spark-2.local", "192.168.100.2/24"])
def test_where_ranks_meet_is_an_address(tmp_path: Path, written: str) -> None:
    with pytest.raises(UsageError, match=r"node\.fabric_address: an IP address is needed"):
        config(tmp_path, ["https://a"], f'fabric_address = "{written}"\n', identity="/i")


def test_without_one_ranks_meet_at_the_nodes_address(tmp_path: Path) -> None:
    given = config(tmp_path, ["https://a"], 'fabric_address = "192.168.100.2"\n', identity="/i")
    assert given.fabric_address == "192.168.100.2"
    assert config(tmp_path, ["https://a"], identity="/i").fabric_address == "10.0.0.1"
