"""Read and write island files: what networks that are trained apart share, and whose bundles are accepted.

An island file is JSON: the specification, the ever-POS lexicon, the names of the base in their order, the commit and
digest of the network that they were taken from, and the public keys by name. Its identity does not depend on the keys,
so that these can be added and removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from giaann_dask.errors import InputFormatError, InputMissingError, OptionError, SpecificationError
from giaann_dask.islands.signing import is_public_key
from giaann_dask.models import totals_of
from giaann_dask.spec import Specification
from giaann_dask.storage import read_limited, write_file
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.vocabulary import NEVER, Vocabulary

FORMAT = "giaann-dask island"
VERSION = 1
# Bytes of an island file at most: it has all names of a network.
_MOST = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Island:
    """Specification, base and public keys of networks that are trained apart.

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
        Public keys by name, whose bundles are accepted.

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
                f"{path} is no island file of version {VERSION}",
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
