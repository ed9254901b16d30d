"""relay.py ONE OTHER LOSS DELAY_S SEED: carries frames between two interfaces, loses some, delays all.

What `tc netem` does, for kernels without it. Says `ready`, and ends with its standard input.
"""

import heapq
import random
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/if_packet.h
ETH_P_ALL = 3
MOST = 1 << 17


def tap(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    # With the virtual header, frames keep what they say about checksums and segments still to be made.
    made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    made.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    made.bind((interface, ETH_P_ALL))
    made.setblocking(False)  # one end that takes nothing must not hold up the other one's frames
    return made


def main(one: str, other: str, loss: float, delay_s: float, seed: int) -> None:
    dice = random.Random(seed)
    ends = (tap(one), tap(other))
    under_way: list[tuple[float, int, socket.socket, bytes]] = []
    count = 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([sys.stdin.fileno(), *(end.fileno() for end in ends)], [], [], wait)
        if sys.stdin.fileno() in readable:
            return
        for end in (end for end in ends if end.fileno() in readable):
            try:
                frame = end.recv(MOST)
            except OSError:  # that side has lost its carrier
                continue
            if dice.random() >= loss:
                count += 1
                heapq.heappush(under_way, (time.monotonic() + delay_s, count, ends[end is ends[0]], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, towards, frame = heapq.heappop(under_way)
            try:
                towards.send(frame)
            except OSError:  # no carrier there, or its queue is full: lost, as on a wire
                continue


main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
