"""A light stand-in for vLLM, used where an agent wants an engine's python.

`make_stand_in(folder)` writes `folder/bin/python`, which takes `-m vllm.entrypoints.cli.main serve MODEL …`
and imitates vLLM 0.32 with its processes, titles, sockets, log lines and ways to fail, booting in about
0.3 s with a few MiB. Any other arguments go to the real interpreter, and `importlib.metadata` finds a "vllm".

A completion needs every worker, as in vLLM: API -> EngineCore -> Worker_TP0 -> each follower's worker, over
the rendezvous connection. So a stopped worker hangs completions and a dead one fails them. Imitated:
  - a follower does not notice a dead head; /health stays 200 with a dead follower;
  - the head exits 0 when its engine dies, a follower 0 when its worker dies, 1 while still loading;
  - SIGKILL of a launcher leaves its children behind; a follower takes 11 s to obey SIGTERM.

Behaviour is set by `STAND_IN_<NAME>` in the environment, or by `configure(folder, NAME=value)` at any time,
which wins. `value@R` applies to rank R only.

    BOOT_S=0.3          seconds from start to ready, once all ranks are there
    LOAD_FILE=PATH      loading reads this file, printing nothing ...
    LOAD_S=1            ... for so long
    EXIT=PHASE:CODE     the launcher ends in that phase with that code; negative: by that signal
    SPIN=1              loading never ends: one core at 100 % and a heartbeat line five times a second
    FLOOD_BYTES=N       so much log text while launching
    DAEMON=1            leaves a daemon in a session of its own
    SHM_BYTES=N         a /dev/shm/psm_* segment per worker and engine, mapped; removed on a clean end only
    IGNORE_TERM=1       SIGTERM does nothing
    TERM_S=11           how long a follower takes to obey SIGTERM
    EXIT_DELAY_S=2      from "died unexpectedly" to the launcher's end
    COLLECTIVE=gloo     `nccl`: a dead peer hangs a step instead of failing it
    ANSWER=TEXT         every answer, instead of 84 to "12 x 7" and words to anything else
    HANG=1              completions are taken and never answered, and no counter moves
    STEP_S=0.001        per token
    PROBE=absent        the collective probe never goes to the rendezvous; `torchless`, `mute`: as said
    PREFILL_S=0         before the first token ...
    PREFILL_MOVES=prompt   ... in which the prompt counter grows, or as in 0.32 only the KV gauge (`kv`)
"""

import json
import sys
import zlib
from pathlib import Path

VERSION = "0.32.0"

# -I -S: the launcher must not depend on the environment that the agent builds, and starts faster.
LAUNCHER = """#!{python} -IS
import sys
sys.path.insert(0, {bed!r})
from stand_in.launcher import main
main({folder!r}, {python!r})
"""


def make_stand_in(folder: Path) -> Path:
    """Make the stand-in in `folder`; return the path of its `bin/python`."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    bed = str(Path(__file__).resolve().parent.parent)
    python.write_text(LAUNCHER.format(python=sys.executable, bed=bed, folder=str(folder.resolve())))
    python.chmod(0o755)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    metadata = site / f"vllm-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    return python


def configure(folder: Path, **settings: str | float | None) -> None:
    """Set behaviour for what runs and what will be started; None takes a setting back."""
    file = folder / "settings.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known.update({name: None if value is None else str(value) for name, value in settings.items()})
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(known))
    fresh.replace(file)


def segment_prefix(folder: str) -> str:
    """Begins the name of every segment of this folder's stand-ins: the bed knows what is its own."""
    return f"psm_{zlib.crc32(folder.encode()):08x}_"


def remove_segments(folder: Path) -> None:
    """What killed stand-ins of this folder left in shared memory. An agent removes what it has seen of a rank;
    nobody does so where the agent was killed too, or a process between two looks, or where there is no agent.
    """
    for path in Path("/dev/shm").glob(segment_prefix(str(folder.resolve())) + "*"):
        path.unlink(missing_ok=True)
