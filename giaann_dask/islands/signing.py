"""Generate and read Ed25519 keys, sign bytes and verify signatures, with the package ``cryptography``.

Private keys are PKCS #8 and public keys SubjectPublicKeyInfo, both as PEM, as ``openssl genpkey -algorithm ed25519``
writes them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, StoreExistsError
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import local_path
from giaann_dask.storage import read_limited, require_local, writing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSPHRASE = "GIAANN_ISLAND_PASSPHRASE"
"""Environment variable with the passphrase of private keys."""
SIGNATURE_BYTES = 64
_KEY_BYTES = 32
# Bytes of a file with a key at most.
_MOST_OF_KEY = 1 << 16
_REMEDY = "make a pair with giaann-dask island key, or with openssl genpkey -algorithm ed25519"


def generate_key(path: Path) -> str:
    """Generate a pair of keys, and return the public one in hexadecimal digits.

    Parameters
    ----------
    path : Path
        File of the private key, readable by its owner alone, encrypted with the passphrase of the environment variable
        `PASSPHRASE` where there is one. The public key is written beside it, with the suffix ``.pub``.

    Raises
    ------
    StoreExistsError
        If one of the files exists.
    OptionError
        If the path names no file.
    MissingDependencyError
        If ``cryptography`` is not installed.
    """
    path = local_path(path)
    if not path.name:
        raise OptionError(f"the path {str(path)!r} of a key", "the path of a new file", "name a file")
    serialization = _serialization()
    key = _ed25519().Ed25519PrivateKey.generate()
    secret = _passphrase()
    encryption = serialization.NoEncryption() if secret is None else serialization.BestAvailableEncryption(secret)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    files = ((path, private, 0o600), (public_path(path), public, 0o644))
    for file, _, _ in files:
        require_local(file)
        if file.exists():
            raise StoreExistsError(f"there is a file {file}", "a new path", "a key is never overwritten: name another")
    for file, content, mode in files:
        with writing(f"the key {file}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            # With these permissions from the beginning.
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(content)
    return public_of(key)


def public_path(path: Path) -> Path:
    """Return the file of the public key that belongs to a private one."""
    return path.with_name(path.name + ".pub")


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Raises
    ------
    InputMissingError, InputFormatError, OptionError
        If there is none, it is no Ed25519 key in PEM, or its passphrase is missing or wrong.
    """
    content, secret = _read(path), _passphrase()
    try:
        encrypted = b"ENCRYPTED" in content
        key = _serialization().load_pem_private_key(content, secret if encrypted else None)
    except TypeError as error:
        raise OptionError(
            f"the key {path} is encrypted", "its passphrase", f"set the environment variable {PASSPHRASE}"
        ) from error
    except ValueError as error:
        if encrypted:
            raise OptionError(
                f"the key {path} cannot be decrypted", "its passphrase", f"check the environment variable {PASSPHRASE}"
            ) from error
        raise _no_key(path) from error
    kind: type[Ed25519PrivateKey] = _ed25519().Ed25519PrivateKey
    if not isinstance(key, kind):
        raise _no_key(path)
    return key


def read_public_key(path: Path) -> str:
    """Read a public key and return its 32 bytes in hexadecimal digits.

    Raises
    ------
    InputMissingError, InputFormatError
        If there is none, or it is no Ed25519 key in PEM.
    """
    try:
        key = _serialization().load_pem_public_key(_read(path))
    except ValueError as error:
        raise _no_key(path) from error
    if not isinstance(key, _ed25519().Ed25519PublicKey):
        raise _no_key(path)
    return bytes(key.public_bytes_raw()).hex()


def public_of(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private one in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def is_public_key(text: object) -> bool:
    """Return whether a value is the hexadecimal spelling of 32 bytes."""
    return isinstance(text, str) and len(text) == 2 * _KEY_BYTES and set(text) <= set("0123456789abcdef")


def is_signed(content: bytes, signature: bytes, public: str) -> bool:
    """Return whether a signature of some bytes was made with the private key of a public one."""
    from cryptography.exceptions import InvalidSignature

    try:
        _ed25519().Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def require_cryptography() -> None:
    """Raise a `MissingDependencyError` where ``cryptography`` is not installed."""
    _ed25519()


def _ed25519() -> Any:
    return import_optional("cryptography.hazmat.primitives.asymmetric.ed25519", "islands")


def _serialization() -> Any:
    return import_optional("cryptography.hazmat.primitives.serialization", "islands")


def _passphrase() -> bytes | None:
    return os.environ[PASSPHRASE].encode() if os.environ.get(PASSPHRASE) else None


def _read(path: Path) -> bytes:
    try:
        return read_limited(path, _MOST_OF_KEY)
    except OSError as error:
        raise InputMissingError(f"the key {path} cannot be read ({error.strerror})", "a file", _REMEDY) from error


def _no_key(path: Path) -> InputFormatError:
    return InputFormatError(f"{path} holds no such key", "an Ed25519 key in PEM", _REMEDY)
