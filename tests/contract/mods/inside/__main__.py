"""Answers lines `{"case": "module.function", "args": {…}}` on stdin; JSON lines go to the descriptor in argv.

vLLM's plug-ins are loaded first, by vLLM itself, so the mods of SPARKD_MODS apply as in a rank.
"""

import importlib
import json
import os
import sys
import traceback

import torch


def main() -> None:
    # The CPU build of torch has no torchvision; the plain one imports once these exist. Not on PYTHONPATH: in
    # the processes that vLLM starts they do not.
    sys.path.append(sys.argv[2])
    library = torch.library.Library("torchvision", "DEF")  # for as long as this process lives
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as answers:
        answers.write(json.dumps({"ok": "ready"}) + "\n")
        for line in sys.stdin:
            request = json.loads(line)
            module, _, function = request["case"].rpartition(".")
            try:
                case = getattr(importlib.import_module(f"inside.{module}"), function)
                answer = {"ok": case(**request["args"])}
            except Exception:  # noqa: BLE001 - the test shows it
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
