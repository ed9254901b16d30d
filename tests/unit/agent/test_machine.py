"""What an agent finds of its machine, from a file system that a test lays out."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sparkd.detect.gpu import GpuLook, GpuProcess
from sparkd.records.facts import MachineFacts
from sparkd_agent.config import AgentConfig, EngineConfig
from sparkd_agent.machine import Machine

MEMINFO = """MemTotal:       127600748 kB
MemFree:         1000000 kB
MemAvailable:    2000000 kB
SwapTotal:       8388604 kB
CmaTotal:              0 kB
CmaFree:          940604 kB
"""
CONTAINER = "0::/system.slice/docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Spark, by its files."""
    for folder in ("proc/driver/nvidia", "dev/shm", "tmp", "etc", "state", "models"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
    )
    library = tmp_path / "usr/lib/aarch64-linux-gnu"
    library.mkdir(parents=True)
    (library / "libnvidia-ml.so.580.126.09").touch()
    (library / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.580.126.09")
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
    (tmp_path / "etc/dgx-release").write_text('DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.5.0"\n')
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/bios_version").write_text("5.36_0ACUM018\n")
    (tmp_path / "sys/class/infiniband/rocep1s0f1").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/rocep1s0f1/fw_ver").write_text("28.45.4028\n")
    site = tmp_path / "venv/lib/python3.12/site-packages"
    for name in (
        "vllm-0.25.1",
        "torch-2.10.0+cu130",
        "nvidia_nccl_cu13-2.29.7",
        "nvidia_cuda_runtime-13.0.96",
    ):
        (site / f"{name}.dist-info").mkdir(parents=True)
    (site / "vllm-0.25.1.dist-info/RECORD").write_text(
        "vllm/__init__.py,sha256=aa,10\nvllm/__pycache__/__init__.cpython-312.pyc,,\n../../../bin/vllm,sha256=bb,9\n"
    )
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    (tmp_path / "plugin/sparkd_mods").mkdir(parents=True)
    (tmp_path / "plugin/sparkd_mods/one.py").write_text("MOD = 1\n")
    return tmp_path


def config(root: Path) -> AgentConfig:
    return AgentConfig(
        node_id="n",
        name="n",
        address="10.0.0.1",
        fabric_address="10.0.1.1",
        fabric_interface="enp1s0f1np1",
        local=False,
        urls=("https://head:7071",),
        holder="h",
        engines={"default": EngineConfig(str(root / "venv/bin/python"))},
        model_roots=(str(root / "models"), str(root / "models"), "/no/such/root"),
        state=root / "state",
    )


def facts(
    root: Path, own: frozenset[int] = frozenset(), gpus: tuple[GpuLook, ...] | None = None
) -> MachineFacts:
    return Machine(config(root), sees_all=True, root=root, plugin=root / "plugin").look_over(own, gpus)


def process(
    root: Path, pid: int, title: str, *, parent: int = 1, cgroup: str = "0::/\n", env: str = ""
) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    fields = ["S", str(parent), "1", "1", *["0"] * 13, "1", "0", "7", "0", "262144"]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(title.replace(" ", "\0").encode() + b"\0")
    (folder / "environ").write_bytes(env.encode() + b"\0")
    (folder / "cgroup").write_text(cgroup)
    (folder / "maps").write_text("")


def test_versions_are_read_and_nothing_is_imported(root: Path) -> None:
    found = facts(root)
    (engine,) = found.engines
    assert engine.packages == {
        "vllm": "0.25.1",
        "torch": "2.10.0+cu130",
        "nccl": "2.29.7",
        "cuda": "13.0.96",
    }
    assert engine.python == "3.12.3"
    assert (found.driver, found.driver_library) == ("580.95.05", "580.126.09")
    assert found.firmware == {"system": "5.36_0ACUM018", "rocep1s0f1": "28.45.4028"}
    assert found.system == "DGX Spark 7.5.0 (Ubuntu 24.04.3 LTS)"
    assert found.kernel == os.uname().release


def test_a_build_is_known_by_its_own_files(root: Path) -> None:
    record = root / "venv/lib/python3.12/site-packages/vllm-0.25.1.dist-info/RECORD"
    before = facts(root).engines[0].build
    # Scripts hold the path of the interpreter, and compiled files the time: they say nothing of the build.
    record.write_text(record.read_text().replace("sha256=bb", "sha256=cc"))
    assert facts(root).engines[0].build == before != ""
    record.write_text(record.read_text().replace("sha256=aa", "sha256=dd"))
    assert facts(root).engines[0].build not in {"", before}
    record.unlink()
    assert facts(root).engines[0].build == ""


def test_the_mods_have_a_fingerprint(root: Path) -> None:
    before = facts(root).mods
    (root / "plugin/sparkd_mods/one.py").write_text("MOD = 2\n")
    assert facts(root).mods not in {"", before}


def test_room_and_memory_are_counted_in_bytes(root: Path) -> None:
    found = facts(root)
    assert found.memory is not None
    assert (found.memory.total, found.memory.available) == (127600748 << 10, 2000000 << 10)
    assert (found.cma_total, found.cma_free, found.swap_total) == (0, 940604 << 10, 8388604 << 10)
    assert found.shm_free
    assert [disk.use for disk in found.disks] == ["state", "temporary", "models"]
    assert all(0 <= disk.free <= disk.total for disk in found.disks)


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    bare = replace(config(tmp_path), engines={}, model_roots=())
    found = Machine(bare, sees_all=False, root=tmp_path, plugin=tmp_path).look_over(frozenset(), None)
    assert (found.memory, found.cma_free, found.shm_free, found.driver, found.gpus) == (None,) * 5
    assert found.stale is None, "what others map is not shown to everybody"
    assert (found.mods, found.disks, found.processes, found.firmware) == ("", (), (), {})


def test_shared_memory_that_nobody_maps_is_named(root: Path) -> None:
    (root / "dev/shm/vllm_offload_1.mmap").write_bytes(b"x" * 4096)
    (root / "dev/shm/somebody-else").write_bytes(b"x" * 4096)
    for file in (root / "dev/shm").iterdir():
        os.utime(file, (1.0, 1.0))
    found = facts(root).stale
    assert found is not None
    assert [(Path(one.path).name, one.bytes) for one in found] == [("vllm_offload_1.mmap", 4096)]


def test_engines_of_others_are_named_and_our_own_are_not(root: Path) -> None:
    process(root, 900, "VLLM::EngineCore", env="SPARKD_RANK=sparkd-old-g1-r0")
    process(root, 901, "/opt/v/bin/python3 /opt/v/bin/vllm serve m", parent=7, cgroup=CONTAINER)
    process(root, 902, "/usr/lib/ray/raylet --port 1", parent=7)
    process(root, 903, "/home/ann/bin/train --epochs 3", parent=7)
    process(root, 904, "VLLM::Worker_TP0", parent=7)
    process(root, 905, "grep VLLM::EngineCore", parent=7)
    process(root, 906, "sleep 1", parent=7)
    gpu = GpuLook(1.0, 0, "NVIDIA GB10", processes=(GpuProcess(900, 104277 << 20), GpuProcess(903, None)))
    found = facts(root, own=frozenset({904}), gpus=(gpu,))
    assert found.gpus == ("NVIDIA GB10",)
    assert [one.pid for one in found.processes] == [900, 901, 902, 903]
    orphan, served, raylet, train = found.processes
    assert (orphan.parent, orphan.rank, orphan.gpu_bytes) == (1, "sparkd-old-g1-r0", 104277 << 20)
    assert served.container == "0123456789ab"
    assert (raylet.container, raylet.gpu_bytes) == (None, None)
    assert train.title == "/home/ann/bin/train --epochs 3"


def test_a_long_command_line_is_cut(root: Path) -> None:
    process(root, 900, f"vllm serve m --chat-template {'x' * 500}")
    assert len(facts(root).processes[0].title) == 120


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("vllm serve m --api-key sk-1 sk-2 --port 1", "vllm serve m --api-key … --port 1"),
        ("vllm serve m --api-key=sk-1", "vllm serve m --api-key=…"),
        ("python3 -m sglang.launch_server --hf-token hf_1", "python3 -m sglang.launch_server --hf-token …"),
        ("ollama serve -Password x", "ollama serve -Password …"),
        ("vllm serve m --tokenizer /models/t", "vllm serve m --tokenizer /models/t"),
    ],
)
def test_keys_of_others_are_not_told(root: Path, title: str, shown: str) -> None:
    process(root, 900, title)
    assert facts(root).processes[0].title == shown


