"""A coordinator with a certificate authority, its nodes, and clients that show what they like."""

import contextlib
import http.client
import json
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkd.coordinator.store import Store
from sparkd.coordinator.tokens import mint_token
from sparkd.enrol.authority import Authority, make_authority
from sparkd.enrol.roster import enrol_node
from tests.bed.coordinator import PATIENCE_S, Answer, Coordinator

DAY = 86_400.0


@dataclass
class SecureCoordinator(Coordinator):
    """Its `nodes` are enrolled; agents come over TLS with certificates, REST stays on loopback.

    `token` is an admin's.
    """

    def start(self) -> None:
        self.state.mkdir(mode=0o700, exist_ok=True)
        make_authority(self.state, time.time() - 2 * DAY)
        for node, name in self.nodes.items():
            enrol_node(self.state, node, name)
        if not self.database.exists():
            with contextlib.closing(Store(self.database)) as store:
                store.take_term("that-enrolled-them")
        if not self.token_file.exists():
            self.token_file.touch(0o600)
            self.token_file.write_text(mint_token(self.state, "tests", "admin"))
        self.token = self.token_file.read_text()
        self.launch()

    def answers(self) -> bool:
        """The sockets take connections before anybody serves them."""
        try:
            return self.ask("GET", "/healthz").status == 200
        except OSError:
            return False

    @property
    def database(self) -> Path:
        return self.state / "coordinator.sqlite"

    @property
    def authority(self) -> Authority:
        return make_authority(self.state, time.time())

    @property
    def agents_url(self) -> str:
        return f"https://127.0.0.1:{self.agents}"


def make_identity(folder: Path, authority: Authority, node: str, *, issued: float | None = None) -> Path:
    """As enrolment leaves it on a node: ca.crt, node.key and node.crt. `issued`: wall clock, else now."""
    folder.mkdir(mode=0o700, parents=True)
    key = folder / "node.key"
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(key))
    key.chmod(0o600)
    csr = openssl("req", "-new", "-key", str(key), "-subj", "/CN=node", "-config", "/dev/null")
    issued = time.time() if issued is None else issued
    (folder / "node.crt").write_text(authority.sign_node(csr, node, node, issued))
    (folder / "ca.crt").write_text(authority.pem)
    return folder


def openssl(*words: str) -> str:
    return subprocess.run(["openssl", *words], capture_output=True, text=True, check=True).stdout


def client_context(identity: Path | None) -> ssl.SSLContext:
    """A stranger's TLS: believes everything, and shows what `identity` holds, or nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if identity is not None:
        context.load_cert_chain(identity / "node.crt", identity / "node.key")
    return context


def send_securely(
    port: int,
    method: str,
    target: str,
    *,
    context: ssl.SSLContext,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request over TLS. Raises what the standard library raises when the other end hangs up."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    content = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, target, body=content, headers={"connection": "close", **(headers or {})})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())
    finally:
        connection.close()
