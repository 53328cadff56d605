"""Read and write island files, which say what networks that are trained apart share, and the keys of their bundles.

An island file is JSON: the specification, the ever-POS lexicon, the names of the base in their order, the commit and
digest of the network that they were taken from, and the public keys by name. Its identity does not depend on the keys,
so that these can be added and removed.

Keys are Ed25519 keys of the package ``cryptography``: private ones PKCS #8 and public ones SubjectPublicKeyInfo, both
as PEM, as ``openssl genpkey -algorithm ed25519`` writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, SpecificationError, StoreExistsError
from giaann_dask.lazy import import_optional
from giaann_dask.local_files import local_path
from giaann_dask.models import totals_of
from giaann_dask.spec import Specification
from giaann_dask.storage import read_limited, require_local, write_file, writing
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.vocabulary import NEVER, Vocabulary

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = "giaann-dask island"
VERSION = 1
# Bytes of an island file at most: it has all names of a network.
_MOST = 1 << 31
PASSPHRASE = "GIAANN_ISLAND_PASSPHRASE"
"""Environment variable with the passphrase of private keys."""
SIGNATURE_BYTES = 64
_KEY_BYTES = 32
# Bytes of a file with a key at most.
_MOST_OF_KEY = 1 << 16
_REMEDY = "make a pair with giaann-dask island key, or with openssl genpkey -algorithm ed25519"


@dataclass(frozen=True, kw_only=True)
class Island:
    """Specification, base and public keys of networks that are trained separately.

    Attributes
    ----------
    specification : Specification
        Independent of the order of text.
    ever_pos : EverPos
        Ever-POS lexicon.
    concepts, features : tuple of str
        Names of the base, numbered alike in all networks; `features` without the prime concept feature.
    commit, digest : str
        Commit of the network that they were taken from, and the SHA-256 of what an export of it contains.
    keys : mapping of str to str
        Public keys by name; bundles signed by them are accepted.

    Raises
    ------
    SpecificationError
        If networks of the specification depend on the order of text, or have an index.
    """

    specification: Specification
    ever_pos: EverPos
    concepts: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    commit: str = ""
    digest: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.specification.require_order_free("an island")
        totals_of(self.specification)
        if self.specification.trace:
            raise SpecificationError(
                "an island with an index of its sequences, which bundles do not have",
                "networks without one",
                "leave trace out",
                names=("trace",),
            )

    @property
    def identity(self) -> str:
        """SHA-256 of everything but the keys, in hexadecimal digits."""
        shared = {name: value for name, value in self.as_dict().items() if name != "keys"}
        return hashlib.sha256(canonical_json(shared)).hexdigest()

    def vocabulary(self, concepts: Sequence[str] = (), features: Sequence[str] = ()) -> Vocabulary:
        """Return dictionaries of the base and further names, with the flags that the words alone decide."""
        vocabulary = Vocabulary()
        append_words(vocabulary, (*self.concepts, *concepts), (*self.features, *features), self)
        return vocabulary

    def name_of(self, public: str) -> str | None:
        """Return the name of a public key, None where it is not listed."""
        return next((name for name, key in self.keys.items() if key == public), None)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "specification": self.specification.as_dict(),
            "ever_pos": self.ever_pos.as_dict(),
            "base": {
                "commit": self.commit,
                "digest": self.digest,
                "concepts": list(self.concepts),
                "features": list(self.features),
            },
            "keys": dict(self.keys),
        }

    @classmethod
    def from_dict(cls, stored: Any, path: Path) -> Island:
        """Rebuild a stored island.

        Raises
        ------
        InputFormatError
            If it is none, or of another version.
        SpecificationError
            If its specification is one of another version.
        """
        try:
            if (stored["format"], stored["version"]) != (FORMAT, VERSION):
                raise ValueError
            base, keys = stored["base"], stored["keys"]
            if not all(isinstance(name, str) and is_public_key(key) for name, key in keys.items()):
                raise ValueError
            fields = {name: tuple(base[name]) for name in ("concepts", "features")}
            ever_pos, commit, digest = EverPos.from_dict(stored["ever_pos"]), str(base["commit"]), str(base["digest"])
            if not all(isinstance(name, str) for names in fields.values() for name in names):
                raise ValueError
            specification = dict(stored["specification"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputFormatError(
                f"{path} is not an island file of version {VERSION}",
                "a file that giaann-dask island create has written",
                "ask the owner of the network for it",
            ) from error
        return cls(
            specification=Specification.from_dict(specification),
            ever_pos=ever_pos,
            commit=commit,
            digest=digest,
            keys=dict(keys),
            **fields,
        )


def append_words(vocabulary: Vocabulary, concepts: Sequence[str], features: Sequence[str], island: Island) -> None:
    """Append names to dictionaries, with the flags that the words alone decide.

    Raises
    ------
    StrengthOverflowError
        If there are more than dictionaries can have.
    """
    for lemma in concepts:
        vocabulary.add_concept(lemma)
    flagged = island.specification.traits.columns
    for word in features:
        delimiter = flagged and island.ever_pos.delimiter(word, word, "")
        feature = vocabulary.add_feature(word, delimiter)
        probable = flagged and not delimiter and island.ever_pos.probable_delimiter(word, word)
        if probable and vocabulary.probable_since[feature] == NEVER:
            vocabulary.probable_since[feature] = vocabulary.sequences
    vocabulary.check_size()


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and without spaces, in UTF-8: one spelling of each value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_island(path: Path) -> Island:
    """Read an island file.

    Raises
    ------
    InputMissingError, InputFormatError, SpecificationError
        If there is none, or it is none of this version.
    """
    try:
        stored = json.loads(read_limited(path, _MOST))
    except OSError as error:
        raise InputMissingError(
            f"the island file {path} cannot be read ({error.strerror})", "a file", "make one with island create"
        ) from error
    except (ValueError, RecursionError):
        stored = None
    return Island.from_dict(stored, path)


def write_island(island: Island, path: Path) -> None:
    """Write an island file, which is there only when it is complete."""
    write_file(path, json.dumps(island.as_dict(), ensure_ascii=False, indent=1) + "\n", "the island file")


def check_key_names(keys: Mapping[str, str]) -> None:
    """Raise an `OptionError` where a name of a key is empty or two names have one key."""
    if any(not name for name in keys) or len(set(keys.values())) < len(keys):
        raise OptionError(
            f"the keys {sorted(keys)}",
            "a name for each, and none of them twice",
            "give key as NAME=FILE",
            names=("key",),
        )


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
