"""Parse command lines as `vllm serve` would: JSON list of argv lists on stdin, list of results on stdout.

A result is the map of values that differ from their defaults, or a text when vLLM refuses the line.
"""

import contextlib
import io
import json
import os
import sys
from typing import Any


def parse(parser: Any, defaults: dict[str, Any], argv: list[str]) -> dict[str, Any] | str:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            found = vars(parser.parse_args(argv))
    except SystemExit:
        return errors.getvalue().strip().rsplit("\n", 1)[-1] or "exit"
    return {key: value for key, value in found.items() if key not in defaults or value != defaults[key]}


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = FlexibleArgumentParser()
        ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
        defaults = vars(parser.parse_args(["serve", "/none"]))
        results = [parse(parser, defaults, argv) for argv in json.load(sys.stdin)]
    json.dump(results, sys.stdout, default=str)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
