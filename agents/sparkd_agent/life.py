"""The life of one rank on its node, as a pure machine: what happened, and when may what is left be killed.

    starting ──> running ──fall──> fallen ───────────> gone
        │           │                │  after the proof time: unkillable ──> gone
        └───────────┴──asked─────> stopping ─────────> gone

`fallen` keeps its name until everything is proved gone: a fall is what the gang must hear, at once.
"""

from dataclasses import dataclass, replace

from sparkd.records.defaults import Defaults
from sparkd.records.report import RankState


@dataclass(frozen=True, slots=True)
class Life:
    """Moments are seconds of the monotonic clock."""

    state: RankState
    since: float
    fell: str | None = None
    """Why it counts as fallen, in plain words; stays when the rank is gone."""
    reason: str = ""
    """Why its end was asked for."""
    kill_at: float | None = None
    """From then on everything left is sent SIGKILL, again and again; None: not at all."""
    killed_since: float | None = None
    """The first SIGKILL: the proof time counts from here."""
    remains: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        return self.state == "gone"

    @property
    def wanted(self) -> bool:
        """Whether it should run: an end that comes now is a fall."""
        return self.state in {"starting", "running"}


def began(life: Life, now: float) -> Life:
    return replace(life, state="running", since=now) if life.state == "starting" else life


def essential_ended(life: Life, now: float, why: str, limits: Defaults) -> Life:
    """An essential process ended, which is a fall if nobody asked for the rank's end."""
    if life.wanted:
        return replace(life, state="fallen", since=now, fell=why, kill_at=now + limits.last_words_s)
    return life


def leader_ended(life: Life, now: float, why: str, limits: Defaults) -> Life:
    """As `essential_ended`. A leader that obeyed SIGTERM leaves nothing that needs a grace."""
    if life.state == "stopping":
        return _kill_from(life, now)
    return essential_ended(life, now, why, limits)


def last_words_written(life: Life, now: float) -> Life:
    return _kill_from(life, now) if life.state == "fallen" else life


def kill_asked(life: Life, now: float, reason: str) -> Life:
    if life.wanted:
        life = replace(life, state="stopping", since=now, reason=reason)
    return life if life.over else _kill_from(life, now)


def end_asked(life: Life, now: float, grace_s: float, reason: str) -> Life:
    """SIGTERM was sent; SIGKILL follows after the grace. A shorter grace than before wins."""
    if life.wanted:
        life = replace(life, state="stopping", since=now, reason=reason)
    return _kill_from(life, now + grace_s) if life.state == "stopping" else life


def killed(life: Life, now: float, left: tuple[str, ...], limits: Defaults) -> Life:
    """One pass of SIGKILL was sent, and this is what was left before it."""
    since = life.killed_since if life.killed_since is not None else now
    life = replace(life, killed_since=since, remains=left)
    if life.state != "unkillable" and now - since >= limits.kill_proof_s:
        return replace(life, state="unkillable", since=now)
    return life


def nothing_left(life: Life, now: float, remains: tuple[str, ...] = ()) -> Life:
    """The proof. `remains` are files that could not be removed."""
    return life if life.over else replace(life, state="gone", since=now, remains=remains)


def _kill_from(life: Life, moment: float) -> Life:
    earliest = moment if life.kill_at is None else min(life.kill_at, moment)
    return replace(life, kill_at=earliest)
