from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="DOCKER_NO_SPACE",
    title="Docker's disk is full",
    cause="images and stopped containers take it",
    remedy="`docker system df` shows what takes it, `docker system prune` frees some",
    match=reported("DOCKER_NO_SPACE"),
    retry="never",
)
