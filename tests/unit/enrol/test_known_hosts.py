import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from sparkd.enrol.known_hosts import fingerprint, host_label, judge, read_known_hosts, remember

KEY = b"\x00\x00\x00\x0bssh-ed25519 one"
OTHER = b"\x00\x00\x00\x0bssh-ed25519 two"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def known(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return file


def judged(tmp_path: Path, text: str, label: str = "spark-1", key: bytes = KEY) -> tuple[str, int | None]:
    found = judge(read_known_hosts([known(tmp_path, text)]), label, "ssh-ed25519", key)
    return found.trust, found.entry.line if found.entry else None


@pytest.mark.parametrize(
    ("text", "label", "expected"),
    [
        ("", "spark-1", ("unknown", None)),
        (f"spark-1 ssh-ed25519 {b64(KEY)}", "spark-1", ("known", 1)),
        (f"# one\n\nSPARK-1,10.0.0.1 ssh-ed25519 {b64(KEY)} mine", "10.0.0.1", ("known", 3)),
        (f"spark-2 ssh-ed25519 {b64(KEY)}", "spark-1", ("unknown", None)),
        (f"spark-? ssh-ed25519 {b64(KEY)}", "spark-1", ("known", 1)),
        (f"*,!spark-1 ssh-ed25519 {b64(KEY)}", "spark-1", ("unknown", None)),
        (f"[spark-1]:2222 ssh-ed25519 {b64(KEY)}", "[spark-1]:2222", ("known", 1)),
        (f"[spark-1]:2222 ssh-ed25519 {b64(KEY)}", "spark-1", ("unknown", None)),
        (f"spark-1 ssh-ed25519 {b64(KEY)}", "[spark-1]:2222", ("unknown", None)),
        (f"spark-1 ssh-ed25519 {b64(OTHER)}", "spark-1", ("changed", 1)),
        # A second line that holds the key makes the host known, as for ssh.
        (f"spark-1 ssh-ed25519 {b64(OTHER)}\nspark-1 ssh-ed25519 {b64(KEY)}", "spark-1", ("known", 2)),
        # The line of the same kind is the one to show.
        (f"spark-1 ssh-rsa {b64(OTHER)}\nspark-1 ssh-ed25519 {b64(OTHER)}", "spark-1", ("changed", 2)),
        (f"spark-1 ssh-rsa {b64(OTHER)}", "spark-1", ("changed", 1)),
        (f"spark-1 ssh-ed25519 {b64(KEY)}\n@revoked * ssh-ed25519 {b64(KEY)}", "spark-1", ("revoked", 2)),
        (f"@revoked * ssh-ed25519 {b64(OTHER)}", "spark-1", ("unknown", None)),
        (f"@cert-authority * ssh-ed25519 {b64(KEY)}", "spark-1", ("unknown", None)),
        ("spark-1 ssh-ed25519 not!base64", "spark-1", ("unknown", None)),
        ("spark-1 ssh-ed25519", "spark-1", ("unknown", None)),
        ("|1|broken ssh-ed25519 AAAA", "spark-1", ("unknown", None)),
    ],
)
def test_what_a_file_says_of_a_host(
    tmp_path: Path, text: str, label: str, expected: tuple[str, int | None]
) -> None:
    assert judged(tmp_path, text, label) == expected


def test_hashed_names_are_recognised(tmp_path: Path) -> None:
    salt = bytes(range(20))
    digest = hmac.new(salt, b"spark-1", hashlib.sha1).digest()
    line = f"|1|{b64(salt)}|{b64(digest)} ssh-ed25519 {b64(KEY)}"
    assert judged(tmp_path, line) == ("known", 1)
    assert judged(tmp_path, line, "spark-2") == ("unknown", None)


def test_a_file_that_is_absent_or_binary_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    assert read_known_hosts([tmp_path / "absent", tmp_path / "noise"]) == ()


def test_a_new_line_is_appended_to_a_file_without_a_final_newline(tmp_path: Path) -> None:
    file = known(tmp_path, f"spark-2 ssh-ed25519 {b64(OTHER)}")
    remember(file, host_label("spark-1", 2222), "ssh-ed25519", KEY)
    assert judge(read_known_hosts([file]), "[spark-1]:2222", "ssh-ed25519", KEY).trust == "known"
    assert judge(read_known_hosts([file]), "spark-2", "ssh-ed25519", OTHER).trust == "known"


def test_a_new_file_is_its_users_alone(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    remember(file, "spark-1", "ssh-ed25519", KEY)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_fingerprint_is_what_ssh_shows() -> None:
    # `ssh-keygen -lf` of this public key, as OpenSSH 9.2 prints it.
    key = base64.b64decode("AAAAC3NzaC1lZDI1NTE5AAAAIIw5hVtkpZ9ujZJbbLPE2CeFZFmzT0B9Sy3vHbLaC2aU")
    assert fingerprint(key) == FINGERPRINT


FINGERPRINT = "SHA256:Tq0jnbKSVnm6moOPlHFhT4DdJ7GvCMYWge1hn4L3iiM"
