"""The conversation itself: one JSON line a question, one line an answer."""

from __future__ import annotations

import json
import os
import pwd
import sys
from pathlib import Path

from sparkd.enrol.onnode.change import (
    identity,
    link,
    request_certificate,
    stage,
    start,
    uninstall,
    verify,
    write,
)
from sparkd.enrol.onnode.look import probe
from sparkd.enrol.onnode.place import HERE, Answer, Refusal


def begin(args: Answer, _blob: bytes) -> Answer:
    """Where things lie (for tests), and who we are."""
    HERE.root = Path(args.get("root", "/"))
    HERE.systemctl = args.get("systemctl", "systemctl")
    user = pwd.getpwuid(os.getuid())
    return {"uid": os.getuid(), "user": user.pw_name, "home": user.pw_dir}


VERBS = {
    verb.__name__: verb
    for verb in (begin, probe, stage, identity, request_certificate, write, link, start, verify, uninstall)
}


def converse(mark: str) -> None:
    """Answer until the other end goes away. What our children print goes nowhere, not into the answers."""
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    # Whatever sudo or a login left: what is copied is for all users to read.
    os.umask(0o022)
    while True:
        line = questions.readline()
        if not line:
            return
        question = json.loads(line)
        blob = questions.read(question.get("bytes", 0))
        answer: Answer
        try:
            answer = {"ok": VERBS[question["verb"]](question["args"], blob)}
        except Refusal as error:
            answer = {"error": str(error)}
        except Exception as error:  # noqa: BLE001  whatever it is, the other end must hear of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(f"{mark} {json.dumps(answer)}\n".encode())
