"""Clients of a deployment: completions one after the other, each of which must be answered."""

import http.client
import json
import threading
import time
from typing import Self

from tests.lab.cluster import Cluster
from tests.lab.node import until
from tests.lab.tunnel import Tunnel

ANSWER_S = 30.0


class Traffic:
    """Runs from `with` on. `lost` holds what became of completions that were not answered whole."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        endpoint = cluster.client.deployment(name).endpoint
        assert endpoint is not None
        host, _, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").rpartition(":")
        self._headers = {"content-type": "application/json"}
        if endpoint.key_file is not None:
            self._headers["authorization"] = f"Bearer {cluster.sparkd('key', name).strip()}"
        question = {"role": "user", "content": "go on"}
        self._body = json.dumps({"model": name, "messages": [question], "max_tokens": 16, "ignore_eos": True})
        self._tunnel = Tunnel(lambda: cluster.lab.room.network, (host, int(port)))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered = 0
        self.longest_s = 0.0
        self.lost: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.flows()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(ANSWER_S + 5)
        self._tunnel.close()

    def flows(self, more: int = 5) -> None:
        """Wait for some more answers."""
        enough = self.answered + more
        until(lambda: self.answered >= enough, f"{more} completions (lost: {self.lost})")

    def _run(self) -> None:
        while not self._over.wait(0.05):
            begun = time.monotonic()
            try:
                self._ask()
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                self.lost.append(f"{error!r} after {time.monotonic() - begun:.3f} s")
            else:
                self.answered += 1
                self.longest_s = max(self.longest_s, time.monotonic() - begun)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._tunnel.port, timeout=ANSWER_S)
        try:
            connection.request("POST", "/v1/chat/completions", self._body, self._headers)
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200:
                raise ValueError(f"{answer.status}: {body}")
            if not body["choices"][0]["message"]["content"]:
                raise ValueError("an empty answer")
        finally:
            connection.close()
