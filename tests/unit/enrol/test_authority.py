from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from sparkd.enrol.authority import Authority, load_authority, make_authority
from sparkd.errors import NotFound, StateCorrupt, UsageError

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, NOW)


def request_of(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, uri: str = "sparkd://node/evil"
) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "whatever")])
    )
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False
    )
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM).decode()


def uris(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def test_it_is_made_once(tmp_path: Path, authority: Authority) -> None:
    assert make_authority(tmp_path, NOW + DAY).pem == authority.pem == load_authority(tmp_path).pem
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_nodes_certificate_says_what_the_coordinator_says(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = authority.sign_node(request_of(key), "a1", "spark-a", NOW)
    certificate = x509.load_pem_x509_certificate(pem.encode())
    certificate.verify_directly_issued_by(authority.certificate)
    assert certificate.public_key() == key.public_key()
    assert uris(certificate) == ["sparkd://node/a1"]
    assert certificate.not_valid_before_utc.timestamp() == NOW - DAY
    assert certificate.not_valid_after_utc.timestamp() == NOW + 365 * DAY
    use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_the_coordinators_certificate(authority: Authority) -> None:
    secret, pem = authority.make_coordinator(NOW)
    certificate = x509.load_pem_x509_certificate(pem.encode())
    certificate.verify_directly_issued_by(authority.certificate)
    key = serialization.load_pem_private_key(secret.encode(), None)
    assert certificate.public_key() == key.public_key()
    assert uris(certificate) == ["sparkd://coordinator"]


def test_a_name_that_x509_has_no_room_for(authority: Authority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert authority.sign_node(request_of(key), "a1", "n" * 200, NOW)


@pytest.mark.parametrize(
    "csr",
    [
        "",
        "no request",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "\x00é",
    ],
)
def test_what_is_no_request(authority: Authority, csr: str) -> None:
    with pytest.raises(UsageError, match="signing request"):
        authority.sign_node(csr, "a1", "a", NOW)


def test_only_p256_keys(authority: Authority) -> None:
    for key in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(UsageError, match="P-256"):
            authority.sign_node(request_of(key), "a1", "a", NOW)


def test_a_request_must_be_signed_with_its_own_key(authority: Authority) -> None:
    der = x509.load_pem_x509_csr(request_of(ec.generate_private_key(ec.SECP256R1())).encode())
    raw = bytearray(der.public_bytes(serialization.Encoding.DER))
    raw[-5] ^= 1
    forged = x509.load_der_x509_csr(bytes(raw)).public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(UsageError, match="own key"):
        authority.sign_node(forged, "a1", "a", NOW)


def test_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no certificate authority"):
        load_authority(tmp_path)


def test_a_key_that_others_may_read(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.key").chmod(0o640)
    with pytest.raises(StateCorrupt, match="chmod 600"):
        load_authority(tmp_path)


def test_files_of_two_authorities(tmp_path: Path, authority: Authority) -> None:
    make_authority(tmp_path / "other", NOW)
    (tmp_path / "other" / "ca.crt").replace(tmp_path / "ca.crt")
    with pytest.raises(StateCorrupt, match="belong together"):
        load_authority(tmp_path)


def test_a_crash_between_the_two_files_leaves_no_half_authority(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.key").unlink()
    assert make_authority(tmp_path, NOW).pem == load_authority(tmp_path).pem
