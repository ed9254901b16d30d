"""Images of a Docker engine: which content a name stands for, and what is in it.

Nothing is pulled, and nothing runs but one short script of sparkd's own (`look.py`), once for each content:
without a network, without a GPU, on a file system that cannot be written.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from sparkd.engine.plugin import plugin_folder
from sparkd.errors import DockerRefused, DockerUnreachable, ImageUnusable
from sparkd.records.defaults import DEFAULTS, Defaults
from sparkd.records.image import ImageFacts, ImageReport
from sparkd_agent.config import ENGINE_MODULE, PRESENT, AgentConfig
from sparkd_agent.runtime.container import LABEL_FOLDER, Mount, mounted, with_entrypoint
from sparkd_agent.runtime.docker_api import DockerApi
from sparkd_agent.runtime.docker_trouble import NO_PYTHON, REFUSED, trouble_of
from sparkd_agent.versions import mods_fingerprint

LABEL_LOOK: Final = "sparkd.look"
PYTHONS: Final = ("python3", "python")
COMMAND: Final = (PYTHONS[0], *ENGINE_MODULE)
"""How vLLM is started in an image: by the python that its PATH finds first."""
_CONFIG: Final = ("Cmd", "Entrypoint", "Env", "User", "WorkingDir")
"""What of an image's configuration says how its content is run. Left out: dates, comments, who built it."""
_FACTS_FORMAT: Final = 2

_LOOK: Final = ("sparkd_mods", "_framework", "look.py")


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    id: str
    """The engine's own; two engines may have other ones for the same content."""
    identity: str
    entrypoint: tuple[str, ...]
    environment: dict[str, str]


def identity_of(inspected: Mapping[str, Any]) -> str:
    """Twelve hex digits over the layers' content and how it is run, whichever store or build made it."""
    config = inspected.get("Config") or {}
    same = {
        "layers": inspected["RootFS"].get("Layers") or [],
        "platform": [inspected.get("Os"), inspected.get("Architecture")],
        # Stores differ in whether what is empty is null, left out, or an empty text or list.
        "config": {key: config[key] for key in _CONFIG if config.get(key)},
    }
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]


