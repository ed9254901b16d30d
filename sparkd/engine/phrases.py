"""vLLM's log lines and what they mean.

Each row of `PHRASES` says where its wording was seen: facts = facts/vllm.md §3.3 (0.32 and 0.33), capture =
the log of a real run in tests/fixtures. Nothing here reads anything: a line goes in, a meaning comes out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparkd.records.report import RankPhase

PHASES: Final[tuple[RankPhase, ...]] = ("launching", "rendezvous", "loading", "warming", "serving")
"""In the order in which a rank passes them."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one line tells. `phase` is the phase that the line proves to have begun.

    A `heartbeat` line is printed by a rank that waits or idles: it never counts as progress.
    `percent` (0 to 100) belongs to the bar named by `detail`.
    """

    phase: RankPhase | None = None
    detail: str = ""
    percent: float | None = None
    heartbeat: bool = False
    facts: dict[str, str] = field(default_factory=dict)


class Phrase(NamedTuple):
    needle: str
    """Plain text that the line must hold; looked for before the pattern, because it is cheap."""
    phase: RankPhase | None
    detail: str
    """In plain words; `{name}` stands for the pattern's group of that name."""
    pattern: re.Pattern[str] | None = None
    """Must match as well. A group `percent` becomes the percentage, the others become facts."""
    source: str = "facts"


def _p(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


PHRASES: Final[tuple[Phrase, ...]] = (
    Phrase(
        "Resolved architecture: ",
        "launching",
        "configuring {architecture}",
        _p(r"Resolved architecture: (?P<architecture>\S+)"),
    ),
    Phrase(
        "Using max model len ", "launching", "configuring", _p(r"Using max model len (?P<max_model_len>\d+)")
    ),
    Phrase(
        "Initializing a V1 LLM engine",
        "launching",
        "starting the engine",
        _p(r"Initializing a V1 LLM engine \(v(?P<version>[^)]+)\)"),
    ),
    Phrase(
        "headless multiproc executor",
        "launching",
        "starting as a follower of {head}",
        _p(
            r"Launching vLLM \(v(?P<version>[^)]+)\) headless multiproc executor, with head node address "
            r"(?P<head>\S+)"
        ),
    ),
    Phrase(
        "DP group leader:",
        "launching",
        "starting workers",
        _p(
            r"DP group leader: .*mq_connect_ip=(?P<mq_connect_ip>\S+) \(local\), "
            r"world_size=(?P<world_size>\d+)"
        ),
    ),
    Phrase(
        "distributed_init_method=",
        "rendezvous",
        "waiting for the other ranks at {rendezvous}",
        _p(
            r"world_size=(?P<world_size>\d+) rank=(?P<rank>\d+) .*distributed_init_method=tcp://"
            r"(?P<rendezvous>\S+) backend=(?P<backend>\S+)"
        ),
    ),
    Phrase(
        "is assigned as DP rank",
        "loading",
        "joined the other ranks",
        _p(r"rank (?P<rank>\d+) in world size (?P<world_size>\d+) is assigned as DP rank"),
    ),
    Phrase("Starting to load model ", "loading", "loading the model"),
    Phrase("Loading model from scratch", "loading", "loading the model"),
    Phrase("Loading drafter model", "loading", "loading the draft model", source="0.32 source"),
    Phrase(
        "% Completed | ",
        "loading",
        "loading weights, shard {done} of {total}",
        _p(r"Loading (?P<kind>[^:]+):\s+(?P<percent>\d+)% Completed \| (?P<done>\d+)/(?P<total>\d+) "),
    ),
    Phrase(
        "Prefetching checkpoint files: ",
        "loading",
        "prefetching weights, file {done} of {total}",
        _p(r"Prefetching checkpoint files: (?P<percent>\d+)% \((?P<done>\d+)/(?P<total>\d+)\)"),
    ),
    Phrase(
        "Loading weights took ",
        "warming",
        "weights loaded",
        _p(r"Loading weights took (?P<load_s>[\d.]+) seconds"),
    ),
    Phrase(
        "Model loading took ",
        "warming",
        "weights loaded",
        _p(r"Model loading took (?P<model_gib>[\d.]+) GiB(?: memory)? and (?P<load_s>[\d.]+) seconds"),
    ),
    Phrase(
        "Available KV cache memory: ",
        "warming",
        "measuring memory for the KV cache",
        _p(r"Available KV cache memory: (?P<kv_gib>[\d.]+) GiB"),
    ),
    Phrase("GiB for KV cache on node", "warming", "making the KV cache", source="capture"),
    Phrase(
        " KV cache size: ",
        "warming",
        "KV cache of {kv_tokens} tokens",
        _p(r"KV cache size: (?P<kv_tokens>[\d,]+) tokens"),
    ),
    Phrase(
        "Capturing CUDA graphs",
        "warming",
        "capturing CUDA graphs",
        _p(r"Capturing CUDA graphs[^:]*:\s*(?P<percent>\d+)%"),
    ),
    Phrase(
        "Graph capturing finished in ",
        "warming",
        "CUDA graphs captured",
        _p(r"Graph capturing finished in (?P<graphs_s>[\d.]+) secs"),
    ),
    Phrase("torch.compile took ", "warming", "compiled", source="0.32 source"),
    Phrase(
        "init engine (profile, create kv cache, warmup model) took",
        "warming",
        "engine initialised",
        _p(r"warmup model\) took (?P<init_s>[\d.]+) s"),
    ),
    Phrase(
        "Starting vLLM server on http",
        "warming",
        "starting the API server",
        _p(r"Starting vLLM server on (?P<url>\S+)"),
    ),
    Phrase("Application startup complete.", "serving", "serving"),
)

HEARTBEATS: Final[tuple[str, ...]] = (
    "No available shared memory broadcast block",  # case 41: INFO, each minute, of any rank that waits
    "Avg generation throughput:",  # each 10 s, also of a frozen engine (gpu-lab §2)
    'HTTP/1.1" ',  # access log: our own probes make these
    'HTTP/1.0" ',
    "TCPStore",  # a follower repeats "Broken pipe" each second after its head has gone (gpu-lab §3.4)
    "The client socket has failed to connect",  # c10d trying again
    "[c10d] The hostname of the client socket cannot be retrieved",
    "core engine proc(s) to ",  # "Waiting for 1 local, 0 remote core engine proc(s) to start.", each 10 s
)

_PREFIX: Final = re.compile(
    r"^\((?P<process>[\w-]+) pid=\d+\) (?:(?P<level>[A-Z]+) \d\d-\d\d [\d:]+ \[[^\]]*\] )?(?P<text>.*)",
    re.DOTALL,
)
_EXCEPTION: Final = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?:: |$)")
_TELLING: Final[tuple[tuple[str, int], ...]] = (
    # The lower, the more telling.
    ("died unexpectedly", 0),
    ("CUDA out of memory", 0),
    ("No space left on device", 0),
    ("error while loading shared libraries", 0),
    ("Address already in use", 0),
    ("EADDRINUSE", 0),
    ("failed to start", 2),
    ("RPC call to ", 2),
    ("NCCL WARN", 2),
    ("Connection closed by remote peer", 2),
    ("encountered a fatal error", 3),
    ("hit an exception", 3),
)
_CONSEQUENCES: Final = (
    "EngineDeadError",
    "Worker failed with error",
    "Engine core initialization failed",
    "See stack trace (above)",
)
"""Said by a process that only learnt of the failure."""
_LINE_CHARACTERS: Final = 400


