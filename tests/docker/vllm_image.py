"""An image of the lab's root file system that knows of a vLLM: its files, 3 GB, are mounted."""

from collections.abc import Mapping
from pathlib import Path

from tests.docker.conftest import SITE
from tests.docker.engine import DockerEngine
from tests.lab.image import image as lab_root

NO_FILES: Mapping[str, str] = {}


def import_vllm(engine: DockerEngine, name: str, venv: Path, files: Mapping[str, str] = NO_FILES) -> Path:
    """`files` lie beside its packages. Gives the folder of the packages: one of the roots to be mounted."""
    (packages,) = (venv / "lib").resolve().glob("python3*/site-packages")
    (metadata,) = packages.glob("vllm-*.dist-info")
    inside = {f"{SITE}/{file}": text for file, text in files.items()}
    inside[f"{SITE}/{metadata.name}/METADATA"] = (metadata / "METADATA").read_text()
    engine.import_folder(name, lab_root(), inside, f"ENV PYTHONPATH={packages}")
    return packages
