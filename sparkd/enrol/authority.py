"""The certificate authority of one holder. Its key never leaves its folder, a node's key never its node.

    ca.key   0600, P-256    ca.crt   for 20 years    holder.json   enrolled and revoked nodes (roster.py)

Identity is one URI in the subject alternative name (`records/names.py`); names and addresses are not looked
at, so a coordinator may move and a node be renamed. Certificates are back-dated by a day: a clock that is a
little late does no harm.
"""

import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sparkd.enrol.roster import AUTHORITY_KEY, has_authority, read_roster
from sparkd.errors import NotFound, StateCorrupt, UsageError
from sparkd.private_file import write_private
from sparkd.records.defaults import DEFAULTS
from sparkd.records.names import COORDINATOR_URI, NODE_ID, node_uri

KEY_FILE = AUTHORITY_KEY
CERTIFICATE_FILE = "ca.crt"


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates. `now` is wall clock, seconds since 1970, everywhere."""

    _key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        """The CA's own certificate: what both sides trust, and nothing else."""
        return _pem(self.certificate)

    def sign_node(self, csr: str, node_id: str, name: str, now: float) -> str:
        """A node's certificate, as PEM, for the public key of a signing request (PEM).

        Of the request only the key counts: id and name are the coordinator's word. Raises UsageError for a
        request that is none, whose signature is wrong or whose key is not P-256, and for an id that is none.
        """
        if not NODE_ID.fullmatch(node_id):
            raise UsageError(f"{node_id!r} is no node id")
        return self._sign(_key_of(csr), name, node_uri(node_id), ExtendedKeyUsageOID.CLIENT_AUTH, now)

    def make_coordinator(self, now: float) -> tuple[str, str]:
        """A new key and its certificate for the coordinator, both PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        server = ExtendedKeyUsageOID.SERVER_AUTH
        return _private_pem(key), self._sign(
            key.public_key(), "sparkd coordinator", COORDINATOR_URI, server, now
        )

    def _sign(
        self, key: ec.EllipticCurvePublicKey, name: str, uri: str, use: x509.ObjectIdentifier, now: float
    ) -> str:
        builder = _dated(name, key, now, DEFAULTS.certificate_life_s).issuer_name(self.certificate.subject)
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return _pem(
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )


def make_authority(folder: Path, now: float) -> Authority:
    """The folder's authority, created (with the holder, if there is none) where there is none. Idempotent.

    Raises StateCorrupt as `load_authority`.
    """
    if not has_authority(folder):
        holder = read_roster(folder).holder
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"sparkd {holder}"
        certificate = (
            _dated(name, key.public_key(), now, DEFAULTS.authority_life_s)
            .issuer_name(_name(name))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        # The key last: where it is, the certificate is too.
        write_private(folder / CERTIFICATE_FILE, _pem(certificate))
        write_private(folder / KEY_FILE, _private_pem(key))
    return load_authority(folder)


def load_authority(folder: Path) -> Authority:
    """Raises NotFound where there is no authority, StateCorrupt when its files cannot be used, do not belong
    together, or others may read the key.
    """
    file = folder / KEY_FILE
    try:
        secret = file.read_bytes()
        mode = file.stat().st_mode
        public = (folder / CERTIFICATE_FILE).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no certificate authority in {folder}: {error.filename} is missing") from error
    if stat.S_IMODE(mode) & 0o077:
        raise StateCorrupt(f"the key {file} may be read by others: chmod 600 {os.fspath(file)}")
    try:
        key = serialization.load_pem_private_key(secret, None)
        certificate = x509.load_pem_x509_certificate(public)
    except (ValueError, TypeError) as error:
        raise StateCorrupt(f"the certificate authority in {folder} cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise StateCorrupt(f"{KEY_FILE} and {CERTIFICATE_FILE} in {folder} do not belong together")
    return Authority(key, certificate)


def _key_of(csr: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key = request.public_key()
        honest = request.is_signature_valid
    except Exception as error:
        # What a stranger's bytes raise in there is no closed list.
        raise UsageError(f"the certificate signing request cannot be read: {error}") from error
    if not honest:
        raise UsageError("the certificate signing request is not signed with its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UsageError("the certificate signing request holds no P-256 key")
    return key


def _dated(name: str, key: ec.EllipticCurvePublicKey, now: float, life_s: float) -> x509.CertificateBuilder:
    begin = datetime.fromtimestamp(int(now), UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - timedelta(seconds=DEFAULTS.certificate_backdate_s))
        .not_valid_after(begin + timedelta(seconds=life_s))
    )


def _name(text: str) -> x509.Name:
    """For people only. X.509 allows 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64] or "sparkd")])


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
