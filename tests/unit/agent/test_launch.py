"""A rank's argv and environment: from scratch, with one order of who wins."""

from sparkd.engine.plugin import plugin_folder
from sparkd_agent.runtime.base import make_launch
from tests.bed.ranks import rank_spec


def test_the_environment_is_made_from_scratch_and_later_wins() -> None:
    spec = rank_spec(
        "sparkd-t-g1-r0",
        "serve",
        env={"A": "spec", "B": "spec", "SPARKD_RANK": "forged"},
        secrets={"B": "secret"},
    )
    launch = make_launch(
        spec,
        ("/opt/vllm/bin/vllm",),
        agent_env={"HOME": "/root", "LANG": "C.UTF-8", "AGENT_TOKEN": "x", "LD_PRELOAD": "evil.so"},
        rank_env={"A": "node", "C": "node", "HOME": "/srv"},
        cwd="/",
    )
    assert launch.argv == ("/opt/vllm/bin/vllm", "serve")
    path = launch.env.pop("PYTHONPATH")
    assert path == str(plugin_folder())
    assert launch.env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/srv",
        "A": "spec",
        "B": "secret",
        "C": "node",
        "SPARKD_RANK": "sparkd-t-g1-r0",
    }


def test_what_leads_ranks_past_each_other_and_what_a_spec_takes_away() -> None:
    spec = rank_spec("sparkd-t-g1-r0", "serve", env={"NCCL_IB_HCA": "", "KEPT": "spec"})
    launch = make_launch(
        spec,
        ("/opt/vllm/bin/vllm",),
        agent_env={"TZ": ""},
        rank_env={
            "NCCL_IB_HCA": "mlx5_9",
            "https_proxy": "http://10.0.0.9",
            "NCCL_COMM_ID": "10.0.0.9:1",
            "EMPTY": "",
            "KEPT": "node",
            "NCCL_DEBUG": "WARN",
        },
        cwd="/",
    )
    assert launch.env.keys() == {"PATH", "PYTHONPATH", "SPARKD_RANK", "KEPT", "NCCL_DEBUG"}
