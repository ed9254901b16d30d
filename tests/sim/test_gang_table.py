from pathlib import Path

from tests.sim.gang_table import table

DOC = Path(__file__).parents[2] / "docs" / "gang.md"


def test_the_document_is_what_the_machine_does() -> None:
    assert DOC.read_text() == table(), "run: python -m tests.sim.gang_table > docs/gang.md"
