"""`sparkd-agent`: the node's daemon, and three questions to it.

sparkd-agent run --config /etc/sparkd/agent.toml
sparkd-agent status
sparkd-agent logs sparkd-tiny-g1-r0 --lines 50
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sparkd.clock import SystemClock
from sparkd.errors import Conflict, SparkdError, UsageError
from sparkd.notify import Notifier
from sparkd.records.defaults import GIB
from sparkd_agent import privileges
from sparkd_agent.config import AgentConfig, read_config
from sparkd_agent.daemon import Agent
from sparkd_agent.identity import Identity
from sparkd_agent.ledger import open_ledger
from sparkd_agent.link import Link
from sparkd_agent.local_socket import LocalSocket, ask
from sparkd_agent.placed import files_root
from sparkd_agent.privileges import Offer, Privileges
from sparkd_agent.procfs import ProcFs
from sparkd_agent.ring import Ring
from sparkd_agent.runtime.base import Runtime
from sparkd_agent.runtime.process import ProcessRuntime
from sparkd_agent.shm import ShmJanitor
from sparkd_agent.watch import protect
from sparkd_agent.watch.around import surroundings
from sparkd_agent.watch.sample import Sampler

DEFAULT_CONFIG = Path("/etc/sparkd/agent.toml")


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    if options.verb == "uninstall":
        return _uninstall(options)
    try:
        config = read_config(options.config)
        match options.verb:
            case "run":
                run(config)
            case "status":
                _say(_readable(ask(_socket(config), {"ask": "status"}), as_json=options.output == "json"))
            case "ranks":
                if options.memory:
                    _say(json.dumps(ask(_socket(config), {"ask": "memory"}), indent=2))
                else:
                    _say(json.dumps(ask(_socket(config), {"ask": "status"}).get("ranks", []), indent=2))
            case "logs":
                question = {"ask": "log", "rank": options.rank, "lines": options.lines}
                found = ask(_socket(config), question)
                if "error" in found:
                    _complain(found["error"])
                    return 1
                _say(found["text"].rstrip("\n"))
    except SparkdError as error:
        _complain(error)
        return error.exit_code
    return 0


def _uninstall(options: argparse.Namespace) -> int:
    """Also for a node whose configuration is gone or broken."""
    from sparkd_agent.uninstall import uninstall  # noqa: PLC0415 - the daemon needs none of it

    config = None
    with contextlib.suppress(UsageError):
        config = read_config(options.config)
    try:
        done = uninstall(config, root=options.root, systemctl=options.systemctl, force=options.force)
    except SparkdError as error:
        _complain(error)
        return error.exit_code
    if options.output == "json":
        _say(json.dumps({"removed": done.removed, "left": done.left}))
    else:
        for line in (*(f"removed  {name}" for name in done.removed), *(f"stays    {w}" for w in done.left)):
            _say(line)
        if config is not None:
            word = f"`sparkd nodes remove {config.name}` there"
            _say(f"stays    its name in the coordinator's list, until {word}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _complain(reason: object) -> None:
    sys.stderr.write(f"sparkd-agent: {reason}\n")


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sparkd-agent",
        description="The agent of one node: starts, watches and ends the ranks of its document.",
        epilog="example: sparkd-agent status",
    )
    parser.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, help="agent.toml (default: %(default)s)"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run", help="run in the foreground until SIGTERM")
    status = verbs.add_parser("status", help="how this agent stands, also while the coordinator is dead")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text")
    ranks = verbs.add_parser("ranks", help="the ranks of this node, as JSON")
    ranks.add_argument("--memory", action="store_true", help="what each of their processes holds (RSS, PSS)")
    logs = verbs.add_parser("logs", help="the last log lines of a rank of this node")
    logs.add_argument("rank", help="its name, such as sparkd-tiny-g1-r0")
    logs.add_argument("--lines", type=int, default=100)
    uninstall = verbs.add_parser("uninstall", help="take the agent off this node, and say what stays")
    uninstall.add_argument("--force", action="store_true", help="also while ranks live here; they go on")
    uninstall.add_argument("-o", "--output", choices=("text", "json"), default="text")
    uninstall.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    uninstall.add_argument("--systemctl", default="systemctl", help=argparse.SUPPRESS)
    for verb in verbs.choices.values():
        verb.add_argument("--config", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _socket(config: AgentConfig) -> Path:
    if config.socket is None:
        raise UsageError("the configuration names no socket: state.socket")
    return config.socket


def _readable(status: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return json.dumps(status, indent=2)
    ranks, limits, watch = (status.pop(key) for key in ("ranks", "limits", "watch"))
    lines = [f"{key:12} {value}" for key, value in status.items()]
    lines += _watch_lines(watch)
    lines += [f"{'limit':12} {limit}" for limit in limits]
    lines += [f"{r['name']:28} {r['state']:10} {r['phase']:10} pid {r['pid']}" for r in ranks]
    return "\n".join(lines)


def _watch_lines(watch: dict[str, Any]) -> list[str]:
    memory, sample = watch["sample"]["memory"], watch["sample"]
    told = "unknown"
    if memory is not None:
        available, total = (memory[key] / GIB for key in ("available", "total"))
        told = f"{available:.1f} GiB available of {total:.1f} ({watch['grade']})"
    verdicts = [f"{v['severity']:12} {v['id']}: {v['title']}; {v['evidence']}" for v in sample["verdicts"]]
    return [f"{'memory':12} {told}", *verdicts]


def run(config: AgentConfig) -> None:
    """The daemon. Raises Conflict when another agent runs on the same state folder."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(config.state / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"another agent runs on {config.state}") from None
    asyncio.run(_serve(config))


