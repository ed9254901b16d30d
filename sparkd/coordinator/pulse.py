"""A pulse from the coordinator itself: rank 0's agent cannot be asked, its API perhaps can."""

from collections.abc import Awaitable, Callable

import httpx2

from sparkd.gang.state import EndpointPulsed
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.rank import Probe

SendPulse = Callable[[Probe, str | None], Awaitable[EndpointPulsed]]


async def send_pulse(probe: Probe, api_key: str | None, limits: Defaults = DEFAULTS) -> EndpointPulsed:
    """Ask for one token in the probe's time. Only a request that was delivered says something."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"model": probe.model, "prompt": "1", "max_tokens": 1}
    timeout = httpx2.Timeout(probe.pulse_timeout_s, connect=limits.agent_connect_timeout_s)
    try:
        async with httpx2.AsyncClient(timeout=timeout, trust_env=False) as client:
            answer = await client.post(f"http://{probe.api}/v1/completions", json=body, headers=headers)
            answered = answer.status_code == 200 and bool(answer.json().get("choices"))
            return EndpointPulsed("answered" if answered else "undelivered")
    except httpx2.ReadTimeout:
        return EndpointPulsed("unanswered")
    except (httpx2.HTTPError, ValueError):
        return EndpointPulsed("undelivered")
