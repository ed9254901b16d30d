"""Whether rank 0 is still there, as a follower's node can tell: by its rendezvous, or by its API.

The rendezvous port listens as long as rank 0's worker lives, also while the API does not answer yet. The API
may be bound to the head's management address alone; then the rendezvous decides.
"""

import asyncio

from sparkd.records.rank import RankSpec


async def takes_connection(spec: RankSpec, within_s: float) -> bool:
    host = spec.rendezvous.host
    ports = (spec.rendezvous.port, spec.descriptor.api_port)
    return any(await asyncio.gather(*(_accepts(host, port, within_s) for port in ports)))


async def _accepts(host: str, port: int, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # a time-out is one
        return False
    writer.close()
    return True
