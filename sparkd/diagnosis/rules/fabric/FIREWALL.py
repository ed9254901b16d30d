import re
from collections.abc import Iterator

from sparkd.diagnosis.evidence import Evidence
from sparkd.diagnosis.rule import Found, Rule, kernel, log, on_line

_DROPPED = kernel("SRC=", pattern=r"(BLOCK|DROP|REJECT|denied|DENY)\b.*\bSRC=\S+.*\bDPT=\d+")
_TIMED_OUT = log(
    "imed out connecting",
    "No route to host",
    pattern=r"timed out connecting: .*remote=|(NCCL WARN|gloo|Gloo|socketPoll|socketStart|socketProgress).*"
    r"([Cc]onnect\w* .*timed out|No route to host)",
)
_EPHEMERAL = 1024


def _match(evidence: Evidence) -> Iterator[Found]:
    for line in evidence.kernel:
        if not _DROPPED.matches(line.text) or "PROTO=UDP" in line.text:
            continue
        port = re.search(r"\bDPT=(\d+)", line.text)
        source = re.search(
            r"\bSRC=(10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|169\.254\.|f[cde])", line.text
        )
        if port and source and int(port[1]) >= _EPHEMERAL:
            yield on_line(line, title=f"a firewall drops what another node sends to port {port[1]}")
    yield from _TIMED_OUT(evidence)


RULE = Rule(
    id="FIREWALL",
    title="connections between the nodes are dropped",
    cause="NCCL and gloo meet at ports that nobody chose before; to allow the rendezvous port is not enough",
    remedy="allow everything from the fabric's addresses, on all nodes: `ufw allow from NETWORK`; `ufw status` and `nft list ruleset` show what is there",
    match=_match,
    needles=(*_DROPPED.needles, *_TIMED_OUT.needles),
    reference="NVIDIA/nccl#388, #352",
)
