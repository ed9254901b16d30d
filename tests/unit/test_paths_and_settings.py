from pathlib import Path

import pytest

from sparkd.errors import UsageError
from sparkd.paths import find_paths
from sparkd.settings import Settings, read_settings


def test_root_has_the_machines_folders_and_a_local_set_of_its_own() -> None:
    paths = find_paths({"HOME": "/root", "XDG_CONFIG_HOME": "/x"}, uid=0)
    assert paths.config == (Path("/etc/sparkd"),)
    assert paths.state == Path("/var/lib/sparkd")
    assert paths.local == Path("/root/.local/state/sparkd/local")


def test_a_user_has_own_folders_laid_over_the_machines() -> None:
    paths = find_paths({"HOME": "/home/u", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/run/user/5"}, uid=5)
    assert paths.config == (Path("/etc/sparkd"), Path("/home/u/.config/sparkd"))
    assert paths.state == Path("/s/sparkd")
    assert paths.local == Path("/s/sparkd/local")
    assert paths.runtime == (Path("/run/user/5/sparkd"), Path("/tmp/sparkd-5"))


def test_a_relative_xdg_value_counts_as_unset() -> None:
    env = {"HOME": "/home/u", "XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run"}
    paths = find_paths(env, uid=5)
    assert paths.local == Path("/home/u/.local/state/sparkd/local")
    assert paths.runtime == (Path("/tmp/sparkd-5"),)


@pytest.mark.parametrize("uid", [0, 5])
def test_sparkd_variables_override(uid: int) -> None:
    paths = find_paths({"HOME": "/h", "SPARKD_CONFIG_DIR": "/c", "SPARKD_STATE_DIR": "/d"}, uid=uid)
    assert (paths.config, paths.state) == ((Path("/c"),), Path("/d"))


def test_later_files_and_folders_win(tmp_path: Path) -> None:
    machine, user = tmp_path / "etc", tmp_path / "user"
    for folder in (machine, user):
        folder.mkdir()
    (machine / "a.toml").write_text('[cli]\ncoordinator = "http://a"\ntoken_file = "token"\n')
    (machine / "b.toml").write_text('[cli]\ncoordinator = "http://b"\n')
    assert read_settings([machine]) == Settings("http://b", str(machine / "token"), str(machine / "b.toml"))
    (user / "sparkd.toml").write_text('[cli]\ncoordinator = "http://c"\n')
    assert read_settings([machine, user]).coordinator == "http://c"


def test_tables_of_others_are_none_of_our_business(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[coordinator]\nurls = ["http://x"]\ntoken_file = "y"\n')
    assert read_settings([tmp_path, tmp_path / "absent"]) == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[cli]\ncordinator = "x"\n', "cli.cordinator: unknown key; did you mean coordinator?"),
        ("[cli]\ncoordinator = 7070\n", "cli.coordinator: must be a text"),
        ('cli = "x"\n', "cli: must be a table"),
        ("[cli\n", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sparkd.toml").write_text(text)
    with pytest.raises(UsageError, match=r"sparkd\.toml") as error:
        read_settings([tmp_path])
    assert message in str(error.value)


def test_the_sites_image_stands_beside_an_agents_engines(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[engine.default]\npython = "/p"\n[engine.image]\npython = "/q"\n')
    assert read_settings([tmp_path]) == Settings()
    (tmp_path / "site.toml").write_text('[engine]\nimage = "vllm:1"\n')
    assert read_settings([tmp_path]).image == "vllm:1"
    (tmp_path / "site.toml").write_text("[engine]\nimage = 1\n")
    with pytest.raises(UsageError, match=r"site\.toml: engine\.image"):
        read_settings([tmp_path])
