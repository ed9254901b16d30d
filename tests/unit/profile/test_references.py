"""What arguments refer to: further models and files, which every node has at a place of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sparkd.errors import ProfileError
from sparkd.profile.differences import intent_differences
from sparkd.profile.files import read_files
from sparkd.profile.load import parse_source
from sparkd.profile.merge import resolve
from sparkd.profile.plan import build_plan
from sparkd.records.defaults import DEFAULTS
from sparkd.records.intent import Intent
from sparkd.records.plan import Plan
from sparkd.records.report import EngineFacts, NodeFacts

TEXT = """
schema: sparkd/v1
name: p
model: {path: m, also: {draft: {path: d/dflash}, other: {path: /abs}}}
layout: {tp: 2}
engine:
  args:
    speculative-config: {method: dflash, model: "also:draft", more: ["also:other"]}
    chat-template: files:chat.jinja
    hf-overrides: {text: "see also:draft"}
  files: {chat.jinja: sub/chat.jinja}
"""
FILES = {"chat.jinja": "e3sgeCB9fQ=="}


def node(number: int, **changes: Any) -> NodeFacts:
    facts = NodeFacts(
        id=f"n{number}",
        name=f"spark-{number}",
        address=f"10.0.0.{number}",
        fabric_address=f"192.168.7.{number}",
        engines=(EngineFacts("default", ("/opt/vllm/bin/python", "-m", "x"), "0.33.0"),),
        model_roots=(f"/models-{number}",),
        files_folder=f"/run/files-{number}",
    )
    return replace(facts, **changes)


def intent_of(text: str = TEXT, files: dict[str, str] = FILES) -> Intent:
    return replace(resolve(parse_source(text, "p.yaml")).intent, files=files)


def plan_of(intent: Intent, *nodes: NodeFacts, **changes: Any) -> Plan:
    numbers = {"generation": 1, "serial": 1, "api_port": 8100, "rendezvous_port": 29600}
    return build_plan("dep", intent, nodes or (node(1), node(2)), **numbers, **changes)


def value_of(plan: Plan, rank: int, flag: str) -> str:
    (found,) = (arg.words[1] for arg in plan.ranks[rank].args if arg.words[0] == flag)
    return found


def test_each_node_gets_its_own_paths() -> None:
    plan = plan_of(intent_of(), also_paths={"n2": {"draft": "/elsewhere/dflash"}})
    drafts = [msgspec.json.decode(value_of(plan, rank, "--speculative-config")) for rank in (0, 1)]
    assert [draft["model"] for draft in drafts] == ["/models-1/d/dflash", "/elsewhere/dflash"]
    assert drafts[0]["more"] == ["/abs"]
    templates = [value_of(plan, rank, "--chat-template") for rank in (0, 1)]
    assert [Path(path).parts[:3] for path in templates] == [
        ("/", "run", "files-1"),
        ("/", "run", "files-2"),
    ]
    assert all(path.endswith("/chat.jinja") for path in templates)
    assert "see also:draft" in value_of(plan, 0, "--hf-overrides")


def test_another_content_is_another_plan_and_another_intent() -> None:
    one, two = intent_of(), intent_of(files={"chat.jinja": "e3sgeSB9fQ=="})
    assert one.digest() != two.digest()
    assert intent_differences(one, two) == ("engine.files: the content of chat.jinja differs",)
    assert value_of(plan_of(one), 0, "--chat-template") != value_of(plan_of(two), 0, "--chat-template")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            ("also:draft", "also:drafft"),
            "p.yaml:8: engine.args.speculative-config: also:drafft names nothing that model.also has",
        ),
        (
            ("files:chat.jinja", "files:chat"),
            "p.yaml:9: engine.args.chat-template: files:chat names nothing that engine.files has",
        ),
        (("sub/chat.jinja", "/etc/passwd"), "p.yaml:11: engine.files.chat.jinja: write a path beside"),
        (("sub/chat.jinja", "../x"), "p.yaml:11: engine.files.chat.jinja: write a path beside the profile"),
    ],
)
def test_a_reference_to_nothing_is_named_with_its_line(edit: tuple[str, str], says: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_source(TEXT.replace(*edit, 1), "p.yaml")
    assert any(problem.startswith(says) for problem in caught.value.problems), caught.value.problems


def test_files_that_never_came_and_nodes_that_take_none_are_blocks() -> None:
    assert plan_of(intent_of()).verdicts == ()
    plan = plan_of(intent_of(files={}), node(1), node(2, files_folder=""))
    assert {(verdict.id, verdict.node) for verdict in plan.verdicts} == {
        ("ENGINE_FILES", None),
        ("ENGINE_FILES", "n2"),
    }


def test_files_are_read_beside_the_profile_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xff\0")
    (tmp_path / "secret").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "large").write_bytes(b"x" * (DEFAULTS.files_bytes + 1))
    assert read_files({"a": "a.txt"}, folder) == {"a": "/wA="}
    for path, says in (
        ("link", "leads out of the profile's folder"),
        ("none", "No such file"),
        (".", "Is a directory"),
        ("large", "more than 128 KiB"),
    ):
        with pytest.raises(ProfileError, match=says):
            read_files({"a": path}, folder)


def test_what_was_verified_is_shown_and_is_no_part_of_what_is_asked() -> None:
    plain = intent_of()
    told = intent_of(TEXT + 'verified: ["flags, by the parser of 0.33"]\n')
    assert told.digest() == plain.digest()
    assert intent_differences(plain, told) == ()
    assert plan_of(told).verified == ("flags, by the parser of 0.33",)
