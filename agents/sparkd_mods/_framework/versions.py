"""Version ranges as profiles write them: `>=0.23,<0.34`. The standard library has no such thing."""

import re

_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\.post\d+)?(?:\+[A-Za-z0-9.]+)?")
_BOUND = re.compile(r"\s*(>=|<)\s*(\d+(?:\.\d+)*)\s*")


def is_release(version: str) -> bool:
    """Whether it numbers a release. `0.24.1.dev3+gabc` and `0.23.1rc0` say little about what is inside."""
    return _RELEASE.fullmatch(version) is not None


def within(version: str, bounds: str) -> bool:
    """Whether the numbers of a version lie in a range. Raises ValueError for a range of another form."""
    numbers = _numbers(version)
    for bound in bounds.split(","):
        match = _BOUND.fullmatch(bound)
        if match is None:
            raise ValueError(f"{bounds}: a range is made of `>=X` and `<Y`, separated by commas")
        limit = _numbers(match[2])
        if (numbers >= limit) != (match[1] == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