def test_a_file_system_that_hangs_is_left_out_and_asked_once(root: Path) -> None:
    released, asked = threading.Event(), []

    def file_system(path: Path) -> tuple[int, int, int]:
        asked.append(path)
        if path == root / "models":
            released.wait()
        return (1, 2, 3)

    one = Machine(
        config(root), sees_all=True, root=root, plugin=root, resolve_s=0.05, file_system=file_system
    )
    try:
        for _ in range(3):
            assert "models" not in {
                Path(disk.path).name
                for disk in one.look_over(frozenset(), None).disks
                if disk.use == "models"
            }
        assert asked.count(root / "models") == 1
    finally:
        released.set()


def test_the_nccl_of_two_cudas_is_not_known(root: Path) -> None:
    """Which of them is loaded, its metadata does not say."""
    site = root / "venv/lib/python3.12/site-packages"
    (site / "nvidia_nccl_cu12-2.29.7.dist-info").mkdir()
    assert facts(root).engines[0].packages["nccl"] == "2.29.7", "the same one twice"
    (site / "nvidia_nccl_cu12-2.29.7.dist-info").rename(site / "nvidia_nccl_cu12-2.27.3.dist-info")
    assert "nccl" not in facts(root).engines[0].packages


def test_limits_of_control_groups(root: Path) -> None:
    """Of the slice of ranks and of where the agent is, and of what is above; of both versions."""
    groups = root / "sys/fs/cgroup"

    def group(path: str, **files: str) -> None:
        (groups / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (groups / path / name.replace("__", ".")).write_text(text + "\n")

    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text(
        "3:memory:/user.slice/u.scope\n0::/system.slice/sparkd-agent.service\n"
    )
    group("", memory__max="1000")
    group("system.slice/sparkd-agent.service", memory__max="max", memory__current="5")
    assert facts(root).memory_limits == ()
    group("sparkd.slice", memory__max="107374182400", memory__current="428867584")
    group("sparkd.slice/sparkd-ranks.slice", memory__max="max")
    group("memory/user.slice/u.scope", memory__limit_in_bytes="9223372036854771712")
    group("memory/user.slice", memory__limit_in_bytes="8589934592", memory__usage_in_bytes="x")
    found = [(one.group, one.most, one.used) for one in facts(root).memory_limits]
    assert found == [("/sparkd.slice", 107374182400, 428867584), ("/user.slice", 8589934592, None)]


def test_what_avahi_announces_is_read_from_its_title(root: Path) -> None:
    assert facts(root).mdns_name is None
    process(root, 77, "x")
    (root / "proc/77/cmdline").write_bytes(b"avahi-daemon: running [spark1-2.local]\0")
    stat = root / "proc/77/stat"
    stat.write_text(stat.read_text().replace("(a (b) c)", "(avahi-daemon)"))
    found = facts(root)
    assert found.mdns_name == "spark1-2.local"
    assert found.mdns_addresses in {(), None}, "no such name here"
