"""The machinery of mods, in a python of its own with a small stand-in for vLLM on disk."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkd.engine.plugin import plugin_folder
from sparkd.mods import ask_mods

TARGET = """
def answer():
    return "upstream"


class Model:
    def load(self, weights):
        return sorted(weights)
"""

MOD = """
from sparkd_mods._framework import patch
from sparkd_mods._framework.declare import FIXED, NEEDED, Mod, Target

MOD = Mod(
    summary="s", why="w", upstream="u", versions=">=1,<2", needed="n",
    targets=(Target("vllm.toy", {{"answer": {{{known}}}, "Model.load": {{{load!r}: NEEDED}}}}),),
    changes_traits={traits},
)


def apply(module):
    {body}
"""

WRAP = """patch.wrap(module, "answer", lambda original: f"mod around {original()}")
    patch.wrap(module, "Model.load", lambda original, model, weights: original(model, [*weights, 0]))"""


@dataclass
class Place:
    """A folder with a vLLM of one module, and the plug-in with one more mod in it."""

    folder: Path

    def __post_init__(self) -> None:
        package = self.folder / "vllm"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "toy.py").write_text(TARGET)
        self.version("1.5")
        plugin = self.folder / "plugin"
        shutil.copytree(plugin_folder() / "sparkd_mods", plugin / "sparkd_mods")
        for info in plugin_folder().glob("sparkd_mods-*.dist-info"):
            shutil.copytree(info, plugin / info.name)
        self.mod()

    def version(self, text: str) -> None:
        info = self.folder / "vllm-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {text}\n")

    def mod(self, known: str = "NEEDED", *, body: str = WRAP, traits: bool = False) -> None:
        answer, load = self.fingerprints()
        text = MOD.format(known=f"{answer!r}: {known}", load=load, body=body, traits=traits)
        (self.folder / "plugin" / "sparkd_mods" / "toy_mod.py").write_text(text)

    def fingerprints(self) -> tuple[str, str]:
        code = (
            "from sparkd_mods._framework.source import fingerprints as f;"
            "found = f('vllm/toy.py', ('answer', 'Model.load')); print(*found.values())"
        )
        done = self.python("-c", code)
        first, second = done.stdout.split()
        return first, second

    def command(self, *words: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, *words], {
            "PYTHONPATH": f"{self.folder / 'plugin'}:{self.folder}",
            "HOME": str(self.folder),
        }

    def python(self, *words: str, mods: Sequence[dict[str, Any]] = ()) -> subprocess.CompletedProcess[str]:
        argv, env = self.command(*words)
        return subprocess.run(
            argv,
            env=env | {"SPARKD_MODS": json.dumps(list(mods))},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self, code: str, **request: Any) -> tuple[str, list[dict[str, Any]], int]:
        """What a process prints that loads plug-ins as vLLM does; what its mods told; its exit status."""
        load = (
            "import importlib.metadata as m\n"
            "points = m.entry_points(group='vllm.general_plugins', name='sparkd')\n"
            "load = lambda: [point.load()() for point in points]\n"
        )
        done = self.python("-c", load + code, mods=[{"name": "toy-mod", **request}])
        lines = [line for line in done.stderr.splitlines() if line.startswith("sparkd-mod ")]
        told = [json.loads(line.removeprefix("sparkd-mod ")) for line in lines]
        return done.stdout + "".join(done.stderr.splitlines(keepends=True)[-1:]), told, done.returncode


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


USE = "load()\nimport vllm.toy as t\nprint(t.answer(), t.Model().load([2, 1]))\n"


def test_a_mod_applies_when_its_target_is_imported_and_not_before(place: Place) -> None:
    code = "load()\nimport sys\nprint('vllm.toy' in sys.modules)\n" + USE
    out, told, _ = place.run(code)
    assert out.startswith("False\nmod around upstream [0, 1, 2]")
    assert [line["state"] for line in told] == ["pending", "applied"]
    assert {line["mod"] for line in told} == {"toy-mod"}
    assert told[1]["target"] == "vllm.toy"
    assert told[0]["pid"] == told[1]["pid"]
    assert told[0]["role"] == "launcher"


def test_loading_the_plug_in_again_changes_nothing(place: Place) -> None:
    out, told, _ = place.run("load(); load()\n" + USE + "import importlib; load(); print(t.answer())")
    assert out.startswith("mod around upstream [0, 1, 2]\nmod around upstream\n")
    assert [line["state"] for line in told] == ["pending", "applied"]


def test_a_target_that_was_imported_before_is_changed_where_it_was_imported_to(place: Place) -> None:
    (place.folder / "vllm" / "user.py").write_text("from vllm.toy import answer\n")
    out, _, _ = place.run("import vllm.user\nload()\nprint(vllm.user.answer())")
    assert out.startswith("mod around upstream")


def test_the_module_keeps_its_own_loader(place: Place) -> None:
    out, _, _ = place.run(USE + "print(type(t.__loader__).__name__, t.__spec__.loader is t.__loader__)")
    assert "SourceFileLoader True" in out


def test_a_changed_source_is_refused_before_anything_runs(place: Place) -> None:
    source = place.folder / "vllm" / "toy.py"
    source.write_text(source.read_text().replace("sorted(weights)", "list(weights)"))
    out, told, status = place.run(USE)
    assert status == 1
    assert "ModRefusedError: sparkd mod toy-mod cannot be applied: toy.Model.load has a text that it" in out
    assert [line["state"] for line in told] == ["refused"]


def test_a_mod_that_is_not_required_may_be_refused(place: Place) -> None:
    source = place.folder / "vllm" / "toy.py"
    source.write_text(source.read_text().replace("sorted(weights)", "list(weights)"))
    out, told, status = place.run(USE, required=False)
    assert (status, out.splitlines()[0]) == (0, "upstream [2, 1]")
    assert [line["state"] for line in told] == ["refused"]


def test_an_unknown_source_may_be_dared(place: Place) -> None:
    source = place.folder / "vllm" / "toy.py"
    source.write_text(source.read_text().replace("sorted(weights)", "list(weights)"))
    out, told, _ = place.run(USE, unknown="try")
    assert out.startswith("mod around upstream [2, 1, 0]")
    assert told[-1]["state"] == "applied"
    assert "does not know" in told[-1]["reason"]


def test_a_module_that_does_not_exist_cannot_be_dared(place: Place) -> None:
    (place.folder / "vllm" / "toy.py").rename(place.folder / "vllm" / "moved.py")
    out, _, status = place.run("load()", unknown="try")
    assert status == 1
    assert "this vLLM has no module vllm.toy" in out


def test_what_upstream_fixed_is_left_alone(place: Place) -> None:
    mod = place.folder / "plugin" / "sparkd_mods" / "toy_mod.py"
    mod.write_text(mod.read_text().replace("NEEDED}", "FIXED}"))
    out, told, _ = place.run(USE)
    assert out.startswith("upstream [1, 2]")
    assert [line["state"] for line in told] == ["not needed"]


def test_a_mod_that_fails_is_refused_and_says_why(place: Place) -> None:
    place.mod(body='patch.wrap(module, "Model.gone", None)')
    out, told, status = place.run(USE)
    assert status == 1
    assert "cannot be applied: AttributeError" in out
    assert told[-1]["state"] == "refused"


def test_a_mod_that_does_not_exist_names_those_that_do(place: Place) -> None:
    done = place.python(
        "-c", "from sparkd_mods._framework.plugin import register; register()", mods=[{"name": "nope"}]
    )
    assert done.returncode == 1
    assert "there is no mod nope; there are: autoround-mixed, mimo-config," in done.stderr


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("1.0.0", "applied"),
        ("1.99.post1+cu130", "applied"),
        ("2.0", "refused"),
        ("0.9+cpu", "refused"),
        ("2.1.dev7+gabc", "applied"),
        ("2.0rc1", "applied"),
    ],
)
def test_version_ranges_decide_for_releases_only(place: Place, version: str, state: str) -> None:
    place.version(version)
    _, told, _ = place.run(USE)
    assert told[-1]["state"] == state
    if version.startswith("2"):
        assert f"made for vLLM >=1,<2, this is {version}" in told[-1]["reason"]


def test_traits_that_a_mod_changes_get_a_cache_of_their_own(place: Place) -> None:
    show = "load()\nimport os\nprint(os.environ.get('VLLM_CACHE_ROOT'))"
    assert place.run(show)[0].startswith("None\n")
    place.mod(traits=True)
    first = place.run(show)[0].splitlines()[0]
    assert first.startswith(f"{place.folder}/.cache/vllm/sparkd-mods/")
    assert place.run(show)[0].splitlines()[0] == first
    place.mod(body="pass", traits=True)
    assert place.run(show)[0].splitlines()[0] != first


def test_sigusr2_shows_every_thread_s_stack_and_kills_nothing(place: Place) -> None:
    argv, env = place.command(
        "-c",
        "from sparkd_mods._framework.plugin import register; register()\n"
        "print('up', flush=True)\nimport sys\ndef waits_here(): sys.stdin.readline()\nwaits_here()\n",
    )
    with subprocess.Popen(
        argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)  # until it waits: earlier the stack shows another line
        process.send_signal(signal.SIGUSR2)
        time.sleep(0.2)
        _, errors = process.communicate("\n", timeout=30)
    assert process.returncode == 0
    assert "in waits_here" in errors


def test_check_and_fingerprint_look_without_importing(place: Place) -> None:
    (place.folder / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")

    def ask(verb: Any) -> dict[str, Any]:
        environ, folder = {"PYTHONPATH": str(place.folder)}, place.folder / "plugin"
        return ask_mods(sys.executable, verb, ["toy-mod"], environ=environ, folder=folder)

    assert ask("check") == {
        "vllm": "1.5",
        "mods": [{"name": "toy-mod", "verdict": "needed", "reason": ""}],
    }
    source = place.folder / "vllm" / "toy.py"
    source.write_text(source.read_text() + "\n\ndef answer():\n    return 'redefined'\n")
    (checked,) = ask("check")["mods"]
    assert checked["verdict"] == "unknown"
    printed = ask("fingerprint")["mods"][0]["targets"]["vllm.toy"]
    assert printed["answer"]["known"] is None
    assert printed["Model.load"]["known"] == "needed"
    assert printed["answer"]["fingerprint"] in checked["reason"]