class Images:
    """`allow`: `present`, or the names that may run. All calls block. `cache` keeps facts by identity."""

    def __init__(
        self,
        api: DockerApi,
        cache: Path,
        allow: str | tuple[str, ...] = PRESENT,
        limits: Defaults = DEFAULTS,
    ) -> None:
        self._api = api
        self._cache = cache
        self._allow = allow
        self._limits = limits

    def find(self, name: str) -> Image:
        """Raises ImageUnusable for one that is not there or not allowed, DockerUnreachable, DockerRefused."""
        if self._allow != PRESENT and name not in self._allow:
            raise ImageUnusable(
                f"image {name} is not among those that this node allows: docker.images in its agent.toml"
            )
        try:
            return _image(name, self._api.ask("GET", f"/images/{name}/json"))
        except DockerRefused as error:
            if error.status != 404:
                raise
            raise ImageUnusable(
                f"image {name} is not on this node: `docker pull` or `docker load` it there"
            ) from error

    def pinned(self, name: str, identity: str) -> Image:
        """The image of this very content, also if the name has moved on since. Raises as `find`."""
        image = self.find(name)
        if image.identity == identity:
            return image
        for row in self._api.ask("GET", "/images/json"):
            with contextlib.suppress(DockerRefused):  # removed meanwhile
                other = _image(name, self._api.ask("GET", f"/images/{row['Id']}/json"))
                if other.identity == identity:
                    return other
        raise ImageUnusable(
            f"image {name} is no longer what was planned ({identity}; now {image.identity}): start it "
            "again to take it as it is now"
        )

    def names(self) -> tuple[str, ...]:
        """Every name of an image that is here and allowed."""
        rows = self._api.ask("GET", "/images/json")
        names = {tag for row in rows for tag in row.get("RepoTags") or () if tag != "<none>:<none>"}
        return tuple(sorted(n for n in names if self._allow == PRESENT or n in self._allow))

    def report(self, name: str) -> ImageReport:
        """What a plan needs to know of it. Raises as `find`."""
        image = self.find(name)
        return ImageReport(
            name, image.identity, self.facts(image), with_entrypoint(image.entrypoint, COMMAND)
        )

    def facts(self, image: Image) -> ImageFacts:
        """From the cache, else by a container that lives for a moment. Raises as `find`."""
        mods = mods_fingerprint(plugin_folder())
        file = self._cache / f"{image.identity}.json"
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept = msgspec.json.decode(file.read_bytes(), type=_Kept)
            if (kept.format, kept.mods) == (_FACTS_FORMAT, mods):
                return kept.facts
        facts = self._look(image)
        with contextlib.suppress(OSError):  # it is looked at again then
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            half = file.with_suffix(".tmp")
            half.write_bytes(msgspec.json.encode(_Kept(_FACTS_FORMAT, facts, mods)))
            half.replace(file)
        return facts

    def tidy(self) -> None:
        """Remove what an earlier run of this agent looked with when it died. Never raises."""
        labels = json.dumps({"label": [LABEL_LOOK, f"{LABEL_FOLDER}={self._cache}"]})
        with contextlib.suppress(DockerRefused, DockerUnreachable):
            for row in self._api.ask("GET", "/containers/json", query={"all": "true", "filters": labels}):
                self._api.ask("DELETE", f"/containers/{row['Id']}", query={"force": "true", "v": "true"})

    def _look(self, image: Image) -> ImageFacts:
        why = ""
        for python in PYTHONS:
            try:
                said = self._run(image, [python, str(plugin_folder().joinpath(*_LOOK))])
                return msgspec.json.decode(said, type=ImageFacts)
            except DockerRefused as error:
                if trouble_of(error) not in (NO_PYTHON, REFUSED):
                    raise  # of the engine, not of the image
                why = str(error)
            except msgspec.MsgspecError:
                why = f"its {python} answered nothing that can be read"
        raise ImageUnusable(f"image {image.name} has no python that runs: {why}")

    def _run(self, image: Image, command: list[str]) -> bytes:
        """Its standard output. The container is removed, also if it does not end in time."""
        deadline = time.monotonic() + self._limits.image_facts_s
        body = {
            "Image": image.id,
            "Entrypoint": command,
            "Cmd": [],
            "Labels": {LABEL_LOOK: image.identity, LABEL_FOLDER: str(self._cache)},
            "AttachStdout": True,
            "AttachStderr": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "Mounts": [mounted(Mount(str(plugin_folder())))],
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "PidsLimit": 64,
                "LogConfig": {"Type": "none", "Config": {}},
            },
        }
        container = self._api.ask("POST", "/containers/create", body)["Id"]
        try:
            attached = self._api.attach(container)
            try:
                self._api.ask("POST", f"/containers/{container}/start")
                said = attached.all_of_it(deadline - time.monotonic())
            finally:
                attached.close()
            if said is None:
                raise DockerRefused(f"no answer within {self._limits.image_facts_s:.0f} s")
            if not said:
                last = attached.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                raise DockerRefused(last or "it said nothing")
            return said
        finally:
            self._api.ask("DELETE", f"/containers/{container}", query={"force": "true", "v": "true"})


def images_of(config: AgentConfig) -> Images:
    return Images(DockerApi(config.docker.socket), config.state / "images", config.docker.images)


class _Kept(msgspec.Struct):
    format: int
    facts: ImageFacts
    mods: str
    """Whose word on this content is in the facts."""


def _image(name: str, inspected: Mapping[str, Any]) -> Image:
    config = inspected.get("Config") or {}
    entrypoint = config.get("Entrypoint") or ()
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    return Image(
        name=name,
        id=str(inspected["Id"]),
        identity=identity_of(inspected),
        entrypoint=tuple(map(os.fspath, entrypoint)),
        environment={key: value for key, _, value in pairs},
    )
