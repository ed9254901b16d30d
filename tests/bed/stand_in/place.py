"""Where a process of the stand-in stands: its arguments, its settings, its title and its log."""

import json
import os
import signal
import time


def read_flags(words):
    """vLLM's flags in the spellings that sparkd uses: `--key value`, `--key=value`, `-tp N`, bare flags."""
    short = {
        "-tp": "--tensor-parallel-size",
        "-pp": "--pipeline-parallel-size",
        "-n": "--nnodes",
        "-r": "--node-rank",
    }
    flags, values = {}, []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            values.append(word)
            continue
        key, _, value = short.get(word, word).partition("=")
        taken = [value] if value else []
        while words and not words[0].startswith("-") and not value:
            taken.append(words.pop(0))
        flags[key.lstrip("-").replace("_", "-")] = taken
    return flags, values


class Place:
    """Shared by all processes of one rank; every fork inherits it and changes its own copy."""

    def __init__(self, folder, words):
        self.folder = folder
        self.flags, values = read_flags(words)
        self.model = values[0] if values else "model"
        self.rank = int(self.flag("node-rank", "0"))
        self.ranks = int(self.flag("nnodes", "1"))
        self.name = "APIServer" if self.rank == 0 else "MainProcess"
        self.segment_paths = []
        self.mapped = []
        self.listener = None

    def flag(self, name, default):
        return (self.flags.get(name) or [default])[0]

    def setting(self, name, default=""):
        """From `settings.json` (read anew each time), else the environment; `value@rank` filters."""
        try:
            with open(os.path.join(self.folder, "settings.json")) as file:
                value = json.load(file).get(name)
        except FileNotFoundError:
            value = None
        if value is None:
            value = os.environ.get("STAND_IN_" + name)
        if value is None:
            return default
        value, at, rank = value.rpartition("@") if "@" in value else (value, "", "")
        return default if at and rank != str(self.rank) else value

    def seconds(self, name, default):
        return float(self.setting(name, "") or default)

    def log(self, text, where="stand_in.py:1", level="INFO"):
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self.name} pid={os.getpid()}) {level} {stamp} [{where}] "
        write(1, "".join(f"{prefix}{line}\n" for line in text.split("\n")))

    def enter(self, phase):
        """Called by the launcher at the start of each phase it knows of; here `EXIT` strikes."""
        where, _, code = self.setting("EXIT").partition(":")
        if where == phase:
            self.end(int(code))

    def end(self, code):
        if code < 0:
            os.kill(os.getpid(), -code)
            time.sleep(5)
        os._exit(code)

    def title(self, text):
        """What setproctitle does: overwrite the memory of argv, and set comm."""
        self.name = text.removeprefix("VLLM::")
        with open("/proc/self/comm", "w") as comm:
            comm.write(text[:15])
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        memory = os.open("/proc/self/mem", os.O_WRONLY)
        os.pwrite(memory, text.encode().ljust(end - start, b"\0")[: end - start - 1] + b"\0", start)
        os.close(memory)

    def map_segment(self):
        size = int(self.setting("SHM_BYTES", "0"))
        if not size:
            return
        import mmap

        path = f"/dev/shm/psm_{os.urandom(4).hex()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, size)
        self.segment_paths.append(path)
        self.mapped.append(mmap.mmap(fd, size))
        os.close(fd)

    def remove_segments(self):
        for path in self.segment_paths:
            if os.path.exists(path):
                os.unlink(path)

    def end_cleanly_on_sigterm(self):
        def end(signum, frame):
            self.remove_segments()
            os._exit(0)

        signal.signal(signal.SIGTERM, end)


def write(fd, text):
    data = text.encode()
    while data:
        data = data[os.write(fd, data) :]


def fork(body):
    """Run `body()` in a child, which never returns; give the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        body()
        os._exit(0)
    except BaseException:
        import traceback

        write(2, traceback.format_exc())
        os._exit(1)


def exit_code(status):
    """As multiprocessing shows it: negative for a signal."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Lines:
    """JSON lines over a socket or socket pair."""

    def __init__(self, sock):
        self.sock = sock
        self.rest = b""

    def send(self, message):
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self):
        """The next message; EOFError when the other side is gone."""
        while b"\n" not in self.rest:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line)

    def fileno(self):
        return self.sock.fileno()


def refuse_to_start(place, text):
    write(2, f'Traceback (most recent call last):\n  File "stand_in.py", line 1, in <module>\n{text}\n')
    place.remove_segments()
    os._exit(1)
