from sparkd.diagnosis.rule import Rule, log
from sparkd.records.verdict import Severity

RULE = Rule(
    id="MDNS_CONFLICT",
    title="the node's .local name has changed",
    cause="its own announcement came back to it over another link, so it took the name for taken and added a number",
    remedy="use addresses, or limit avahi to one interface (`allow-interfaces` in avahi-daemon.conf)",
    match=log(
        "Host name conflict",
        ".local;",
        pattern=r"Host name conflict, retrying with \S+|^=;\S+;IPv[46];.*;[\w-]+-\d+\.local;",
    ),
    kind="state",
    severity=Severity.WARN,
    reference="NVIDIA/dgx-spark-playbooks#56; avahi/avahi#117",
)
