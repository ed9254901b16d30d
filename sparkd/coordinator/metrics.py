"""Prometheus text of the status: gauges that are computed when somebody asks."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from sparkd.records.status import Status

CONTENT_TYPE = CONTENT_TYPE_LATEST


def render(status: Status) -> bytes:
    """One registry per scrape: what is gone from the status is gone from the metrics."""
    registry = CollectorRegistry()
    ready = Gauge("sparkd_deployment_ready", "1 while ready", ["deployment"], registry=registry)
    generation = Gauge("sparkd_deployment_generation", "Generation", ["deployment"], registry=registry)
    falls = Gauge(
        "sparkd_deployment_falls", "Falls since it was asked for", ["deployment"], registry=registry
    )
    proof = Gauge(
        "sparkd_deployment_proof_age_seconds",
        "Since the last token that needed every rank",
        ["deployment"],
        registry=registry,
    )
    contact = Gauge("sparkd_node_in_contact", "1 while its agent is heard", ["node"], registry=registry)
    memory = Gauge("sparkd_node_memory_available_bytes", "MemAvailable", ["node"], registry=registry)
    for deployment in status.deployments:
        ready.labels(deployment.name).set(deployment.phase == "ready")
        generation.labels(deployment.name).set(deployment.generation)
        falls.labels(deployment.name).set(deployment.falls)
        if deployment.proof_age_s is not None:
            proof.labels(deployment.name).set(deployment.proof_age_s)
    for node in status.nodes:
        contact.labels(node.name).set(node.state in ("alive", "suspect"))
        if node.memory is not None:
            memory.labels(node.name).set(node.memory.available)
    return generate_latest(registry)
