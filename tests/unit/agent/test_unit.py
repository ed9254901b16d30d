"""The transient unit of a rank, word for word: what systemd is told is a contract with every node."""

from dataclasses import replace

from sparkd_agent.account import Account
from sparkd_agent.runtime.unit import RankUnit, Stdio, bus_properties, run_words

SPARK = Account("spark", 1000, 1000, "spark", (27, 44, 1000), "/home/spark")
UNIT = RankUnit(
    name="sparkd-tiny-g3-r1",
    command=("/usr/bin/python3", "-I", "-S", "/opt/spark d/$v/shim.py", "0", "sparkd-tiny-g3-r1"),
    folder='/var/lib/sparkd/agent/ranks/"x" $y\\z',
    account=SPARK,
)
STDIO = Stdio(spec=5, answer=6, errors=7)
UNLIMITED = 2**64 - 1

GOLDEN = """\
Description=Rank 1 of tiny, generation 3 (sparkd)
Slice=sparkd-ranks.slice
Type=exec
RemainAfterExit=yes
Restart=no
CollectMode=inactive
KillMode=control-group
TimeoutStopSec=20s
OOMPolicy=continue
OOMScoreAdjust=800
Delegate=pids
TemporaryFileSystem=/dev/shm:mode=1777,size=50%
PrivateIPC=yes
LimitMEMLOCK=infinity
TasksMax=infinity
Before=sparkd-agent.service
Environment="SPARKD_RANK_FOLDER=/var/lib/sparkd/agent/ranks/\\"x\\" $y\\\\z"
"""


def test_the_unit_in_the_words_of_a_unit_file() -> None:
    assert "".join(f"{one.name}={one.text}\n" for one in UNIT.settings) == GOLDEN


def test_the_same_over_the_bus_with_whom_it_runs_as_and_its_descriptors() -> None:
    assert bus_properties(UNIT, STDIO) == [
        ("Description", ("s", "Rank 1 of tiny, generation 3 (sparkd)")),
        ("Slice", ("s", "sparkd-ranks.slice")),
        ("Type", ("s", "exec")),
        ("RemainAfterExit", ("b", True)),
        ("Restart", ("s", "no")),
        ("CollectMode", ("s", "inactive")),
        ("KillMode", ("s", "control-group")),
        ("TimeoutStopUSec", ("t", 20_000_000)),
        ("OOMPolicy", ("s", "continue")),
        ("OOMScoreAdjust", ("i", 800)),
        ("DelegateControllers", ("as", ["pids"])),
        ("TemporaryFileSystem", ("a(ss)", [("/dev/shm", "mode=1777,size=50%")])),
        ("PrivateIPC", ("b", True)),
        ("LimitMEMLOCK", ("t", UNLIMITED)),
        ("LimitMEMLOCKSoft", ("t", UNLIMITED)),
        ("TasksMax", ("t", UNLIMITED)),
        ("Before", ("as", ["sparkd-agent.service"])),
        ("Environment", ("as", ['SPARKD_RANK_FOLDER=/var/lib/sparkd/agent/ranks/"x" $y\\z'])),
        ("User", ("s", "spark")),
        ("Group", ("s", "spark")),
        ("StandardInputFileDescriptor", ("h", 5)),
        ("StandardOutputFileDescriptor", ("h", 6)),
        ("StandardErrorFileDescriptor", ("h", 7)),
        (
            "ExecStartEx",
            ("a(sasas)", [("/usr/bin/python3", list(UNIT.command), ["no-setuid", "no-env-expand"])]),
        ),
    ]


def test_an_agent_that_is_told_of_nobody_names_nobody() -> None:
    names = {name for name, _ in bus_properties(replace(UNIT, account=None), STDIO)}
    assert not names & {"User", "Group"}


def test_the_same_by_systemd_run() -> None:
    words = run_words(UNIT, STDIO, pid=4711)
    assert words[:3] == ["systemd-run", "--quiet", "--unit=sparkd-tiny-g3-r1.service"]
    middle = words[3 : words.index("--")]
    assert middle == [
        *(f"--property={line}" for line in GOLDEN.splitlines()),
        "--property=StandardInput=file:/proc/4711/fd/5",
        "--property=StandardOutput=file:/proc/4711/fd/6",
        "--property=StandardError=file:/proc/4711/fd/7",
    ]
    # systemd-run expands $NAME, and makes one of two.
    assert words[words.index("--") + 1 :] == [word.replace("$", "$$") for word in UNIT.command]


def test_failpoints_reach_the_shim_and_nothing_else_does() -> None:
    armed = replace(UNIT, environment=(("SPARKD_FAILPOINTS", "shim.1-leader-started:kill"),))
    (environment,) = (value for name, (_, value) in bus_properties(armed, STDIO) if name == "Environment")
    assert environment[1:] == ["SPARKD_FAILPOINTS=shim.1-leader-started:kill"]
