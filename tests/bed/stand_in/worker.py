"""The worker: meets the others at the rendezvous, loads, and takes part in every step."""

import os
import select
import socket
import time
from typing import NoReturn

from stand_in.place import Lines, Place, refuse_to_start, write

HEARTBEAT = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes "
    "are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
)
GLOO_CLOSED = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer. "
    "This is typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error."
)


def run_worker(place: Place, parent: Lines) -> None:
    """`parent` (Lines) leads to EngineCore on rank 0, to the launcher on a follower."""
    place.title("VLLM::Worker")
    peers = meet(place)
    place.title(f"VLLM::Worker_TP{place.rank}")
    place.map_segment()
    parent.send({"phase": "loading"})
    load(place)
    barrier(place, peers)
    parent.send({"phase": "warming"})
    place.log("Explicitly set (1.0/15.34) GiB for KV cache on node 0.", "cpu_worker.py:260")
    parent.send({"ready": os.getpid(), "segments": place.segment_paths})
    if place.rank == 0:
        lead(place, parent, peers)
    else:
        follow(place, parent, peers[0])


def meet(place: Place) -> list[Lines]:
    """Rank 0: listen on the wildcard until all have joined. Others: connect, trying again as TCPStore does."""
    # A single rank is given no port, and vLLM then takes any free one.
    host = place.flag("master-addr", "127.0.0.1")
    port = int(place.flag("master-port", "29501" if place.ranks > 1 else "0"))
    limit = float(place.flag("distributed-timeout-seconds", "600"))
    place.log(
        f"world_size={place.ranks} rank={place.rank} local_rank=0 "
        f"distributed_init_method=tcp://{host}:{port} backend=gloo",
        "parallel_state.py:1906",
    )
    write(
        2,
        "[W1130 07:48:30.920249382 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n",
    )
    deadline = time.monotonic() + limit
    peers = listen(place, port, deadline) if place.rank == 0 else [join(place, host, port, deadline)]
    barrier(place, peers)
    place.log(
        f"rank {place.rank} in world size {place.ranks} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
        f"TP rank {place.rank}, ETP rank {place.rank}, EP rank N/A, EPLB rank N/A",
        "parallel_state.py:2350",
    )
    return peers


def listen(place: Place, port: int, deadline: float) -> list[Lines]:
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        server.bind(("::", port))
    except OSError:
        refuse_to_start(
            place,
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        )
    server.listen(64)
    # It stays open as long as the worker lives, as TCPStore's does.
    place.listener = server
    joined: dict[int, Lines] = {}
    while len(joined) < place.ranks - 1:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            peer = Lines(server.accept()[0])
            joined[peer.receive()["rank"]] = peer
        except EOFError:
            continue  # somebody only looked whether the port is open
        except TimeoutError:
            refuse_to_start(
                place,
                "torch.distributed.DistStoreError: Timed out after 41 seconds waiting for clients. "
                f"{1 + len(joined)}/{place.ranks} clients joined.",
            )
    return [joined[rank] for rank in sorted(joined)]


def join(place: Place, host: str, port: int, deadline: float) -> Lines:
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                refuse_to_start(
                    place,
                    "torch.distributed.DistNetworkError: The client socket has timed out after 40000ms "
                    f"while trying to connect to ({host}, {port}).",
                )
            time.sleep(0.05)
            continue
        sock.settimeout(None)
        head = Lines(sock)
        head.send({"rank": place.rank})
        return head


def barrier(place: Place, peers: list[Lines]) -> None:
    """Rank 0 waits for all, then tells all."""
    try:
        if place.rank == 0:
            for peer in peers:
                peer.receive()
            for peer in peers:
                peer.send({"barrier": True})
        else:
            peers[0].send({"barrier": True})
            peers[0].receive()
    except (EOFError, OSError):
        refuse_to_start(place, GLOO_CLOSED)


def load(place: Place) -> None:
    place.log(f"Starting to load model {place.model}...", "cpu_model_runner.py:68")
    if place.setting("SPIN"):
        spin(place)
    if place.rank == 0:
        write(2, "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]\n")
    file = place.setting("LOAD_FILE")
    if file:
        read_slowly(file, place.seconds("LOAD_S", 1))
    time.sleep(place.seconds("BOOT_S", 0.3) / 3)
    if place.rank == 0:
        write(2, "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 368.99it/s]\n\n")
    place.log("Loading weights took 0.01 seconds", "default_loader.py:501")


def read_slowly(file: str, seconds: float) -> None:
    """From the disk, not from the page cache: `read_bytes` of /proc/PID/io must grow."""
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: the whole file would come at once
    size = os.fstat(fd).st_size
    for part in range(50):
        os.pread(fd, max(1, size // 50), part * size // 50)
        time.sleep(seconds / 50)
    os.close(fd)


def spin(place: Place) -> NoReturn:
    said = 0.0
    while True:
        if time.monotonic() - said > 0.2:
            said = time.monotonic()
            place.log(HEARTBEAT, "shm_broadcast.py:733")


def lead(place: Place, parent: Lines, peers: list[Lines]) -> None:
    """Rank 0: for each step of the engine ask every peer and wait for all of them."""
    while True:
        try:
            step = parent.receive()
        except EOFError:
            orphan(place)
        try:
            for peer in peers:
                peer.send(step)
            for peer in peers:
                peer.receive()
        except (EOFError, OSError):
            if place.setting("COLLECTIVE") == "nccl":
                write(2, "NCCL WARN NET/Socket: Connection closed by remote peer\n")
                while True:
                    time.sleep(60)
            place.log(
                "WorkerProc hit an exception.\nTraceback (most recent call last):\n"
                '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 1055, in worker_busy_loop\n'
                "    output = func(*args, **kwargs)\n" + GLOO_CLOSED,
                "multiproc_executor.py:1063",
                "ERROR",
            )
            parent.send({"error": GLOO_CLOSED})
            continue
        parent.send({"done": True})


def follow(place: Place, parent: Lines, head: Lines) -> None:
    """A follower's worker: answer each step; a dead head is not noticed, as in vLLM."""
    while True:
        readable, _, _ = select.select([head, parent], [], [])
        if parent in readable:
            orphan(place)
        try:
            head.send({"done": head.receive()})
        except (EOFError, OSError):
            while True:
                time.sleep(60)


def orphan(place: Place) -> NoReturn:
    place.log("Parent process exited, terminating worker queues", "multiproc_executor.py:843")
    while True:
        time.sleep(60)
