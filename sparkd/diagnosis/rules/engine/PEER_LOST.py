from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="PEER_LOST",
    title="a rank lost the connection to another one",
    cause="the other rank ended, or the link between them went away",
    remedy="look at the other ranks first: this is how the survivors hear of a death",
    match=log(
        "NCCL WARN",
        "ncclRemoteError",
        "ncclSystemError",
        "onnection closed by peer",
        "onnection reset by peer",
        "Broken pipe",
        pattern=r"NCCL WARN .*([Cc]onnection (closed|reset|refused)|peer|sendBytes|recvBytes|heartbeat)|nccl(Remote|System)Error|"
        r"(gloo|Gloo|tcp/pair|TCPStore|sendBytes|recvBytes).*([Cc]onnection (closed|reset) by peer|Broken pipe)",
    ),
    kind="collective",
    reference="docs/measurements.md",
)
