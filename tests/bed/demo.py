"""The demo: bring the tiny model up on two ranks of this machine, ask it something, take it down again."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

SPARKD = str(Path(sys.executable).with_name("sparkd"))
QUESTION = "Say something about staying up."


def sparkd(*words: str) -> None:
    print(f"\n$ sparkd {' '.join(words)}", flush=True)
    subprocess.run([SPARKD, *words], check=True)


def ask() -> None:
    status = json.loads(
        subprocess.run([SPARKD, "status", "-o", "json"], check=True, capture_output=True).stdout
    )
    (endpoint,) = [d["endpoint"] for d in status["deployments"] if d["name"] == "tiny"]
    url = endpoint["base_url"].rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 16, "temperature": 0}
    body["messages"] = [{"role": "user", "content": QUESTION}]
    headers = {"content-type": "application/json"}
    if endpoint.get("key_file"):
        headers["authorization"] = f"Bearer {Path(endpoint['key_file']).read_text().strip()}"
    print(f"\n$ POST {url}\n  {QUESTION}", flush=True)
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        completion = json.load(answer)
    print(f"  ->{completion['choices'][0]['message']['content']}   (its weights are random)")


def main() -> int:
    try:
        sparkd("up", "tiny", "--local", "2")
        ask()
        sparkd("status")
    except (subprocess.CalledProcessError, OSError, ValueError, KeyError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        print("\n$ sparkd down tiny", flush=True)
        down = subprocess.run([SPARKD, "down", "tiny"], check=False)
    return down.returncode


if __name__ == "__main__":
    sys.exit(main())
