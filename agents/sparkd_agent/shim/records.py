"""What the shim writes down of its rank, so that it outlives a power loss; and the folder's lock."""

import fcntl
import os

FORMAT = 1
RECORD_BYTES = 4096


def hold_folder(folder: str) -> int:
    """Open and lock it, for as long as this process lives. An agent that looks has it for a moment only."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def reserve(path: str) -> None:
    """Take the room for a record now: the disk may be full when it is needed. Raises OSError."""
    fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RECORD_BYTES)
    finally:
        os.close(fd)


def replace_durably(path: str, body: bytes, folder_fd: int) -> None:
    """Write a temporary file, fsync, rename, fsync the folder. Raises OSError."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < len(body):
            done += os.write(fd, body[done:])
        os.ftruncate(fd, len(body))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    os.fsync(folder_fd)
