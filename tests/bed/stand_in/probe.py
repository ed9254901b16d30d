"""The collective probe without torch: its ranks really meet at the rendezvous and tell what the real one tells."""

import json
import os
import socket
import sys
import time

PROBE = ["-m", "sparkd_mods.fabric_probe"]
RETRY_S = 0.05
RUNGS = (8, 512, 32768, 2 << 20, 64 << 20)


def tell(**said: object) -> None:
    sys.stdout.write(f"sparkd-probe {json.dumps(said)}\n")
    sys.stdout.flush()


def main(words: list[str], setting: str) -> None:
    """`setting`: `absent` never goes to the rendezvous, `torchless` cannot try, `mute` says nothing."""
    args = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
    rank, ranks, within = int(args["rank"]), int(args["ranks"]), float(args["within"])
    end = time.monotonic() + within
    if setting == "torchless":
        tell(unable="torch cannot be loaded: ModuleNotFoundError: No module named 'torch'")
        os._exit(3)
    if setting != "mute":
        tell(stage="imported", backend="gloo", versions={"torch": "0.0.0"})
    if setting:
        time.sleep(within)
        os._exit(1)
    others = meet(rank, ranks, (args["host"], int(args["port"])), end)
    for stage in ("joined", "summed"):
        tell(stage=stage)
    for rung in RUNGS:
        if rung <= int(args["most"]):
            tell(bytes=rung, seconds=1e-5 + rung / 2e9)
    tell(stage="done")
    for other in others:
        other.close()


def meet(rank: int, ranks: int, address: tuple[str, int], end: float) -> list[socket.socket]:
    """Rank 0 waits for all, then lets all go on."""
    if rank == 0:
        with socket.create_server(address, family=family(address[0])) as server:
            server.settimeout(max(0.1, end - time.monotonic()))
            tell(stage="met")
            peers = [server.accept()[0] for _ in range(ranks - 1)]
        for peer in peers:
            peer.sendall(b"go")
        return peers
    while True:
        try:
            head = socket.create_connection(address, timeout=max(0.1, end - time.monotonic()))
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_S)
    tell(stage="met")
    head.settimeout(max(0.1, end - time.monotonic()))
    if head.recv(2) != b"go":
        tell(error="RuntimeError: the head has closed the connection")
        os._exit(1)
    return [head]


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
