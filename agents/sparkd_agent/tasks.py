"""Questions that a document can put to the node. A closed list; none carries a command."""

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sparkd.errors import DockerRefused, DockerUnreachable
from sparkd.records.defaults import DEFAULTS
from sparkd.records.document import Task
from sparkd.records.facts import MachineFacts
from sparkd.records.image import ImageAnswer, ImageTrouble
from sparkd.records.names import parse_rank_name
from sparkd.records.report import TaskResult
from sparkd_agent.checkpoint import file_of, find_models
from sparkd_agent.config import AgentConfig
from sparkd_agent.ears import Ears
from sparkd_agent.hashing import hash_piece
from sparkd_agent.logs import RankLog
from sparkd_agent.rankfolder import RankFolder
from sparkd_agent.reach import reach_all

_MARKS = {"stdout": "1", "stderr": "2", "shim": "!"}


def answer(
    task: Task, config: AgentConfig, ranks: Path, look_over: Callable[[], MachineFacts], ears: Ears
) -> TaskResult:
    """Answer one question. What goes wrong is an answer too: `ok` false and the reason."""
    try:
        match task.kind:
            case "port":
                result = _ports(task.args)
            case "files":
                result = msgspec.to_builtins(find_models(task.args["model"], config.model_roots))
            case "facts":
                result = msgspec.to_builtins(look_over())
            case "image":
                result = msgspec.to_builtins(_image(str(task.args["image"]), config))
            case "log":
                result = _log(task.args, ranks)
            case "hash":
                result = _hash(task.args, config)
            case "probe":
                result = _probe(task.args, ears)
            case _:
                return TaskResult(
                    task.id, ok=False, error=f"this agent does not know tasks of kind {task.kind}"
                )
    except (OSError, LookupError, ValueError, TypeError) as error:
        return TaskResult(task.id, ok=False, error=str(error))
    return TaskResult(task.id, ok=True, result=result)


# port ------------------------------------------------------------------------------------------------


def _ports(args: dict[str, Any]) -> dict[str, Any]:
    entries = []
    for wanted in args["ports"]:
        port = int(wanted["port"])
        free = _is_free(port)
        entry = {"port": port, "for": wanted["for"], "free": free}
        if not free:
            entry["owner"] = owner_of(port)
        entries.append(entry)
    return {"ports": entries}


def _is_free(port: int) -> bool:
    """Whether the port can be listened on, on `0.0.0.0` and on `::`: vLLM binds either."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - a test bind
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As vLLM does it: connections of an earlier life in TIME_WAIT are no obstacle.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # no IPv6 on this node
            return False
    return True


def owner_of(port: int) -> str:
    """Who listens there, as well as this user may know it."""
    import psutil  # noqa: PLC0415 - weighs 2 MiB and is needed for this one sentence

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return "an unknown program"
    for connection in connections:
        if connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "an unknown program"


# probe -----------------------------------------------------------------------------------------------


def _probe(args: dict[str, Any], ears: Ears) -> dict[str, Any]:
    """For a test of the fabric: `listen` at an address, tell what was `heard` there, `reach` others. Else
    whether any of the targets takes a connection from this node: the coordinator cannot reach it.
    """
    if "listen" in args:
        return ears.listen(str(args["listen"]))
    if "heard" in args:
        return ears.heard(int(args["heard"]))
    if "reach" in args:
        return {"reached": msgspec.to_builtins(reach_all(str(args["own"]), args["reach"], args.get("mtu")))}
    for target in args["targets"]:
        try:
            with socket.create_connection((str(target["host"]), int(target["port"])), timeout=1.0):
                return {"reached": True}
        except OSError:
            continue
    return {"reached": False}


# image -----------------------------------------------------------------------------------------------


def _image(name: str, config: AgentConfig) -> ImageAnswer:
    """What is in an image, or what stands in its way."""
    from sparkd_agent.runtime.docker_trouble import trouble_of  # noqa: PLC0415 - a node without Docker need not
    from sparkd_agent.runtime.images import images_of  # noqa: PLC0415 - as above

    try:
        return ImageAnswer(report=images_of(config).report(name))
    except (DockerUnreachable, DockerRefused) as error:
        trouble = trouble_of(error)
        return ImageAnswer(trouble=ImageTrouble(trouble.id, trouble.title, str(error), trouble.remedy))


# hash ------------------------------------------------------------------------------------------------


def _hash(args: dict[str, Any], config: AgentConfig) -> dict[str, Any]:
    file = file_of(args["model"], str(args["of"]), str(args["file"]), config.model_roots)
    pace = min(float(args["bytes_s"]), DEFAULTS.hash_bytes_s)
    length = min(int(args["bytes"]), DEFAULTS.hash_piece_bytes)
    digest, count = hash_piece(file, int(args["offset"]), length, pace)
    return {"digest": digest, "bytes": count}


# log -------------------------------------------------------------------------------------------------


def _log(args: dict[str, Any], ranks: Path) -> dict[str, Any]:
    """The last lines of a rank that was started here, in the shim's format, and the offset after them."""
    name = str(args["rank"])
    if parse_rank_name(name) is None or not (ranks / name).is_dir():
        raise LookupError(f"no rank {name} was started on this node, or its log is no longer kept")
    log = RankLog(RankFolder(ranks / name).log)
    offset = log.size
    since = float(args["since"]) if args.get("since") is not None else 0.0
    lines = [line for line in log.last(int(args["lines"])) if line.wall >= since]
    text = "".join(
        f"{int(line.mono * 1e9)} {int(line.wall * 1e9)} {_MARKS[line.stream]} {line.text}\n" for line in lines
    )
    return {"text": text, "offset": offset}
