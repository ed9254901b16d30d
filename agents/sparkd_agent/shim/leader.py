"""The rank's leader, from the fork to its first instruction."""

from __future__ import annotations

import errno
import os
import resource
import signal

TYPE_CHECKING = False  # `typing` itself would cost memory for as long as the model lives
if TYPE_CHECKING:
    from typing import Any

CGROUPS = "/sys/fs/cgroup"
BELOW = "rank"
"""The rank's own control group, below the unit's, in which the shim stays."""
RANK_OOM_SCORE = "800"
"""As `runtime/unit.py` gives the unit."""
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The shim must not end before its rank; SIGKILL for the rank is the agent's business."""


def own_cgroup() -> str:
    """The folder of this process's control group in the hierarchy by which systemd tells units apart.

    Version 2, also where it lies beside version 1, has `cgroup.kill`; else version 1's named one.
    """
    with open("/proc/self/cgroup", encoding="ascii") as file:
        paths = {line.split(":")[1]: line.rstrip("\n").split(":", 2)[2] for line in file}
    for root, name in ((CGROUPS, ""), (f"{CGROUPS}/unified", ""), (f"{CGROUPS}/systemd", "name=systemd")):
        folder = root + paths.get(name, "/")
        if paths.get(name, "/") != "/" and os.path.exists(f"{folder}/cgroup.procs"):
            return folder
    raise OSError(errno.ENOENT, "systemd gave the shim no control group")


def start_leader(spec: dict[str, Any], cgroup: str | None, out: int, err: int) -> tuple[int, int]:
    """Fork and exec the rank's leader in a session of its own, and in a control group below the shim's.

    Returns its pid and a descriptor that yields the text of an exec failure, or ends empty on success.
    """
    failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            if cgroup is not None:
                join_cgroup(f"{cgroup}/{BELOW}")
            become_leader(spec, out, err)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            os.write(failure_write, f"cannot execute {spec['argv'][0]!r}: {reason}".encode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - this is a forked copy: nothing may get past it
            os.write(failure_write, f"cannot execute {spec['argv'][0]!r}: {error}".encode(errors="replace"))
        finally:
            os._exit(127)
    os.close(failure_write)
    return pid, failure_read


def join_cgroup(folder: str) -> None:
    try:
        with open(f"{folder}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")
    except OSError as error:
        raise RuntimeError(f"cannot join {folder!r}: {os.strerror(error.errno or 0)}") from error


def become_leader(spec: dict[str, Any], out: int, err: int) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    # What this process ignores, an exec would pass on.
    for number in (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    forbid_core_dumps()
    offer_to_oom()
    if spec.get("uid") is not None:
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        raise RuntimeError(f"no working folder {spec['cwd']!r}: {os.strerror(error.errno or 0)}") from error
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - an argv array, and no shell


def offer_to_oom() -> None:
    """The rank before everything else of the node: it would inherit the agent's score, which is low."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(RANK_OOM_SCORE)
    except OSError:  # not mounted, or not writable: the rank runs all the same
        pass


def forbid_core_dumps() -> None:
    """Writing the image of a process that maps half of the machine takes minutes, in which it is not dead.

    A limit of 0 keeps a file from being written, but not a handler behind a pipe (apport, systemd-coredump)
    from being fed; the kernel takes exactly 1 for both.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # the limit was 0 already, and this is no root: then at least no file is written
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
