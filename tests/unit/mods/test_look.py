"""What a look into an image finds in vLLM's sources."""

from pathlib import Path

from sparkd_mods._framework import look

ARGUMENTS = """
class EngineArgs:
    model: str = "x"
    max_model_len: int | None = None

def add_cli_args(parser):
    parser.add_argument("--max-model-len", '--max_model_len', "-x", help="as in --not-this one")
    parser.add_argument("--headless")
"""


def test_flags_are_fields_of_dataclasses_and_what_is_spelled_out(tmp_path: Path) -> None:
    for place in ("engine/arg_utils.py", "entrypoints/somewhere/new/cli_args.py"):
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        file.write_text(ARGUMENTS if "engine" in place else 'class FrontendArgs:\n    api_key: str = ""\n')
    assert look.flags(tmp_path) == ["api-key", "headless", "max-model-len", "model"]


def test_without_sources_nothing_is_said(tmp_path: Path) -> None:
    assert look.flags(tmp_path) is None
