"""Whether a mod changes what it finds: a pure function of its declaration and the fingerprints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target
from sparkd_mods._framework.versions import is_release, within

Verdict = Literal["needed", "fixed", "unknown"]


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: str


def judge(mod: Mod, target: Target, found: Mapping[str, str] | None, version: str | None) -> Judgement:
    """What is known of one target. `found`: its fingerprints, None if the module does not exist.

    `version` is vLLM's own; None when it does not say. A release outside `mod.versions` is unknown whatever
    its source looks like; for any other build only the fingerprints count, and a miss is told.
    """
    told = ""
    if version is not None and not within(version, mod.versions):
        told = f"made for vLLM {mod.versions}, this is {version}"
        if is_release(version):
            return Judgement("unknown", told)
        told += "; its fingerprints decide"
    if found is None:
        if target.optional:
            return Judgement("fixed", f"this vLLM has no {target.module}")
        return Judgement("unknown", f"this vLLM has no module {target.module}")
    verdicts = set()
    for name, known in target.functions.items():
        if found[name] not in known:
            where = target.module.rpartition(".")[2]
            return Judgement("unknown", f"{where}.{name} has a text that it does not know ({found[name]})")
        verdicts.add(known[found[name]])
    if verdicts == {FIXED}:
        return Judgement("fixed", told or "upstream does it by itself")
    return Judgement(NEEDED, told)
