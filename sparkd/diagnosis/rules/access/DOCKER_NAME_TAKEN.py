from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_NAME_TAKEN",
    title="a container of this rank's name exists, and is not this agent's",
    cause="somebody made it by hand, or another set of agents uses the same Docker",
    remedy="see whose it is with `docker inspect`, and remove it; or deploy under another --name",
    match=reported("DOCKER_NAME_TAKEN"),
)
