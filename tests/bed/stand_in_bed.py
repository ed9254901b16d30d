"""A local set of stand-ins for vLLM: as processes, or in containers of an engine that the test stands on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkd.local import Programs
from tests.bed.containers import BED, IMAGE
from tests.bed.local_set import Bed, local_bed
from tests.bed.stand_in import make_stand_in, remove_segments


@contextmanager
def stand_in_bed(
    folder: Path, *, docker: str | None = None, programs: Programs | None = None
) -> Iterator[Bed]:
    """Two nodes. `configure` takes `folder / "engine"`; `docker` is an engine's socket."""
    models, stand_in = folder / "models", folder / "engine"
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "config.json").write_text("{}")
    python = make_stand_in(stand_in)
    if docker is None:
        try:
            with local_bed(folder, python, models, programs=programs) as bed:
                yield bed
        finally:
            remove_segments(stand_in)
        return
    # The image's vLLM is this repository's, and looks into this very folder.
    env = {"DOCKER_HOST": f"unix://{docker}", "SPARKD_MODELS": f"{models}:{BED}:{stand_in}"}
    sets = (f"env.STAND_IN_FOLDER={stand_in}",)
    with local_bed(folder, python, models, programs=programs, more_env=env, image=IMAGE, sets=sets) as bed:
        yield bed
