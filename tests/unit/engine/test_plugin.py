"""How a rank finds sparkd's plug-in, and what is made of the lines that its mods tell."""

import json
from pathlib import Path

import pytest

from sparkd.engine.plugin import (
    ModLine,
    ModRequest,
    ModsSeen,
    encode_requests,
    known_mods,
    plugin_folder,
    read_mod_line,
    read_requests,
    with_plugin,
)

FOLDER = Path("/opt/sparkd/plugin")


@pytest.mark.parametrize(
    ("env", "added"),
    [
        ({}, {"PYTHONPATH": "/opt/sparkd/plugin"}),
        ({"PYTHONPATH": "/site:/more"}, {"PYTHONPATH": "/opt/sparkd/plugin:/site:/more"}),
        ({"PYTHONPATH": "/site:/opt/sparkd/plugin"}, {"PYTHONPATH": "/opt/sparkd/plugin:/site"}),
        (
            {"VLLM_PLUGINS": "lora,other"},
            {"PYTHONPATH": "/opt/sparkd/plugin", "VLLM_PLUGINS": "lora,other,sparkd"},
        ),
        ({"VLLM_PLUGINS": ""}, {"PYTHONPATH": "/opt/sparkd/plugin", "VLLM_PLUGINS": "sparkd"}),
    ],
)
def test_the_plug_in_is_found_whatever_the_node_sets(env: dict[str, str], added: dict[str, str]) -> None:
    assert with_plugin({"A": "b", **env}, FOLDER) == {"A": "b", **env, **added}


def test_mods_are_files_and_packages_of_the_folder(tmp_path: Path) -> None:
    package = tmp_path / "sparkd_mods"
    for name in (
        "one_mod.py",
        "_hidden.py",
        "__init__.py",
        "a_package/__init__.py",
        "_framework/__init__.py",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    (package / "notes").mkdir()
    assert known_mods(tmp_path) == ("a-package", "one-mod")


def test_the_folder_of_this_sparkd_holds_the_entry_point() -> None:
    (info,) = plugin_folder().glob("sparkd_mods-*.dist-info")
    assert "sparkd = sparkd_mods._framework.plugin:register" in (info / "entry_points.txt").read_text()
    assert "mimo-fused-qkv" in known_mods()


def test_requests_travel_in_the_environment() -> None:
    asked = (ModRequest("a"), ModRequest("b", required=False, unknown="try", settings={"order": "plain"}))
    assert read_requests({"SPARKD_MODS": encode_requests(asked)}) == asked
    assert read_requests({}) == ()
    assert read_requests({"SPARKD_MODS": "mine"}) == ()


def line(pid: int, state: str, **more: str) -> str:
    return "sparkd-mod " + json.dumps({"pid": pid, "role": "worker", "mod": "m", "state": state, **more})


def test_other_lines_and_broken_ones_say_nothing() -> None:
    assert read_mod_line(line(7, "applied")) == ModLine(7, "m", "applied", "worker")
    for text in ("", "INFO loading", "sparkd-mod {", line(7, "applied")[:-9], line(7, "unheard of")):
        assert read_mod_line(text) is None


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ([line(7, "applied")], None),
        ([line(7, "pending"), line(7, "applied")], None),
        ([line(7, "not needed", reason="upstream does it")], None),
        ([line(7, "applied"), line(7, "pending")], None),
        ([], "it never told of it"),
        ([line(8, "applied")], "it never told of it"),
        ([line(7, "pending")], "it never imported"),
        ([line(7, "refused", reason="a text that it does not know")], "a text that it does not know"),
        ([line(7, "applied"), line(7, "refused", reason="second target")], "second target"),
    ],
)
def test_what_a_process_with_a_model_must_have_told(told: list[str], why: str | None) -> None:
    missing = ModsSeen().read(told).missing([ModRequest("m")], 7, "VLLM::Worker_TP0")
    if why is None:
        assert missing is None
    else:
        assert missing is not None
        assert missing.startswith("required mod m is missing in VLLM::Worker_TP0 (pid 7)")
        assert why in missing
    assert ModsSeen().read(told).missing([ModRequest("m", required=False)], 7, "x") is None