def read_line(text: str) -> Sighting | None:
    """Say what a log line means; None for the many lines that say nothing of the engine's way up."""
    text = text.rstrip("\r").rpartition("\r")[2]  # a bar that redraws itself: only its last state
    for heartbeat in HEARTBEATS:
        if heartbeat in text:
            return Sighting(heartbeat=True)
    for phrase in PHRASES:
        if phrase.needle not in text:
            continue
        match = phrase.pattern.search(text) if phrase.pattern else None
        if phrase.pattern and match is None:
            continue
        facts = match.groupdict() if match else {}
        percent = facts.pop("percent", None)
        return Sighting(
            phase=phrase.phase,
            detail=phrase.detail.format(**facts),
            percent=None if percent is None else min(100.0, float(percent)),
            facts=facts,
        )
    return None


def later(phase: RankPhase, other: RankPhase) -> RankPhase:
    """The one of two phases that comes later."""
    return max(phase, other, key=PHASES.index)


def telling_lines(lines: Iterable[str], limit: int = 12) -> tuple[str, ...]:
    """The lines that say most about a failure, oldest first, each once, at most `limit`, each shortened.

    Chosen in this order: how a process died, the exceptions that ended tracebacks (first ones first, those
    that only report another's death last), then other error lines.
    """
    ranked: list[tuple[int, int, str]] = []
    seen: set[str] = set()
    for position, line in enumerate(lines):
        weight = _weight(line)
        if weight is None:
            continue
        same = re.sub(r"\d+", "#", _text(line))
        if same not in seen:
            seen.add(same)
            ranked.append((weight, position, line.strip()))
    chosen = sorted(sorted(ranked)[:limit], key=lambda entry: entry[1])
    return tuple(
        line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…" for *_, line in chosen
    )


def _text(line: str) -> str:
    match = _PREFIX.match(line)
    return match["text"] if match else line


def _weight(line: str) -> int | None:
    """How telling a line is, 0 the most; None for a line that explains nothing."""
    match = _PREFIX.match(line)
    text = match["text"] if match else line
    if _EXCEPTION.match(text):
        return 5 if any(word in text for word in _CONSEQUENCES) else 1
    for phrase, weight in _TELLING:
        if phrase in text:
            return weight
    if match and match["level"] in ("ERROR", "CRITICAL") and not (_is_traceback(text) or _is_dump(text)):
        return 4
    if text.startswith(("[E", "Killed")) or "Fatal Python error" in text:
        return 1
    return None


def _is_traceback(text: str) -> bool:
    return not text.strip() or text.startswith((" ", "Traceback (most recent call last)"))


def _is_dump(text: str) -> bool:
    """The state of the engine at its death: long, about requests of users, and never the cause."""
    return text.startswith("Dumping ")
