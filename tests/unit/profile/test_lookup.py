from pathlib import Path

import pytest
import yaml

from sparkd.errors import NotFound
from sparkd.profile.load import load_source
from sparkd.profile.lookup import all_profiles, builtin_profiles, find_profile, load_profile, profile_folders
from sparkd.profile.yaml_tree import read_yaml

TINY = "schema: sparkd/v1\nname: tiny\nmodel: {path: mine}\n"


def test_a_name_is_found_in_the_users_folder_before_the_built_in_ones(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert load_profile("tiny", environ).profile.model.path == "tiny"
    (tmp_path / "sparkd" / "profiles").mkdir(parents=True)
    (tmp_path / "sparkd" / "profiles" / "tiny.yaml").write_text(TINY)
    assert load_profile("tiny", environ).profile.model.path == "mine"
    assert all_profiles(profile_folders(environ))["tiny"].parent == tmp_path / "sparkd" / "profiles"


def test_where_the_users_profiles_are() -> None:
    assert profile_folders({"HOME": "/h"})[0] == Path("/h/.config/sparkd/profiles")
    assert profile_folders({"HOME": "/h", "XDG_CONFIG_HOME": "x"})[0] == Path("/h/.config/sparkd/profiles")
    assert profile_folders({"HOME": "/h"})[1] == Path("/etc/sparkd/profiles")
    assert profile_folders({"SPARKD_CONFIG_DIR": "/c"}) == (Path("/c/profiles"), builtin_profiles())


def test_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.yaml").write_text(TINY)
    assert find_profile(f"{tmp_path}/p.yaml", ()) == tmp_path / "p.yaml"
    monkeypatch.chdir(tmp_path)
    assert find_profile("p.yaml", ()) == Path("p.yaml")
    with pytest.raises(NotFound, match=r"no profile file \./tiny"):
        find_profile("./tiny", (builtin_profiles(),))


def test_a_name_that_is_not_found_names_near_ones_and_the_places(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        find_profile("tyni", (tmp_path, builtin_profiles()))
    assert "did you mean tiny?" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_what_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_source(tmp_path)


@pytest.mark.parametrize("path", sorted(builtin_profiles().glob("*.yaml")), ids=lambda path: path.stem)
def test_every_built_in_profile_is_valid_and_named_like_its_file(path: Path) -> None:
    # The name is the deployment's too, which has no dots.
    assert load_source(path).name == path.stem.replace(".", "-")


def test_the_built_in_profiles_read_the_same_without_the_yaml_library_in_c() -> None:
    # Its own parser takes a question mark in a flow mapping for a key, where the library's does not.
    for path in builtin_profiles().glob("*.yaml"):
        slow = yaml.load(path.read_text(), yaml.SafeLoader)
        assert slow == read_yaml(path.read_text()).data, path
