"""The wheel as a user gets it: built, installed into an environment of its own, asked for what it carries."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=100)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


class Installed:
    """A fresh environment with the wheel alone; dependencies come from the one that the tests run in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
        words = ["--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps", "--no-index"]
        subprocess.run([sys.executable, "-m", "pip", *words, str(wheel)], check=True, timeout=100)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARKD_", "XDG_"))}
        # No .pth file is read there, so the editable install of this repository stays out of it.
        self.env = kept | {"PYTHONPATH": sysconfig.get_paths()["purelib"], "HOME": str(folder)}

    def run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [self.folder / "bin" / program, *words],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def test_it_holds_our_packages_and_nothing_else(names: set[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sparkd", "sparkd_agent"}
    sources = {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in (
            ("sparkd", ROOT / "sparkd"),
            ("sparkd_agent", ROOT / "agents" / "sparkd_agent"),
        )
        for path in folder.rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert sources <= names


def test_profiles_and_their_schema_travel_along(names: set[str]) -> None:
    carried = {f"sparkd/profile/builtin/{path.name}" for path in (ROOT / "profiles").iterdir()}
    assert {name for name in names if "/builtin/" in name} == carried
    assert "sparkd/profile/builtin/schema.json" in carried


def test_unit_files_travel_along_and_are_found(names: set[str], installed: "Installed") -> None:
    sources = {path.name: path.read_text() for path in (ROOT / "agents" / "systemd").iterdir()}
    assert {name for name in names if name.startswith("sparkd/systemd/")} == {
        f"sparkd/systemd/{name}" for name in sources
    }
    look = (
        "import sys; from sparkd.unit_files import unit_file; "
        "print(unit_file(sys.argv[1]).read_text(), end='')"
    )
    for name, text in sources.items():
        assert installed.run("python", "-c", look, name) == text


def test_the_plug_in_for_vllm_travels_in_a_folder_of_its_own(names: set[str]) -> None:
    place = "sparkd/engine/plugin_folder"
    inside = {name.removeprefix(f"{place}/") for name in names if name.startswith(place)}
    assert {name.partition("/")[0] for name in inside} == {"sparkd_mods", "sparkd_mods-0.1.0.dist-info"}
    agents = ROOT / "agents"
    assert {str(path.relative_to(agents)) for path in (agents / "sparkd_mods").rglob("*.py")} <= inside
    assert "sparkd_mods-0.1.0.dist-info/entry_points.txt" in inside


def test_its_metadata_names_what_it_needs_and_what_is_extra(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        named = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        (name,) = (name for name in named if name.count("/") == 1)
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"vllm", "enrol", "dev"}
    plain = [text for text in metadata.get_all("Requires-Dist") or () if "extra ==" not in text]
    assert not [text for text in plain if text.startswith(("torch", "vllm", "paramiko", "cryptography"))]


def test_the_installed_programs_are_the_wheels(installed: Installed) -> None:
    where = (
        "import sparkd, sparkd_agent.runtime.handover as h; print(sparkd.__file__, *h.SHIM.glob('*main*'))"
    )
    module, shim = installed.run("python", "-c", where).split()
    assert Path(module).is_relative_to(installed.folder)
    assert Path(shim).is_relative_to(installed.folder)
    for program in ("sparkd", "sparkd-agent"):
        assert program in installed.run(program, "--help")
    assert "sparkd-agent" in installed.run("python", "-m", "sparkd_agent", "--help")


def test_mods_are_found_and_the_entry_point_too(installed: Installed) -> None:
    mods = json.loads(installed.run("sparkd", "mods", "list", "-o", "json"))
    assert "mimo-fused-qkv" in [mod["name"] for mod in mods]
    found = (
        "import importlib.metadata, sys, sparkd.engine.plugin as plugin;"
        "sys.path.insert(0, str(plugin.plugin_folder()));"
        "points = importlib.metadata.entry_points(group='vllm.general_plugins');"
        "print([point.load().__module__ for point in points])"
    )
    assert "sparkd_mods._framework.plugin" in installed.run("python", "-c", found)


def test_built_in_profiles_are_found(installed: Installed) -> None:
    assert "tiny" in installed.run("sparkd", "profiles", "list")
    schema = json.loads(installed.run("sparkd", "profiles", "schema"))
    assert schema == json.loads((ROOT / "profiles" / "schema.json").read_text())
    plan = json.loads(installed.run("sparkd", "plan", "tiny", "--local", "2", "-o", "json"))
    assert len(plan["ranks"]) == 2
