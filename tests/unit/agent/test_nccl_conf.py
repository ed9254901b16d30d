"""What NCCL reads by itself: the user's file before the machine's, lines that are none passed over."""

from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.records.fabric import NcclSetting
from sparkd_agent.config import AgentConfig
from sparkd_agent.nccl_conf import nccl_files, nccl_settings

FILES = (Path("/home/ann/.nccl.conf"), Path("/etc/nccl.conf"))


def config(**changes: object) -> AgentConfig:
    plain = AgentConfig(
        node_id="n",
        name="n",
        address="10.0.0.1",
        fabric_address="10.0.1.1",
        fabric_interface=None,
        local=False,
        urls=(),
        holder="h",
        engines={},
        model_roots=(),
        state=Path("/var/lib/sparkd/agent"),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_users_file_wins_and_comments_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "home/ann").mkdir(parents=True)
    (tmp_path / "etc/nccl.conf").write_text(
        "# NCCL_NET=Socket\nNCCL_IB_HCA=mlx5_0\nNCCL_DEBUG=WARN\nnonsense\n=x\n"
    )
    (tmp_path / "home/ann/.nccl.conf").write_text(" NCCL_DEBUG = INFO \n")
    assert nccl_settings(FILES, tmp_path) == (
        NcclSetting("NCCL_DEBUG", "INFO", "/home/ann/.nccl.conf"),
        NcclSetting("NCCL_IB_HCA", "mlx5_0", "/etc/nccl.conf"),
    )


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00=\n", b"A" * 200_000])
def test_any_content_is_borne(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_bytes(content)
    assert len(nccl_settings(FILES, tmp_path)) <= 1
    assert nccl_settings(FILES, tmp_path / "absent") == ()


def test_the_file_is_that_of_whom_ranks_run_as() -> None:
    assert nccl_files(config(rank_user="root"))[0] == Path("/root/.nccl.conf")
    assert nccl_files(config(rank_user="no-such-user"))[0] == Path("/nonexistent/.nccl.conf")
    named = config(rank_env={"NCCL_CONF_FILE": "/srv/nccl.conf"})
    assert nccl_files(named) == (Path("/srv/nccl.conf"), Path("/etc/nccl.conf"))
