"""What is gone is refused with what does its work now; what nobody knows is left alone."""

import pytest

from sparkd.engine.flags import KNOWN
from sparkd.engine.release_table import FLAGS, RELEASES, VARIABLES
from sparkd.engine.releases import (
    REPLACEMENTS,
    flag_gone,
    flag_missing,
    stated,
    variable_gone,
    variable_missing,
    variable_unknown,
)
from sparkd.engine.versions import VersionRange

ALL = VersionRange.parse(">=0.24,<0.34")
SUPPORTED = RELEASES[1:]


def test_the_releases_of_a_range() -> None:
    assert stated(ALL) == SUPPORTED
    assert stated(VersionRange.parse(">=0.24,<0.25 | >=0.33")) == ("0.24", "0.33")
    assert stated(VersionRange.parse(">=0.40")) == ()


@pytest.mark.parametrize(
    ("name", "vllm", "says"),
    [
        ("calculate-kv-scales", ">=0.24,<0.34", "vLLM 0.28 has no --calculate-kv-scales any more"),
        ("calculate-kv-scales", "<0.28", None),
        ("calculate-kv-scales", ">=0.24,<0.25 | >=0.33", "vLLM 0.33 has no"),
        ("watchdog-config", ">=0.24,<0.33", "from 0.33 on, and the profile is for 0.32 at most"),
        ("watchdog-config", ">=0.24,<0.34", None),
        ("enforce-eager", ">=0.24,<0.34", None),
        ("a-plug-in-s-own", ">=0.24,<0.34", None),
        ("calculate-kv-scales", ">=0.50", None),
    ],
)
def test_flags(name: str, vllm: str, says: str | None) -> None:
    reason = flag_gone(name, VersionRange.parse(vllm))
    assert (reason is None) if says is None else (reason is not None and says in reason)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("VLLM_USE_FLASHINFER_MOE_FP4", "moe-backend"),
        ("VLLM_FLASHINFER_MOE_BACKEND", "flashinfer_cutlass"),
        ("VLLM_NVFP4_GEMM_BACKEND", "linear-backend"),
        ("VLLM_ATTENTION_BACKEND", "attention-backend"),
        ("VLLM_ENGINE_ITERATION_TIMEOUT_S", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        ("VLLM_CI_USE_S3", "narrow engine.vllm"),
    ],
)
def test_variables_that_are_gone_name_their_replacement(name: str, instead: str) -> None:
    reason = variable_gone(name, ALL)
    assert reason is not None
    assert instead in reason


def test_variables_that_exist_or_are_nobodys_are_left_alone() -> None:
    for name in ("VLLM_ENGINE_READY_TIMEOUT_S", "NCCL_DEBUG", "M3_OFFICIAL_PORT", "VLLM_SOME_FORK"):
        assert variable_gone(name, ALL) is None
    assert variable_gone("VLLM_ENGINE_ITERATION_TIMEOUT_S", VersionRange.parse("<0.30")) is None
    assert variable_unknown("VLLM_ENGINE_READY_TIMEOUT_S") is None
    assert variable_unknown("NCCL_DEBUGG") is None
    text = variable_unknown("VLLM_ENGINE_READY_TIMEOUT")
    assert text is not None
    assert "did you mean VLLM_ENGINE_READY_TIMEOUT_S?" in text


@pytest.mark.parametrize("name", sorted(REPLACEMENTS))
def test_every_replacement_is_there_in_the_newest_release(name: str) -> None:
    newest = VersionRange.parse(f">={SUPPORTED[-1]}")
    gone = variable_gone(name, newest) if name.isupper() else flag_gone(name, newest)
    assert gone is not None
    words = REPLACEMENTS[name].replace(",", " ").replace(":", " ").replace(";", " ").split()
    named = [word for word in words if word in KNOWN or word.startswith("VLLM_")]
    assert named or "leave it out" in REPLACEMENTS[name]
    for word in named:
        assert not variable_missing(word, "0.33.0")
        assert not flag_missing(word, "0.33.0")


def test_what_an_engine_has() -> None:
    assert flag_missing("watchdog-config", "0.32.0+cpu")
    assert not flag_missing("watchdog-config", "0.33.1rc1.dev20+gab12")
    assert not flag_missing("watchdog-config", "0.40.0")
    assert flag_missing("calculate-kv-scales", "0.40.0")
    assert not flag_missing("calculate-kv-scales", "a build of somebody")
    assert variable_missing("VLLM_TRITON_USE_TD", "0.24.0")
    assert not variable_missing("VLLM_TRITON_USE_TD", "0.26.0")


def test_the_tables_fit_together() -> None:
    assert set(FLAGS) <= set(KNOWN), "a flag that came or went must be known by its kind"
    for life in (*FLAGS.values(), *VARIABLES.values()):
        assert RELEASES.index(life[0]) <= RELEASES.index(life[1])