async def _serve(config: AgentConfig) -> None:
    protect.small_stacks()
    procfs = ProcFs()
    identity = Identity(config.identity) if config.identity is not None else None
    token = config.token_file.read_text().strip() if config.token_file is not None else None
    held = privileges.look()
    docker = _has_docker(config)
    offered = privileges.offer(config, held, docker=docker)
    for limit in offered.limits:
        logging.getLogger("sparkd.agent").warning("this agent is limited: %s", limit)
    systemd = held.root and held.systemd and not config.local
    runtimes = _runtimes(config, procfs, offered, systemd=systemd, docker=docker)
    stamp = time.strftime("%Y%m%dT%H%M%S")
    ledger, lost = open_ledger(config.state / "ledger.sqlite", procfs.boot_id(), stamp)
    if lost is not None:
        logging.getLogger("sparkd.agent").warning("%s", lost)
    ring = Ring(config.state / "blackbox", procfs.boot_id())
    agent = Agent(
        config,
        clock=SystemClock(),
        procfs=procfs,
        privileges=held,
        offer=offered,
        runtimes=runtimes,
        ledger=ledger,
        shm=ShmJanitor(procfs),
        sampler=Sampler(),
        around=surroundings(config, held, procfs, ring.before),
        ring=ring,
    )
    link = Link(agent, config.urls, token=token, identity=identity)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    notifier = Notifier(os.environ)
    agent.adopt()
    _protect(held, local=config.local)
    notifier.ready(agent.in_words(link.state))
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(link.run()), group.create_task(agent.look_after_ranks())]
        work.append(group.create_task(agent.watch.run()))
        if config.socket is not None:
            work.append(group.create_task(LocalSocket(agent, link, config.socket, procfs).run()))
        telling = group.create_task(
            notifier.keep(well=agent.is_well, status=lambda: agent.in_words(link.state))
        )
        for task in work:
            # The group would say nothing of one that was cancelled, and an agent without its link is none.
            task.add_done_callback(lambda _task: stop.set())
        await stop.wait()
        ended = [task for task in work if task.done()]
        notifier.stopping()
        for task in (*work, telling):
            task.cancel()
    await agent.close()
    notifier.close()
    for runtime in runtimes.values():
        runtime.close()
    if ended:
        raise RuntimeError(f"a part of the agent ended by itself: {ended}")


def _protect(held: Privileges, *, local: bool) -> None:
    """A node's agent must run when nothing else does. A local set is a guest on somebody's machine."""
    wanted = [protect.lock_memory] if "ipc_lock" in held.held else []
    wanted += [protect.spare_from_oom, protect.spare_sshd] if "sys_resource" in held.held else []
    for act in wanted if not local else ():
        why_not = act()
        if why_not is not None:
            logging.getLogger("sparkd.agent").warning("%s", why_not)


def _has_docker(config: AgentConfig) -> bool:
    return Path(config.docker.socket).exists()


def _runtimes(
    config: AgentConfig, procfs: ProcFs, offered: Offer, *, systemd: bool, docker: bool
) -> dict[str, Runtime]:
    """All whose ranks may exist here, whichever the configuration offers for new ones."""
    ranks = config.state / "ranks"
    runtimes: dict[str, Runtime] = {"process": ProcessRuntime(ranks, procfs)}
    if systemd:
        from sparkd_agent.runtime.systemd import SystemdRuntime  # noqa: PLC0415 - 2 MiB that others need not

        runtimes["systemd"] = SystemdRuntime(ranks, procfs)
    # Also while the engine is away: what it started is still to be found.
    if docker or any(ranks.glob("*/container")):
        from sparkd_agent.runtime.docker import DockerRuntime  # noqa: PLC0415 - as above
        from sparkd_agent.runtime.docker_api import DockerApi  # noqa: PLC0415 - as above
        from sparkd_agent.runtime.images import images_of  # noqa: PLC0415 - as above

        runtimes["docker"] = DockerRuntime(
            ranks,
            DockerApi(config.docker.socket),
            images_of(config),
            caches=config.state / "caches",
            roots=config.model_roots,
            files=files_root(config.state, offered.account),
            procfs=procfs,
        )
    return runtimes


if __name__ == "__main__":
    sys.exit(main())
