from pathlib import Path

import pytest

from sparkd.errors import UsageError
from sparkd.local_facts import local_engine, local_model_roots, local_node_facts


def test_nodes_of_a_local_set_differ_in_their_fabric_address_only(tmp_path: Path) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    first, second = local_node_facts(2, tmp_path, [Path("/m")])
    assert (first.name, first.address, first.fabric_address) == ("local-1", "127.0.0.1", "127.0.0.1")
    assert (second.name, second.address, second.fabric_address) == ("local-2", "127.0.0.1", "127.0.0.2")
    assert first.fabric_interface == "lo"
    assert first.local
    assert first.engines == second.engines
    assert first.engines[0].command == (str(tmp_path / "bin/python"), "-m", "vllm.entrypoints.cli.main")
    assert first.engines[0].version == "0.32.0+cpu"


def test_an_engine_may_be_an_interpreter_and_need_not_exist(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch()
    assert local_node_facts(1, python, [])[0].engines[0].command[0] == str(python)
    missing = local_node_facts(1, tmp_path / "no", [])[0].engines[0]
    assert missing.command[0] == str(tmp_path / "no" / "bin" / "python")
    assert missing.version is None


@pytest.mark.parametrize("count", [-1, 0, 251])
def test_the_number_of_nodes_is_bounded(count: int) -> None:
    with pytest.raises(UsageError, match="between 1 and 250"):
        local_node_facts(count, Path("/e"), [])


def test_engine_and_model_roots_come_from_the_environment_or_the_folder() -> None:
    here = Path("/here")
    assert local_engine({}, here) == Path("/here/.venv-vllm")
    assert local_engine({"SPARKD_ENGINE": "../e"}, here) == Path("/e")
    assert local_model_roots({"SPARKD_MODELS": ""}, here) == (Path("/here/.models"),)
    assert local_model_roots({"SPARKD_MODELS": "/a:b"}, here) == (Path("/a"), Path("/here/b"))
