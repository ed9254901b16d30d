"""What `sparkd mods` asks for, as one JSON document: `python -m sparkd_mods._framework.command VERB [MOD…]`.

`verify FOLDER OVERRIDES [MOD…]` is what `sparkd models verify` asks: each mod's word on a checkpoint, given
the profile's `hf-overrides` as JSON.

Run by the interpreter whose vLLM is meant, with this package on its PYTHONPATH. vLLM is looked at, not
imported.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkd_mods._framework import catalogue, checkpoint, engine
from sparkd_mods._framework.decide import judge
from sparkd_mods._framework.declare import FIXED


def main(words: Sequence[str]) -> int:
    verb, *names = words
    if verb == "verify":
        folder, overrides, *names = names
        json.dump(_verified(Path(folder), json.loads(overrides), names), sys.stdout)
        return 0
    entries = [catalogue.load(name) for name in names] or catalogue.entries()
    answers = {"list": _declared, "check": _checked, "fingerprint": _fingerprints}
    version = engine.version()
    json.dump({"vllm": version, "mods": [answers[verb](entry) for entry in entries]}, sys.stdout)
    return 0


def _verified(folder: Path, overrides: dict[str, Any], names: list[str]) -> dict[str, Any]:
    entries = [catalogue.load(name) for name in names]
    found, findings = checkpoint.read(folder)
    for entry in entries:
        if entry.verify is not None:
            findings += entry.verify(found, overrides)
    return {"findings": [asdict(finding) for finding in findings], "tensors": len(found.tensors)}


def _declared(entry: catalogue.Entry) -> dict[str, Any]:
    mod = entry.mod
    return {
        "name": entry.name,
        "summary": mod.summary,
        "why": mod.why,
        "upstream": mod.upstream,
        "versions": mod.versions,
        "needed": mod.needed,
        "targets": {target.module: list(target.functions) for target in mod.targets},
        "settings": {key: list(values) for key, values in (mod.settings or {}).items()},
    }


def _checked(entry: catalogue.Entry) -> dict[str, Any]:
    version = engine.version()
    verdicts = [judge(entry.mod, target, engine.found(target), version) for target in entry.mod.targets]
    worst = next((one for one in verdicts if one.verdict == "unknown"), None)
    needed = [one for one in verdicts if one.verdict != FIXED]
    chosen = worst or (needed or verdicts)[0]
    return {"name": entry.name, "verdict": chosen.verdict, "reason": chosen.reason}


def looked_at(entry: catalogue.Entry) -> dict[str, Any]:
    """For an agent that looks into an image: the verdict, and what it is about."""
    found = {
        f"{target.module} {name}": value
        for target in entry.mod.targets
        for name, value in (engine.found(target) or {}).items()
    }
    return {**_checked(entry), "fingerprints": found}


def _fingerprints(entry: catalogue.Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "targets": {
            target.module: {
                name: {"fingerprint": value, "known": target.functions[name].get(value)}
                for name, value in (engine.found(target) or {}).items()
            }
            for target in entry.mod.targets
        },
    }


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LookupError as error:
        sys.exit(str(error.args[0]))
