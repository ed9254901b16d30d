"""Arguments of vLLM that a profile may not set, each with the reason that reaches the user.

The names are canonical (`flags.resolve`). A name that ends in `*` stands for every flag that begins so.
"""

from typing import Final

OWNED: Final[dict[str, str]] = {
    # The gang's shape and meeting place: one plan for all ranks.
    "nnodes": "sparkd sets it from layout (tp x pp, one rank a node)",
    "node-rank": "sparkd sets it from the order of the nodes",
    "master-addr": "sparkd sets it: rank 0's fabric address",
    "master-port": "sparkd sets it: every generation meets at a new port",
    "headless": "sparkd sets it on every rank but rank 0",
    "distributed-executor-backend": "sparkd sets it: its ranks use vLLM's own multi-node executor (mp)",
    "tensor-parallel-size": "write layout.tp instead",
    "pipeline-parallel-size": "write layout.pp instead",
    "prefill-context-parallel-size": "it multiplies the number of ranks, and layout knows only tp and pp",
    "data-parallel-*": "data parallelism is not supported yet (layout is tp and pp)",
    "dp-supervisor-*": "data parallelism is not supported yet (layout is tp and pp)",
    "enable-elastic-ep": "the number of ranks is fixed by layout",
    "elastic-ep-max-dp-size": "the number of ranks is fixed by layout",
    # The endpoint: what sparkd probes, and what it tells clients.
    "host": "write api.host instead",
    "port": "write api.port instead",
    "uds": "the pulse and the clients reach the API over TCP (api.host, api.port)",
    "served-model-name": "sparkd sets it: the deployment's name, then the Hub id",
    "api-key": "a secret must not stand in argv; write api.key instead",
    "ssl-*": "the pulse speaks plain HTTP to rank 0",
    "enable-ssl-refresh": "the pulse speaks plain HTTP to rank 0",
    "grpc": "it replaces the HTTP API that sparkd probes",
    "grpc-port": "it opens a port that sparkd does not know and cannot prove free",
    "api-server-count": "sparkd watches one API server, and a headless rank refuses the flag",
    # The model, and the way around every check on this page.
    "model": "write model.path, or model.id and model.revision, instead",
    "revision": "write model.revision instead",
    "config": "arguments in another file would escape these checks; write them in engine.args",
    "omni": "it hands the whole command to another program",
    "hf-token": "a secret must not stand in argv, and ranks run offline",
    # What sparkd's watching relies on.
    "shutdown-timeout": "`sparkd down` owns the grace; a longer one would end in SIGKILL",
    "disable-log-stats": "the pulse tells a long prefill from a wedge by vLLM's token counters",
    "help": "the engine would print it and exit",
    "version": "the engine would print it and exit",
}

NEEDS_TRUST: Final[dict[str, str]] = {
    "trust-remote-code": "it runs code that comes with the model",
    "middleware": "it imports code by name",
    "tool-parser-plugin": "it runs a file as code",
    "reasoning-parser-plugin": "it runs a file as code",
    "io-processor-plugin": "it imports code by name",
    "logits-processors": "it imports code by name",
    "scheduler-cls": "it imports code by name",
    "worker-cls": "it imports code by name",
    "worker-extension-cls": "it imports code by name",
    "model-class-overrides": "it imports code by name",
    "log-config-file": "Python's logging imports the classes that such a file names",
    "allowed-local-media-path": "whoever may use the API could read the node's files below it",
}
"""Allowed only with `model.trust: true`: they make vLLM run code that neither it nor sparkd brought, or give
away what is not the model's. Names inside a value are in `code_names.py`."""


def owned_reason(name: str) -> str | None:
    """Why a profile may not set the flag with this canonical name; None if it may."""
    if name in OWNED:
        return OWNED[name]
    for pattern, reason in OWNED.items():
        if pattern.endswith("*") and name.startswith(pattern[:-1]):
            return reason
    return None
