from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_DOWN",
    title="Docker does not answer on this node",
    cause="it does not run, is just being started, or hangs",
    remedy="sudo systemctl restart docker; if it fails: journalctl -u docker",
    match=reported("DOCKER_DOWN"),
)
