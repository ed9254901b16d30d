from sparkd.diagnosis.rule import Rule, reported

RULE = Rule(
    id="IMAGE_MISSING",
    title="the image cannot be run on this node",
    cause="it was never brought there, is not among those that the node allows, or has another content by now",
    remedy="bring it there with `docker pull` or `docker load`; sparkd pulls nothing",
    match=reported("IMAGE_MISSING"),
    retry="never",
)
