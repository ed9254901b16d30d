"""What half-open connections cost: `.venv/bin/python -m benchmarks.strangers [COUNT]`.

A real coordinator with an authority. COUNT connections to each of its servers say nothing, or begin a TLS
handshake and stop; meanwhile a good client asks both, a new connection each time.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bed.secure import SecureCoordinator, client_context, make_identity, send_securely
from tests.contract.test_bounds import client_hello, connect, rss

ROUNDS = 50


def main(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="sparkd-strangers-") as name:
        folder = Path(name)
        coordinator = SecureCoordinator(folder, {"a": "spark-a"})
        try:
            coordinator.start()
            context = client_context(make_identity(folder / "a", coordinator.authority, "a"))

            def rest() -> object:
                return coordinator.ask("GET", "/v1/status")

            def agents() -> object:
                return send_securely(coordinator.agents, "GET", "/agent/v1/document", context=context)

            for ask in (rest, agents):
                measure(ask)
            told("alone", measure(rest), measure(agents))
            before = rss(coordinator)
            with ExitStack() as strangers:
                for _ in range(count):
                    connect(coordinator.rest, strangers)
                    connect(coordinator.agents, strangers).sendall(client_hello())
                told(f"beside 2 x {count}", measure(rest), measure(agents))
                print(f"memory + {(rss(coordinator) - before) / 2**20:.1f} MiB")
        finally:
            coordinator.end()


def measure(ask: Callable[[], object]) -> list[float]:
    """Milliseconds of each exchange, connecting included."""
    found = []
    for _ in range(ROUNDS):
        begun = time.monotonic()
        ask()
        found.append((time.monotonic() - begun) * 1e3)
    return found


def told(when: str, rest: list[float], agents: list[float]) -> None:
    for name, times in (("REST", rest), ("agents, TLS", agents)):
        print(f"{when}: {name}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
