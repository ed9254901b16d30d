"""Facts for which drivers and engines are asked at each hello: they may not answer for hours."""

from collections.abc import Sequence
from functools import partial

from sparkd.errors import DockerRefused, DockerUnreachable
from sparkd.records.defaults import Defaults
from sparkd.records.fabric import NodeFabric
from sparkd_agent.config import AgentConfig
from sparkd_agent.fabric import discover
from sparkd_agent.nccl_conf import nccl_files
from sparkd_agent.one_at_a_time import OneAtATime


class SlowFacts:
    """`runtimes`: names of those that the node offers."""

    def __init__(self, config: AgentConfig, runtimes: Sequence[str], limits: Defaults) -> None:
        self._config = config
        self._runtimes = runtimes
        self._limits = limits
        self._fabric_looks = OneAtATime[NodeFabric]()
        self._image_looks = OneAtATime[tuple[str, ...]]()

    async def fabric(self) -> NodeFabric | None:
        """As it is now; None in a local set. Sysfs waits for drivers: one that hangs holds up nobody here."""
        if self._config.local:
            return None
        try:
            find = partial(discover, nccl_files=nccl_files(self._config))
            return await self._fabric_looks.ask(find, self._limits.resolve_s)
        except TimeoutError:
            return NodeFabric()

    async def images(self) -> tuple[str, ...]:
        """Names; none where no engine answers at once."""
        if "docker" not in self._runtimes:
            return ()
        try:
            return await self._image_looks.ask(partial(_image_names, self._config), self._limits.resolve_s)
        except (TimeoutError, DockerRefused, DockerUnreachable):
            return ()


def _image_names(config: AgentConfig) -> tuple[str, ...]:
    from sparkd_agent.runtime.images import images_of  # noqa: PLC0415 - a node without Docker need not

    return images_of(config).names()
