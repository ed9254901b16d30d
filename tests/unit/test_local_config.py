import os
from pathlib import Path

import pytest

from sparkd import local_config
from sparkd.errors import LocalSetFailed, UsageError
from sparkd.paths import Paths
from sparkd_agent.config import read_config


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths((), tmp_path / "s", tmp_path / "local", (tmp_path / "run",))


@pytest.mark.parametrize(
    "name", ["plain", 'qu"ote', "new\nline", "back\\slash", "$HOME", "del\x7f", "Straße"]
)
def test_the_agent_reads_what_is_written(paths: Paths, name: str) -> None:
    machinery = local_config.Machinery(f"/{name}/bin/python", (f"/{name}", "/second"))
    file = local_config.write_agent_config(paths, 2, "http://127.0.0.1:4711", "holder-1", machinery)
    config = read_config(file)
    assert config.engines["default"].python == machinery.python
    assert config.model_roots == machinery.model_roots
    assert (config.name, config.address, config.fabric_address) == ("local-2", "127.0.0.1", "127.0.0.2")
    assert (config.urls, config.holder, config.local) == (("http://127.0.0.1:4711",), "holder-1", True)
    assert file.stat().st_mode & 0o777 == 0o600
    local_config.write_agent_config(paths, 1, "http://127.0.0.1:1", "h", machinery)
    assert local_config.written_machinery(paths) == machinery


def test_ids_holder_and_token_are_minted_once(paths: Paths) -> None:
    machinery = local_config.Machinery("/p", ())

    def written() -> tuple[str, str, str]:
        holder = local_config.write_holder(paths, 2)
        config = read_config(
            local_config.write_agent_config(paths, 1, "http://127.0.0.1:1", holder, machinery)
        )
        return holder, config.node_id, local_config.write_token(paths).read_text()

    first = written()
    assert written() == first
    assert first[1] in (paths.local / "coordinator" / "holder.json").read_text()
    assert local_config.write_token(paths).stat().st_mode & 0o777 == 0o600


def test_a_socket_path_fits_and_its_folder_is_ours_alone(tmp_path: Path) -> None:
    long, short = tmp_path / ("x" * 100), tmp_path / "run"
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    machinery = local_config.Machinery("/p", ())

    def socket(*runtime: Path) -> Path | None:
        paths = Paths((), tmp_path, tmp_path / "local", runtime)
        return read_config(
            local_config.write_agent_config(paths, 1, "http://127.0.0.1:1", "h", machinery)
        ).socket

    found = socket(long, open_to_all, short)
    assert found is not None
    assert found.parent == short
    assert len(os.fsencode(found)) <= local_config.SOCKET_PATH_BYTES
    assert short.stat().st_mode & 0o777 == 0o700
    with pytest.raises(LocalSetFailed, match="XDG_RUNTIME_DIR"):
        socket(long, open_to_all)


def test_an_engine_is_a_python_or_a_venv(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/sh")
    for given in ("venv", str(tmp_path / "venv"), str(python)):
        found = local_config.find_machinery({"SPARKD_ENGINE": given}, tmp_path)
        assert found == local_config.Machinery(str(python), (str(tmp_path / ".models"),))
    models = {"SPARKD_ENGINE": "venv", "SPARKD_MODELS": "a:/b"}
    assert local_config.find_machinery(models, tmp_path).model_roots == (str(tmp_path / "a"), "/b")
    for wrong in ({}, {"SPARKD_ENGINE": "nowhere"}, {"SPARKD_ENGINE": str(tmp_path)}):
        with pytest.raises(UsageError, match="SPARKD_ENGINE"):
            local_config.find_machinery(wrong, tmp_path)
