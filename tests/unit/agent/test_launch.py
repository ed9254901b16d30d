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
