"""A node that froze and is back: what its own black box saw last completes the incident."""

import time
from pathlib import Path
from typing import Any

import msgspec

from sparkd.profile.lookup import load_profile
from sparkd.profile.merge import resolve
from sparkd.records.report import Sample
from sparkd.records.verdict import Severity, Verdict
from tests.bed.coordinator import Coordinator, coordinator
from tests.bed.fake_agent import PlayedNode
from tests.bed.local_set import until

PATH = "/v1/deployments/tiny"


def incident(one: Coordinator) -> dict[str, Any] | None:
    found = one.ask("GET", f"{PATH}/incidents").json
    return found[0] if found else None


def test_a_node_that_is_back_completes_the_incident(tmp_path: Path) -> None:
    with coordinator(tmp_path, ("n1", "n2")) as one:
        nodes = [PlayedNode(one, "n1"), PlayedNode(one, "n2")]
        try:
            until(lambda: one.ask("DELETE", "/v1/deployments/absent").status == 404, "it to take commands")
            one.ask("PUT", PATH, {"intent": msgspec.to_builtins(resolve(load_profile("tiny")).intent)})
            until(lambda: one.ask("GET", PATH).json["phase"] == "ready", "ready")
            nodes[1].fall("sparkd-tiny-g1-r1", "it ended")
            until(lambda: incident(one) is not None, "an incident")
            nodes[1].records = [
                {
                    "at": time.time() - 100 + place,
                    "available": 800 << 20,
                    "verdicts": ["UVM_THRASH"],
                    "kernel": [],
                }
                for place in range(3)
            ]
            nodes[1].sample = Sample(verdicts=(Verdict("UNCLEAN_END", Severity.WARN, "it ended badly"),))

            def told() -> list[str]:
                found = incident(one)
                entries = found["timeline"] if found else []
                return [entry["text"] for entry in entries if "after its return" in entry["text"]]

            until(lambda: len(told()) == 3, "what the node saw last")
            assert all("UVM_THRASH" in text for text in told())
            (file,) = tmp_path.rglob("incidents/tiny-g1.json")
            until(lambda: "after its return" in file.read_text(), "the file to have it too")
        finally:
            for node in nodes:
                node.stop()
