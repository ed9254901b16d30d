"""What calls between nodes say of the way between them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from sparkd.records.fabric import Call
from sparkd.records.verdict import Severity, Verdict


def judge_calls(names: Sequence[str], calls: Mapping[tuple[str, str], Call]) -> Iterator[Verdict]:
    """Of every pair of nodes; `calls` by source and target."""
    for here, there in combinations(names, 2):
        to, back = calls.get((here, there)), calls.get((there, here))
        if to is None or back is None or to.reached is None or back.reached is None:
            deaf = [call.target for call in (to, back) if call is not None and call.heard is None]
            # Who could not listen was not called either.
            silent = deaf[0] if len(deaf) == 1 else here if to is None or to.reached is None else there
            yield Verdict(
                "FABRIC_UNTESTED",
                Severity.WARN,
                f"the way between {here} and {there} was not tested",
                evidence=f"{silent} did not answer in time",
                remedy="`sparkd nodes list` shows whether its agent is in contact",
                node=silent,
            )
            continue
        broken = [call for call in (to, back) if _error(call) is not None]
        yield from _broken(broken) if broken else _small(to, back)


def _error(call: Call) -> str | None:
    return call.reached.tcp if call.reached else "not called"


def _broken(broken: Sequence[Call]) -> Iterator[Verdict]:
    evidence = "; ".join(f"{call.source} to {call.target}: {_error(call)}" for call in broken)
    first = broken[0]
    unheard = _unheard(broken)
    # A connection in one direction proves that packets pass both ways: somebody refuses the other one.
    if len(broken) == 1 or (unheard is None and all(_linked(call) for call in broken)):
        where = ", ".join(dict.fromkeys(call.target for call in broken))
        yield Verdict(
            "FIREWALL",
            Severity.BLOCK,
            f"{where} takes no connections on ephemeral ports of the fabric",
            evidence=f"{evidence}; other packets pass",
            cause="NCCL, gloo and vLLM's queues connect to ports that nobody can know before, both ways",
            remedy=f"on {where}: `sudo ufw status`, `sudo nft list ruleset`; allow the fabric's network",
            node=first.target if len(broken) == 1 else None,
        )
    elif unheard is not None:
        yield Verdict(
            "FABRIC_ONE_WAY",
            Severity.BLOCK,
            f"nothing that {unheard.source} sends reaches {unheard.target}; the other direction works",
            evidence=evidence,
            cause="a filter or a fault in a switch, a bridge or a cable; a route that leads elsewhere",
            remedy=f"`tcpdump -ni INTERFACE` on {unheard.target} shows what arrives; see to switch and cable",
            node=unheard.source,
        )
    else:
        yield Verdict(
            "FABRIC_NO_PATH",
            Severity.BLOCK,
            f"{first.source} and {first.target} do not reach each other over the fabric",
            evidence=evidence,
            cause="no cable between them, different VLANs on the switch, or both drop all that comes in",
            remedy="see to cable, switch and firewalls; `ip neigh show dev INTERFACE` shows who answers",
        )


def _unheard(broken: Sequence[Call]) -> Call | None:
    """The direction in which nothing arrives, if it is one only: by what came in, else by who knows whose
    link address. Whoever sends into a cut still learns the other one's from its questions.
    """
    if len(broken) != 2:
        return None
    one, other = broken
    if one.heard is not None and other.heard is not None and one.heard != other.heard:
        return other if one.heard else one
    known = [call.reached.neighbour if call.reached else None for call in broken]
    if None not in known and known[0] != known[1]:
        return one if known[0] else other
    return None


def _linked(call: Call) -> bool:
    """The other end is there: something came in, or it refused the connection itself. That its link address
    is known proves nothing: it is remembered for a minute after a cable was pulled.
    """
    return bool(call.heard) or _error(call) == "connection refused"


def _small(*calls: Call) -> Iterator[Verdict]:
    for call in calls:
        reached, wanted = call.reached, call.wanted_mtu
        if reached is None or wanted is None or not reached.udp or (reached.mtu or 0) >= wanted:
            continue
        most = f"{reached.mtu} bytes do" if reached.mtu else "not even 1500 bytes do"
        yield Verdict(
            "MTU_PATH",
            Severity.BLOCK,
            f"packets of {wanted} bytes from {call.source} do not reach {call.target}",
            evidence=f"sent in one piece (DF): {wanted} bytes do not arrive, {most}",
            cause="the other end, or the switch between, has a smaller MTU than the interface that sends",
            remedy="set the same MTU on both ends and, on the switch, at least as much",
            node=call.source,
        )
        return
