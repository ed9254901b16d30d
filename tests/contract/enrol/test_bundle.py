"""What is copied to a node runs there: nothing of ours is missing, and nothing of the checkout is used."""

import importlib.metadata
import io
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from sparkd.enrol.bundle import Bundle, agent_bundle, build_bundle, own_code
from sparkd.enrol.program import program_files, visible_python
from sparkd.errors import EnrolmentFailed

IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.path[:0] = json.loads(sys.argv[1])
names = []
for name in sys.argv[2:]:
    package = importlib.import_module(name)
    names.append(name)
    for info in pkgutil.walk_packages(package.__path__, name + "."):
        if not info.name.endswith("__main__"):
            importlib.import_module(info.name)
            names.append(info.name)
print(json.dumps([names, [getattr(sys.modules[name], "__file__", None) for name in names]]))
"""


def import_all(lib: Path, *packages: str, besides: tuple[str, ...] = ()) -> list[str]:
    """Every module of the packages, by a Python that knows `lib` and `besides` only."""
    words = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, json.dumps([str(lib), *besides]), *packages]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    names, files = json.loads(done.stdout)
    assert all(Path(file).is_relative_to(lib) for file in files if file)
    return list(names)


def unpacked(bundle: Bundle, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(bundle.blob)) as archive:
        archive.extractall(folder)
    return folder


def test_every_module_of_the_agent_finds_what_it_imports(tmp_path: Path) -> None:
    lib = unpacked(agent_bundle((), "/usr/bin/python3"), tmp_path) / "lib"
    names = import_all(lib, "sparkd_agent", besides=(sysconfig.get_paths()["purelib"],))
    assert "sparkd_agent.shim" in names
    assert len(names) > 30
    # And what a rank finds on its PYTHONPATH.
    plugin = lib / "sparkd/engine/plugin_folder"
    assert list(plugin.glob("sparkd_mods-*.dist-info/entry_points.txt"))
    assert {entry.name.partition("-")[0] for entry in plugin.iterdir()} == {"sparkd_mods"}


def test_every_module_of_the_coordinator_finds_what_it_imports(tmp_path: Path) -> None:
    for name, body in program_files().items():
        place = tmp_path / "lib" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
    names = import_all(tmp_path / "lib", "sparkd.cli", "sparkd.coordinator", "sparkd.enrol", "sparkd.profile")
    assert "sparkd.coordinator.serve" in names
    run = "import sys; sys.path.insert(0, sys.argv[1]); from sparkd.cli import main; main(sys.argv[2:])"
    words = [sys.executable, "-I", "-S", "-c", run, str(tmp_path / "lib"), "profiles", "list"]
    assert "tiny" in subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def test_all_that_it_needs_is_copied_and_not_what_developers_need() -> None:
    tops = {name.partition("/")[0] for name in program_files()}
    assert {"fastapi", "pydantic", "uvicorn", "cryptography", "paramiko", "sparkd", "sparkd_agent"} <= tops
    assert not tops & {"pytest", "mypy", "hypothesis", "ruff", "vllm", "torch", "pip"}
    assert not [name for name in program_files() if name.endswith((".pyc", ".pth")) or ".." in name]


def test_the_same_content_has_the_same_name_and_any_other_another(tmp_path: Path) -> None:
    one = build_bundle({"a.py": b"1"}, (), "/usr/bin/python3", "x", "a")
    assert build_bundle({"a.py": b"1"}, (), "/usr/bin/python3", "x", "a") == one
    others = [
        build_bundle({"a.py": b"2"}, (), "/usr/bin/python3", "x", "a"),
        build_bundle({"b.py": b"1"}, (), "/usr/bin/python3", "x", "a"),
        build_bundle({"a.py": b"1"}, (), "/usr/bin/python3.13", "x", "a"),
    ]
    assert len({bundle.folder for bundle in (one, *others)}) == 4
    assert one.folder.startswith(importlib.metadata.version("sparkd") + "-")


@pytest.mark.parametrize("python", ["python3", "/opt/my python", "/usr/bin/python3\nevil", ""])
def test_an_interpreter_that_cannot_stand_in_a_first_line_is_refused(python: str) -> None:
    with pytest.raises(EnrolmentFailed):
        build_bundle({}, (), python, "x", "a")


def test_no_secret_and_no_foreign_code_is_in_the_agents_copy() -> None:
    tops = {name.partition("/")[0] for name in own_code()}
    assert tops == {"sparkd", "sparkd_agent"}
    assert not [
        name for name in own_code() if "/coordinator/" in name or "/cli/" in name or "/enrol/" in name
    ]


def test_the_coordinators_python_is_one_that_everybody_may_run(tmp_path: Path) -> None:
    home = tmp_path / "python3"
    home.symlink_to(os.path.realpath(sys.executable))
    version = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    assert visible_python("/bin/sh", ("/nowhere/",)) == os.path.realpath("/bin/sh")
    if Path(version).exists():
        assert visible_python(str(home), (os.path.realpath(sys.executable),)) == version
    with pytest.raises(EnrolmentFailed, match="uv tool install --python"):
        visible_python(str(home), ("/",))
