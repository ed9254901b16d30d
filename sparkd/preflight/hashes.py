"""Whether the bytes of a model are the same on all its nodes. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sparkd.diagnosis.copying import copy
from sparkd.records.preflight import Member
from sparkd.records.verdict import Severity, Verdict

File = tuple[str, str]
"""The model's name in the profile, the model itself being the empty one, and the file's."""
Digests = Mapping[File, Sequence[str]]
"""Of each piece of a file, in their order."""


def compare(members: Sequence[Member], digests: Mapping[str, Digests], piece: int) -> Iterator[Verdict]:
    """`digests` by the member's name; a file that one of them lacks is told of by its size elsewhere.

    `piece`: bytes of one.
    """
    for file in sorted({file for found in digests.values() for file in found}):
        having = [one for one in members if file in digests.get(one.name, {})]
        told = {one.name: tuple(digests[one.name][file]) for one in having}
        counted = Counter(told.values())
        if len(counted) < 2:
            continue
        right, most = counted.most_common(1)[0]
        source = next(one for one in having if told[one.name] == right)
        doubtful = most * 2 <= len(having)
        for one in having:
            if told[one.name] != right:
                yield _verdict(file, one, source, _first_difference(told[one.name], right) * piece, doubtful)


def _first_difference(one: Sequence[str], other: Sequence[str]) -> int:
    places = (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(places, min(len(one), len(other)))


def _verdict(file: File, odd: Member, source: Member, at: int, doubtful: bool) -> Verdict:
    of, name = file
    good, bad = source.checkpoints[of], odd.checkpoints[of]
    which = "; which of the two is right a hash cannot tell" if doubtful else ""
    size = good.files.get(name, 0)
    # In the Hub's cache it is a link, and the file itself must go.
    gone = f'rm "$(readlink -f {shlex.quote(f"{bad.path}/{name}")})"'
    return Verdict(
        "CHECKPOINT_BYTES",
        Severity.BLOCK,
        f"{name} holds other bytes on {odd.name} than on {source.name}",
        evidence=f"{bad.path}/{name}: other bytes after the first {at:,}{which}",
        remedy=f"on {odd.name}: {gone}; then {copy(source, good, odd, size)}",
        node=odd.name,
    )
