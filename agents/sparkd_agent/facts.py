"""What the agent tells of its node in a hello: addresses, engines, roots, privileges."""

from sparkd.records.memory import Memory
from sparkd.records.report import EngineFacts, NodeFacts
from sparkd_agent.config import AgentConfig
from sparkd_agent.placed import files_root
from sparkd_agent.privileges import Offer, Privileges
from sparkd_agent.versions import engine_versions


def gather_facts(
    config: AgentConfig, memory: Memory | None, privileges: Privileges, offer: Offer
) -> NodeFacts:
    """Versions come from metadata on disk: importing an engine would cost gigabytes and seconds."""
    return NodeFacts(
        id=config.node_id,
        name=config.name,
        address=config.address,
        fabric_address=config.fabric_address,
        fabric_interface=config.fabric_interface,
        runtimes=offer.runtimes,
        engines=tuple(
            EngineFacts(name, engine.command, engine_versions(name, engine.python).packages.get("vllm"))
            for name, engine in config.engines.items()
        ),
        model_roots=config.model_roots,
        rank_env=config.rank_env,
        memory_total=memory.total if memory else 0,
        privileges=privileges.in_words(),
        limits=offer.limits,
        local=config.local,
        files_folder=str(files_root(config.state, offer.account)),
    )
