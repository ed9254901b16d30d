"""Whatever a wish or a path holds: the answer is no failure of ours, and nothing reaches a shell, the loader,
or a file outside its place. That accepted words arrive intact is in test_argv_intact.py.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from sparkd.engine.environment import env_refusal
from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.profile.schema import Profile
from sparkd.records.plan import Plan
from tests.bed.agent_process import until
from tests.bed.coordinator import Answer, Coordinator, coordinator
from tests.bed.fake_agent import PlayedNode

INJECTIONS = [
    "$(touch {mark})",
    "`touch {mark}`",
    "; touch {mark} #",
    "| touch {mark}",
    "&& touch {mark}",
    "\ntouch {mark}\n",
    "${{LD_PRELOAD}}",
    "%n%s%p",
    "--worker-cls=evil.Worker",
    "-",
    "../../../../etc/passwd",
    "/etc/../etc/shadow",
    "a\x00b",
    "\ud800",
    "'\"\\",
    "{{{{7*7}}}}",
    "x" * 100_000,
    "[" * 100_000,
    "\N{RIGHT-TO-LEFT OVERRIDE}\N{GRINNING FACE}",
    "",
]

WHOLE: dict[str, Any] = {
    "schema": "sparkd/v1",
    "name": "whole",
    "verified": ["a word"],
    "model": {"path": "tiny", "also": {"draft": {"path": "draft"}}},
    "fabric": {"rdma": "if-there"},
    "engine": {"vllm": ">=0.24", "args": {"chat-template": "x"}, "files": {}},
    "env": {"NCCL_DEBUG": "WARN"},
    "why": {"chat-template": "a reason"},
    "mods": [],
    "ready": {
        "canaries": [{"messages": [{"role": "user", "content": "x"}], "expect": {"contains": "84"}}],
        "warmup": [{"messages": [{"role": "user", "content": "x"}]}],
    },
    "api": {"host": "node", "key": "generate"},
    "variants": {"one": {"env": {"NCCL_DEBUG": "INFO"}}},
}
"""A profile with a text in every place that can hold one."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("hostile"), ("n1", "n2"), startup_hold_s=0.2) as one:
        nodes = [PlayedNode(one, node) for node in ("n1", "n2")]
        try:
            until(lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404, "the hold to be over")
            yield one
        finally:
            for node in nodes:
                node.stop()


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from texts(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from texts(below, (*path, index))
    elif isinstance(value, str):
        yield path


def with_text(profile: dict[str, Any], path: tuple[Any, ...], text: str, *, as_key: bool) -> dict[str, Any]:
    changed = copy.deepcopy(profile)
    here: Any = changed
    for key in path[:-1]:
        here = here[key]
    if as_key:
        here[text] = here.pop(path[-1])
    else:
        here[path[-1]] = text
    return changed


def test_the_whole_profile_is_valid_and_names_every_section() -> None:
    """A new section must find its way into this test."""
    Profile.model_validate(WHOLE)
    without_texts = {"layout", "memory", "boot", "restart"}
    sections = {"schema" if name == "schema_" else name for name in Profile.model_fields}
    assert sections - without_texts == set(WHOLE)


def ask_for(one: Coordinator, profile: dict[str, Any]) -> Answer:
    intent = {"profile_name": "whole", "profile": profile}
    # Not every text can stand in JSON as it is: a lone surrogate travels as an escape.
    body = json.dumps({"name": "whole", "intent": intent}).encode()
    return one.ask("POST", "/v1/plan", body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("as_key", [False, True], ids=["value", "key"])
@pytest.mark.parametrize("path", list(texts(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_a_hostile_text_in_a_profile(running: Coordinator, path: tuple[Any, ...], as_key: bool) -> None:
    if as_key and isinstance(path[-1], int):
        pytest.skip("a list has no keys")
    mark = running.folder / "touched"
    for pattern in INJECTIONS:
        text = pattern.format(mark=mark) if "{" in pattern else pattern
        answer = ask_for(running, with_text(WHOLE, path, text, as_key=as_key))
        assert answer.status in (200, 400, 409, 422), (path, text[:60], answer.status, answer.body[:300])
        if answer.status != 200:
            assert answer.json["code"] in ("profile-invalid", "usage"), answer.json
            continue
        plan = answer.json
        for spec in [rank["spec"] for rank in plan["ranks"]]:
            assert all("\x00" not in word for word in spec["args"])
            for name in spec["env"]:
                assert env_refusal(name, "x") is None or name != text
            folders = [word for word in spec["args"] if word.startswith("/models/")]
            assert not any(".." in folder.split("/") for folder in folders)
    assert not mark.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"NaN",
        b'"\\ud800"',
        b"\xff\xfe",
        b"",
        b"null",
        b"1" * 10_000,
        b'{"a":1e999}',
    ],
    ids=lambda body: repr(body[:12]),
)
@pytest.mark.parametrize("target", ["/v1/plan", "/v1/deployments/whole", "/v1/nodes"])
def test_a_body_that_is_no_wish(running: Coordinator, target: str, body: bytes) -> None:
    method = "PUT" if "deployments" in target else "POST"
    answer = running.ask(method, target, body, headers={"content-type": "application/json"})
    assert answer.status in (400, 409, 422), answer
    assert answer.json["code"] in ("usage", "conflict")


LOADS_CODE = [
    ("env", "LD_PRELOAD", "/tmp/evil.so"),
    ("env", "ld_library_path", "/tmp"),
    ("env", "PYTHONSTARTUP", "/tmp/evil.py"),
    ("env", "VLLM_PLUGINS", "evil"),
    ("env", "TRITON_CACHE_MANAGER", "evil:Manager"),
    ("env", "CUDA_INJECTION64_PATH", "/tmp/evil.so"),
    ("args", "worker-cls", "evil.Worker"),
    ("args", "worker_cls", "evil.Worker"),
    ("args", "tool-parser-plugin", "/tmp/evil.py"),
    ("args", "trust-remote-code", True),
    ("args", "middleware", ["evil.Middleware"]),
    ("args", "log-config-file", "/tmp/evil.json"),
    ("args", "config", "/tmp/evil.yaml"),
    ("args", "kv-transfer-config", {"kv_connector_module_path": "evil"}),
    ("args", "kv-transfer-config", '{"kv_connector_module_path": "evil"}'),
    ("args", "speculative-config", {"model": "evil.Proposer"}),
    ("args", "compilation-config", {"backend": "evil.compile"}),
]


@pytest.mark.parametrize(("where", "name", "value"), LOADS_CODE)
@pytest.mark.parametrize("by", ["plan", "up"])
def test_what_loads_code_is_refused_wherever_it_comes_in(
    running: Coordinator, where: str, name: str, value: Any, by: str
) -> None:
    """Straight to the API, past the command line's own checks."""
    profile = copy.deepcopy(WHOLE)
    (profile["env"] if where == "env" else profile["engine"]["args"])[name] = value
    intent = {"intent": {"profile_name": "whole", "profile": profile}}
    if by == "plan":
        answer = running.ask("POST", "/v1/plan", {"name": "whole", **intent})
    else:
        answer = running.ask("PUT", "/v1/deployments/whole", intent)
    assert (answer.status, answer.json["code"]) == (422, "profile-invalid"), answer.json
    assert name in answer.json["detail"] or name.replace("_", "-") in answer.json["detail"]
    assert running.ask("GET", "/v1/deployments/whole").status == 404


TRAVERSALS = [
    "..",
    ".",
    "../..",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%5c..%5cwindows",
    "%252e%252e%252f",
    "/etc/passwd",
    "//etc/passwd",
    "a%00b",
    "~root",
    "x" * 5000,
    "%0d%0aset-cookie:x=1",
    "%ff%fe",
]


def path_routes(one: Coordinator) -> list[tuple[str, str]]:
    paths = one.ask("GET", "/openapi.json").json["paths"]
    return [(method.upper(), path) for path, ways in paths.items() for method in ways if "{" in path]


def test_nothing_is_reached_through_a_path_parameter(running: Coordinator) -> None:
    routes = path_routes(running)
    assert len(routes) >= 8
    before = sorted(str(file) for file in running.folder.rglob("*") if "coordinator.sqlite" not in file.name)
    wish = {"intent": msgspec.to_builtins(resolve(load_profile("tiny")).intent), "generation": 1}
    for method, path in routes:
        for text in TRAVERSALS:
            start, _, end = path.partition("{")
            target = start + (text if "%" in text else quote(text, safe="/~")) + end.partition("}")[2]
            body = None if method == "GET" else wish
            answer = running.ask(method, target, body)
            assert 400 <= answer.status < 500, (method, target, answer.status)
            assert b"root:" not in answer.body
            assert "set-cookie" not in answer.headers
    after = sorted(str(file) for file in running.folder.rglob("*") if "coordinator.sqlite" not in file.name)
    assert after == before, "nothing was made anywhere"


@pytest.mark.parametrize(
    "query", ["rank=../../etc", "generation=-1", "since=nan", "lines=1e9", "rank=-1", "rank=" + "9" * 40]
)
def test_a_hostile_query(running: Coordinator, query: str) -> None:
    answer = running.ask("GET", f"/v1/deployments/absent/logs?{query}")
    assert 400 <= answer.status < 500


def test_a_plan_names_no_file_that_a_wish_made_up(running: Coordinator) -> None:
    """An absolute model path is the operator's to give; one with `..` says another thing than it means."""
    profile = copy.deepcopy(WHOLE)
    for bad in ("../outside", "a/../../outside", "/models/../etc"):
        profile["model"]["path"] = bad
        answer = ask_for(running, profile)
        assert (answer.status, answer.json["code"]) == (422, "profile-invalid"), bad
        assert "without `..`" in answer.json["detail"]
    profile["model"]["path"] = "inside"
    plan = msgspec.json.decode(ask_for(running, profile).body, type=Plan)
    assert plan.ranks[0].args
