"""A chat completion in flight, read by a thread."""

import http.client
import json
import threading
from urllib.parse import urlsplit

from tests.bed.local_set import Deployment, until


class Stream:
    def __init__(self, deployment: Deployment, tokens: int) -> None:
        endpoint = deployment.status().endpoint
        assert endpoint is not None
        self.tokens = 0
        self.error: object = None
        self._url = urlsplit(endpoint.base_url)
        self._body = {
            "model": endpoint.models[0],
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until(lambda: self.tokens > 2, "the first tokens")

    def _run(self) -> None:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=60)
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(self._body),
                {"Content-Type": "application/json"},
            )
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    self._take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            connection.close()

    def _take(self, chunk: dict[str, object]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
        else:
            self.tokens += 1

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def rest(self) -> int:
        """Wait for its end; gives the number of tokens that came."""
        self._thread.join(60)
        assert self.error is None
        return self.tokens
