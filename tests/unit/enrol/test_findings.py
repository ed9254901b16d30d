from dataclasses import replace

from sparkd.enrol.findings import finding_lines, skew
from sparkd.enrol.probe import FoundContainer, FoundEngine, FoundFabric
from tests.unit.enrol.test_steps import FRESH

SPARK = replace(
    FRESH,
    address="10.0.0.1",
    gpu=("NVIDIA GB10, 580.95.05",),
    engines=(FoundEngine("/home/ann/vllm/bin/python", "0.32.0", "ann"),),
    model_roots=("/home/ann/.cache/huggingface/hub",),
    fabric=(
        FoundFabric("enp1s0f0np0", "rocep1s0f0", up=False),
        FoundFabric("enp1s0f1np1", "rocep1s0f1", True, 9000, 200_000, ("192.168.100.11",)),
    ),
)


def test_one_line_says_what_a_node_has() -> None:
    (line,) = finding_lines({"spark-1": SPARK}, {"spark-1": {"rank": {"user": "ann"}}})
    for word in (
        "spark-1: vLLM 0.32.0 (/home/ann/vllm/bin/python)",
        "/home/ann/.cache/huggingface/hub",
        "fabric enp1s0f1np1 192.168.100.11 (200 Gb/s, MTU 9000)",
        "NVIDIA GB10, 580.95.05",
    ):
        assert word in line


def test_who_else_uses_the_machine_is_said() -> None:
    busy = replace(
        SPARK,
        gpu_owners=("4242, python3",),
        containers=(FoundContainer("vllm_node", "vllm-node:latest"), FoundContainer("db", "postgres:18")),
    )
    said = "\n".join(finding_lines({"spark-1": busy}))
    assert "the GPU is in use by 4242, python3" in said
    assert "vllm_node (vllm-node:latest)" in said
    assert "postgres" not in said


def test_what_keeps_ranks_from_starting_is_said_with_what_to_do() -> None:
    bare = replace(SPARK, engines=(), fabric=(FoundFabric("enp1s0f0np0", "r", up=True),))
    said = "\n".join(finding_lines({"spark-1": bare}, {"spark-1": {"node": {}}}))
    assert "`--engine PYTHON`" in said
    assert "`--rank-user USER`" in said
    assert "enp1s0f0np0 has no address" in said
    owners = {"spark-1": {"engine": {"default": {}}, "rank": {"user": "ann"}}}
    assert "--engine" not in "\n".join(finding_lines({"spark-1": bare}, owners))


def test_differences_between_nodes_are_named_by_node() -> None:
    other = replace(SPARK, kernel="6.17.0-1", gpu=("NVIDIA GB10, 595.01",))
    found = skew({"spark-1": SPARK, "spark-2": SPARK, "spark-3": other})
    assert len(found) == 2
    assert "kernel differs: 6.14.0-1013-nvidia on spark-1, spark-2; 6.17.0-1 on spark-3" in found
    assert skew({"spark-1": SPARK, "spark-2": SPARK}) == []
    assert skew({"spark-1": SPARK}) == []
