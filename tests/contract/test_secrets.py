"""Secrets, looked for where others may read: command lines, logs, files, answers, what an agent reports."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from sparkd.coordinator.tokens import mint_token
from sparkd.enrol.roster import read_roster
from tests.bed.agent_process import AgentProcess, ScriptedCoordinator, agent_process, until
from tests.bed.ranks import rank_spec
from tests.bed.secure import DAY, SecureCoordinator, make_identity

KEY = "sk-the-key-of-this-test-0123456789"


def command_lines() -> list[bytes]:
    """Of every process of this machine, as `ps` shows them to anybody."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found.append((folder / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def open_files_with(secret: str, *folders: Path) -> list[Path]:
    """Files that hold the secret, and that others than their owner may read."""
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if secret.encode() in file.read_bytes() and file.stat().st_mode & 0o077]


def test_a_ranks_key_is_in_its_environment_and_one_private_file(tmp_path: Path) -> None:
    with ScriptedCoordinator() as script, agent_process(tmp_path, script.url) as agent:
        until(lambda: script.hellos, "a hello")
        spec = rank_spec("sparkd-t-g1-r0", secrets={"VLLM_API_KEY": KEY}, env={"SEEN": "value-of-env"})
        script.publish(1, ranks=(spec,))
        pid = script.rank(spec.name, "running").pid
        assert f"VLLM_API_KEY={KEY}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        agent.kill()
        agent.start()
        until(lambda: len(script.hellos) >= 2, "the hello of the next run")
        # Both runs have written and told everything that they do: ledger, folder of the rank, log, reports.
        until(lambda: b"value-of-env" in _all_bytes(tmp_path / "state"), "the spec in the ledger")
        assert not [line for line in command_lines() if KEY.encode() in line]
        # The pulse needs it, also in the next run of the agent.
        (kept,) = [
            file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()
        ]
        assert (kept.name, kept.stat().st_mode & 0o777) == ("api.key", 0o600)
        told = msgspec.json.encode([script.hellos, script.reports])
        assert b"value-of-env" in told
        assert KEY.encode() not in told
        status = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "sparkd_agent",
                "status",
                "-o",
                "json",
                "--config",
                tmp_path / "agent.toml",
            ],
            capture_output=True,
            check=True,
        )
        assert json.loads(status.stdout)["ranks"]
        assert KEY.encode() not in status.stdout


def _all_bytes(folder: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_keys_and_tokens_of_a_cluster_stay_in_their_files(tmp_path: Path) -> None:
    """Through an enrolment, a renewal and a restart: private keys in 0600 files, tokens as digests only."""
    one = SecureCoordinator(tmp_path, {"a": "spark-a"})
    one.start()
    try:
        other = mint_token(one.state, "someone", "read")
        assert one.ask("GET", "/v1/status", token=other).status == 200
        assert one.ask("GET", "/v1/status", token="a-wrong-token-0123456789").status == 401
        identity = make_identity(tmp_path / "id", one.authority, "a", issued=time.time() - 300 * DAY)
        before = (identity / "node.crt").read_text()
        (tmp_path / "agent").mkdir()
        holder = read_roster(one.state).holder
        agent = AgentProcess(tmp_path / "agent", one.agents_url, node="a", holder=holder, identity=identity)
        agent.start()
        try:
            until(lambda: (identity / "node.crt").read_text() != before, "a renewed certificate")
            one.end()
            one.launch()
            until(lambda: agent.log.count("connected to") >= 2, "the agent to be back")
            secrets = {
                "the token of tests": one.token,
                "a token": other,
                "a wrong token": "a-wrong-token-0123456789",
                **{file.name: _body(file) for file in one.state.glob("*.key")},
                "coordinator.pem": _body(one.state / "coordinator.pem"),
                "node.key": _body(identity / "node.key"),
            }
            answers = b"".join(
                one.ask("GET", path).body
                for path in (
                    "/v1/status",
                    "/v1/nodes",
                    "/v1/membership",
                    "/v1/events?follow=false",
                    "/metrics",
                )
            )
            lines = command_lines()
            for name, secret in secrets.items():
                assert len(secret) > 20, name
                assert not [line for line in lines if secret.encode() in line], name
                assert secret not in one.log + agent.log, name
                assert secret.encode() not in answers, name
                assert open_files_with(secret, tmp_path) == [], name
            assert other not in _all_bytes(one.state).decode(errors="replace")
        finally:
            agent.end()
    finally:
        one.end()


def _body(file: Path) -> str:
    """The first line of a PEM that says anything: of a private key, its beginning."""
    lines = file.read_text().splitlines()
    # The first one is the same for every key of its kind.
    return lines[lines.index("-----BEGIN PRIVATE KEY-----") + 2]


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    """This test of the test: a secret in a command line and in an open file is found."""
    secret = f"planted-{os.getpid()}-0123456789"
    (tmp_path / "open").write_text(secret)
    (tmp_path / "closed").touch(0o600)
    (tmp_path / "closed").write_text(secret)
    (tmp_path / "open").chmod(0o644)
    with subprocess.Popen([sys.executable, "-c", "input()", secret], stdin=subprocess.PIPE) as process:
        until(lambda: [line for line in command_lines() if secret.encode() in line], "the planted secret")
        process.communicate(b"\n")
    assert open_files_with(secret, tmp_path) == [tmp_path / "open"]
