"""Private keys from files. paramiko 5.1 reads no OpenSSH file of an ECDSA key without a passphrase, and wants
the kind named: cryptography reads them all, and paramiko gets the form that it reads for certain.
"""

import io
from enum import Enum
from pathlib import Path
from typing import Final, Literal

import paramiko
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)


class _Locked(Enum):
    LOCKED = 1


LOCKED: Final = _Locked.LOCKED


def read_key(file: Path, passphrase: str | None = None) -> paramiko.PKey | Literal[_Locked.LOCKED] | None:
    """The key in a file: LOCKED while its passphrase is missing or wrong, None for a file that holds no key
    that we can use (one on a security token, DSA).
    """
    try:
        data = file.read_bytes()
    except OSError:
        return None
    load = load_ssh_private_key if b"BEGIN OPENSSH" in data else load_pem_private_key
    try:
        key = load(data, passphrase.encode() if passphrase else None)
    except TypeError:
        return LOCKED
    except ValueError:
        return LOCKED if passphrase else None
    except Exception:  # noqa: BLE001  kinds of keys that cryptography does not know, by its own exceptions
        return None
    traditional = PrivateFormat.TraditionalOpenSSL
    match key:
        case ed25519.Ed25519PrivateKey():
            text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            return paramiko.Ed25519Key.from_private_key(io.StringIO(text.decode()))
        case ec.EllipticCurvePrivateKey():
            text = key.private_bytes(Encoding.PEM, traditional, NoEncryption())
            return paramiko.ECDSAKey.from_private_key(io.StringIO(text.decode()))
        case rsa.RSAPrivateKey():
            text = key.private_bytes(Encoding.PEM, traditional, NoEncryption())
            return paramiko.RSAKey.from_private_key(io.StringIO(text.decode()))
        case _:
            return None
