from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_REFUSED",
    title="Docker refuses the container",
    cause="Docker's own words say why",
    remedy="`journalctl -u docker` on that node says more",
    match=reported("DOCKER_REFUSED"),
    retry="never",
)
