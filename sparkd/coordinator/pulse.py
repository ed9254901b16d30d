"""A pulse from the coordinator itself: rank 0's agent cannot be asked, its API perhaps can."""

from collections.abc import Awaitable, Callable

import httpx2

from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.rank import Probe

SendPulse = Callable[[Probe, str | None], Awaitable[bool]]


async def send_pulse(probe: Probe, api_key: str | None, limits: Defaults = DEFAULTS) -> bool:
    """Whether one completion of one token came back in the probe's time. Nothing is raised: no is no."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"model": probe.model, "prompt": "1", "max_tokens": 1}
    timeout = httpx2.Timeout(probe.pulse_timeout_s, connect=limits.agent_connect_timeout_s)
    try:
        async with httpx2.AsyncClient(timeout=timeout, trust_env=False) as client:
            answer = await client.post(f"http://{probe.api}/v1/completions", json=body, headers=headers)
            return answer.status_code == 200 and bool(answer.json().get("choices"))
    except (httpx2.HTTPError, ValueError):
        return False
