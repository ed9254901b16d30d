"""Where each of the public reports is tried, with its input and its contrast. What is named here must exist.

The number and the id are the report's. `ID` is a folder of tests/cases, with hits and misses; `FILE::TEST` a
test of what is decided elsewhere: by a detector over time, by an agent, by the gang.
"""

import ast
from pathlib import Path

import pytest

from tests.bed.cases import FOLDER

TESTS = Path(__file__).parents[2]
DETECT, GANG, WATCH = "unit/detect", "sim/test_gang_life.py", "unit/agent/test_watch.py"

REPORTS: dict[str, tuple[str, ...]] = {
    "1 MEM_FREE_GATE": ("MEM_FREE_GATE", f"{WATCH}::test_room_is_made_before_a_rank_starts"),
    "2 HOST_WEDGE_NVRM": (
        "HOST_WEDGE_NVRM",
        f"{DETECT}/test_thrash.py::test_case_2_nvrm_lines_end_at_once",
        "unit/agent/test_ring.py::",
    ),
    "3 CGROUP_BLIND": ("CGROUP_BLIND", "unit/agent/test_machine.py::test_limits_of_control_groups"),
    "4 DESKTOP_OOM_FREEZE": ("DESKTOP_OOM_FREEZE",),
    "5 LOAD_SPIKE": (
        "LOAD_SPIKE",
        f"{DETECT}/test_plunge.py::test_case_5_the_drop_after_loading_is_healthy",
        f"{DETECT}/test_thrash.py::test_case_5_the_drop_after_loading_is_calm",
    ),
    "6 WATCHDOG_TOO_STRICT": (
        "WATCHDOG_TOO_STRICT",
        f"{DETECT}/test_thrash.py::test_case_6_a_flat_load_at_six_gib_goes_on",
    ),
    "7 TRAPPED_UMA": (
        f"{GANG}::test_memory_that_comes_back_late_is_waited_for",
        f"{GANG}::test_memory_that_never_comes_back_needs_a_reboot",
    ),
    "8 RETRY_DEATH_SPIRAL": ("unit/diagnosis/test_explanation.py::test_the_loudest_is_not_the_cause",),
    "10 KV_BYTES_NO_CHECK": ("KV_BYTES_NO_CHECK",),
    "11 MAX_BATCHED_TOKENS": ("MAX_BATCHED_TOKENS",),
    "13 SHM_LEAK": (
        "SHM_LEAK",
        "contract/test_shm.py::test_exactly_what_a_dead_rank_used_is_removed",
        "contract/test_shm.py::test_what_a_living_process_still_uses_stays",
        "contract/test_shm.py::test_a_name_made_anew_by_somebody_else_stays",
        f"{DETECT}/test_node.py::test_stale_shared_memory",
    ),
    "14 ORPHAN_ENGINECORE": ("ORPHAN_ENGINECORE",),
    "15 RAY_MEMMON": (
        "RAY_MEMMON",
        "unit/engine/test_flags.py::test_every_spelling_of_an_owned_flag_is_refused",
    ),
    "17 GID_MISMATCH": ("GID_MISMATCH", "unit/fabric/test_choice.py::test_the_index_differs_between_nodes"),
    "18 GID_DRIFT": (
        "GID_MISMATCH",
        "unit/profile/test_plan_fabric.py::test_an_empty_index_is_none",
        f"{DETECT}/test_fabric.py::test_case_18_only_the_entry_that_the_rank_uses_matters",
        "unit/fabric/test_choice.py::test_one_index_for_all_is_wrong_for_one_half",
    ),
    "19 HALF_PORT": ("FABRIC_HALF",),
    "20 CX7_DEGRADED_13G": ("CX7_DEGRADED",),
    "22 LINK_100G": ("LINK_SLOW",),
    "23 SAME_SUBNET": ("ROUTE_AMBIGUOUS",),
    "24 PER_NODE_IFNAME": (
        "IFNAME_STALE_CONCRETE",
        "unit/fabric/test_choice.py::test_the_cable_is_in_different_ports",
    ),
    "25 GLOO_LOOPBACK": ("GLOO_LOOPBACK",),
    "28 PORT_IN_USE": ("PORT_IN_USE", "contract/faults/test_port_stolen.py::"),
    "30 MEMLOCK": ("MEMLOCK",),
    "31 KHO_CMA": ("KHO_CMA", "MEMLOCK", f"{DETECT}/test_node.py::test_case_31_cma"),
    "32 MTU_MISMATCH": ("MTU_MISMATCH", "unit/fabric/test_reach.py::test_large_packets_are_lost"),
    "33 NO_HCA": ("NO_HCA", "FABRIC_ABSENT", "unit/gang/test_transport.py::"),
    "34 MDNS_CONFLICT": ("MDNS_CONFLICT",),
    "36 IDLE_SIGABRT": ("IDLE_SIGABRT",),
    "37 ENGINE_DEAD_CONTAINER_UP": ("ENGINE_DEAD_CONTAINER_UP",),
    "38 SPIN_DEADLOCK": (
        f"{DETECT}/test_gpu.py::test_case_38_a_spinning_kernel",
        f"{DETECT}/test_gpu.py::test_quiet",
    ),
    "39 NO_RESTART_CLEANUP": (
        f"{GANG}::test_without_a_spare_the_gang_waits_for_the_lost_node_by_name",
        "unit/fleet/test_members.py::test_what_is_left_on_a_node_in_contact_holds_it_and_a_dead_one_may_go",
    ),
    "40 PEER_NEVER_EXITS": ("contract/falls/test_kinds.py::test_a_fall_while_ready",),
    "41 FALSE_HANG": (
        f"{DETECT}/test_progress.py::test_a_silent_reader_always_progresses",
        f"{DETECT}/test_progress.py::test_a_spinner_with_heartbeats_never_progresses",
        "unit/gang/test_deadlines.py::test_progress_of_one_rank_within_the_allowance_keeps_the_gang",
    ),
    "42 LOW_POWER_STUCK": (
        f"{DETECT}/test_gpu.py::test_case_42_stuck_in_low_power",
        f"{DETECT}/test_gpu.py::test_quiet",
    ),
    "43 IMAGE_MISMATCH, DISK_FULL": ("IMAGE_MISMATCH", "DISK_FULL", "ENGINE_SKEW"),
    "45 ARGV_REPARSE": ("contract/test_argv_intact.py::test_every_word_arrives",),
    "47 MODEL_MISSING_ON_RANK": (
        "MODEL_MISSING",
        "CHECKPOINT_SKEW",
        "unit/agent/test_checkpoint.py::test_another_revision_of_the_same_model_is_named",
    ),
    "48 HALF_DOWNLOAD": (
        "HALF_DOWNLOAD",
        "unit/agent/test_checkpoint.py::test_what_is_wrong_with_weights_is_seen_from_headers",
    ),
    "49 IFNAME_STALE_CONCRETE": ("IFNAME_STALE_CONCRETE",),
    "51 FIREWALL": ("FIREWALL", "unit/fabric/test_reach.py::test_a_firewall_on_both_sides"),
    "52 DOCKER_NO_GPU": ("DOCKER_NO_GPU", "DOCKER_DENIED"),
    "54 SSH_HOSTKEY": (
        "SSH_HOSTKEY",
        "contract/enrol/test_ssh.py::test_accept_new_takes_hosts_that_were_never_seen_but_none_that_changed",
    ),
    "57 RING_ERR110": ("RING_ERR110", "RING_NCCL", "RING_TOO_LARGE"),
    "E DistStoreError, 2/8 clients joined": ("RANK_ABSENT",),
    "E libcudart.so.12": ("LIBRARY_MISSING",),
    "E invoked oom-killer": ("KERNEL_OOM",),
}


@pytest.mark.parametrize("report", REPORTS)
def test_each_report_is_tried(report: str) -> None:
    for place in REPORTS[report]:
        file, colons, name = place.partition("::")
        if not colons:
            cases = [case.name for case in (FOLDER / place).iterdir()]
            assert any(one.startswith("hit-") for one in cases), place
            assert any(one.startswith("miss-") for one in cases), place
            continue
        defined = {
            one.name
            for one in ast.walk(ast.parse((TESTS / file).read_text()))
            if isinstance(one, ast.FunctionDef)
        }
        assert name in defined if name else any(one.startswith("test_") for one in defined), place
