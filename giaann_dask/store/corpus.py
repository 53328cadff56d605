"""Open and read encoded corpora: tagged and segmented sequences in a Zarr group, in a folder or an object store.

A corpus is read by ranges of sequences, either as neurons of its own dictionaries or as a tagged block, without stored
flags and identifiers, that can be encoded into the dictionaries of any network.

A corpus is a Zarr group of flat arrays over tokens (``column``, ``feature``, ``branch``,
``occurrence``, ``flags``, ``surface``) and over sequences (``offset``, ``status``, ``document``,
``sentence``), string tables, and the ledger of its parts. It is the one commit of an Icechunk repository.

Every chunk is checked against the digest that was recorded when it was written. Zarr reads a missing chunk as zeros,
and a chunk that closes with its own checksum keeps it where it is taken for a chunk of another array: without the
digests, a lost or exchanged chunk would yield other numbers without an error. The digests are an attribute of the
group, and so is one of all other attributes.

Does not cover: writing corpora (`corpus_writing`), and encoding blocks on a cluster (`giaann_dask.encoding`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import WrapperStore

from giaann_dask.errors import (
    GiaannError,
    OptionError,
    StoreDamagedError,
    StoreFormatError,
    StoreMissingError,
    StoreUnreachableError,
)
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import local_name
from giaann_dask.object_urls import absolute_place, is_object_store
from giaann_dask.representations import Summarised, Summary, format_bytes
from giaann_dask.runs.run import pointer_of
from giaann_dask.storage import read_array, read_arrays, read_json, reading
from giaann_dask.store.commits import DELIMITER_SINCE, read_vocabulary
from giaann_dask.store.icechunk_library import icechunk, use_icechunk
from giaann_dask.store.places import SCHEMES, StorePlace, remembering
from giaann_dask.store.unfinished import BRANCH
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER, NOUN, STATUS_NAMES, TOO_MANY_BYTES, TOO_SHORT, TaggedBlock
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.input_files import STANDARD_INPUT
from giaann_dask.text.inputs import names_text_file
from giaann_dask.text.ledger import LedgerEntry, read_entries
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.names import read_strings
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.tokenizer import SubwordTokenizer, open_content
from giaann_dask.text.vocabulary import Vocabulary

FORMAT = "giaann-dask corpus"
VERSION = 4

SURFACE = "surface"
TOKEN_ARRAYS = {
    "column": np.int32,
    "feature": np.int32,
    "branch": np.uint8,
    "occurrence": np.uint16,
    "flags": np.uint8,
    SURFACE: np.int32,
}
"""Arrays with a value for each token, and their types."""
SEQUENCE_ARRAYS = {"status": np.uint8, "document": np.int32, "sentence": np.int32}
"""Arrays with a value for each sequence; `OFFSET` has one more, the number of tokens."""
OFFSET = "offset"
_TRAINED_ARRAYS = ("column", "feature", "branch", "occurrence")
_METADATA = "zarr.json"
# The attributes: digests of chunks, and of all other attributes.
_FILES, _OTHERS = "file_digests", "digest"
_Store = TypeVar("_Store", bound=Store)
# Neighbouring ranges of sequences read the same chunks.
_CACHED_BYTES = 1 << 25


@names_keywords
class EncodedCorpus(Summarised):
    """An encoded corpus, opened for reading.

    Parameters
    ----------
    path : str or Path
        Folder or URL (``s3://BUCKET/PREFIX``) of the corpus.

    Raises
    ------
    StoreMissingError, StoreFormatError, StoreDamagedError, StoreUnreachableError
        If it does not exist, has another format or version, or cannot be read.

    Attributes
    ----------
    path : Path
        The folder, absolute, or the `giaann_dask.object_urls.ObjectPath`.
    attributes : dict
        Options that the text was encoded with.
    identity : str
        Of the commit.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = absolute_place(path)
        self._strings: dict[str, list[str]] = {}
        with reading(f"corpus {path}"):
            self._opened_group, self.attributes, self.identity = _open_group(self.path)
        found = self.attributes.get("format"), self.attributes.get("version")
        if found != (FORMAT, VERSION):
            raise _format_error(self.path, f"{found[0]!r} version {found[1]!r}")
        with reading(f"corpus {path}"):
            self._offset: npt.NDArray[np.int64] = read_array(self.group, OFFSET)

    @property
    def group(self) -> zarr.Group:
        """Zarr group with the arrays of the corpus, for reading."""
        use_icechunk()
        return self._opened_group

    def __len__(self) -> int:
        """Return the number of counted sequences."""
        return len(self._offset) - 1

    @property
    def tokens(self) -> int:
        """Number of stored tokens, after merging."""
        return int(self._offset[-1])

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all files or objects of the corpus."""
        return StorePlace(str(self.path)).size()

    def __fspath__(self) -> str:
        """Return the folder, so that a corpus can be given where a path can."""
        return str(self.path)

    def status_counts(self) -> dict[str, int]:
        """Return the number of sequences by status."""
        with reading(f"corpus {self.path}"):
            counts = np.bincount(read_array(self.group, "status"), minlength=len(STATUS_NAMES))
        found = {name: int(count) for name, count in zip(STATUS_NAMES, counts, strict=True)}
        return {name: count for name, count in found.items() if count or name != STATUS_NAMES[TOO_MANY_BYTES]}

    def strings(self, table: str) -> list[str]:
        """Return the string table ``concepts``, ``features`` or ``surfaces``, which is cached; do not modify it."""
        if table not in self._strings:
            with reading(f"corpus {self.path}"):
                self._strings[table] = read_strings(self.group, table)
        return self._strings[table]

    def vocabulary(self) -> Vocabulary:
        """Return the dictionaries at the end of the corpus."""
        with reading(f"corpus {self.path}"):
            return read_vocabulary(self.group, len(self))

    @property
    def _own_flags(self) -> bool:
        return DELIMITER_SINCE in self.group

    def tokenizer(self) -> SubwordTokenizer | None:
        """Return the tokenizer that the corpus was encoded with; None for words."""
        if not self._own_flags:
            return None
        with reading(f"corpus {self.path}"):
            return open_content(read_json(self.group, "tokenizer"))

    def ever_pos(self) -> EverPos:
        """Return the ever-POS lexicon that the corpus was encoded with."""
        with reading(f"corpus {self.path}"):
            return EverPos.from_dict(read_json(self.group, "ever_pos"))

    def ledger(self) -> list[LedgerEntry]:
        """Return the parts that the corpus was made from, in order."""
        with reading(f"corpus {self.path}"):
            return read_entries(self.group)

    def encoded(self, start: int = 0, stop: int | None = None) -> EncodedBlock:
        """Return a range of sequences as neurons of the corpus's own dictionaries."""
        stop = len(self) if stop is None else min(stop, len(self))
        arrays = self._read(start, stop, (*TOKEN_ARRAYS, *SEQUENCE_ARRAYS))
        return EncodedBlock(surfaces=tuple(self.strings("surfaces")), **arrays)

    def numbers(self, start: int, stop: int) -> EncodedBlock:
        """Return a range of sequences as `encoded` does, with only the arrays that training reads.

        Flags, words and origins (``flags``, ``surface``, ``surfaces``, ``document``, ``sentence``)
        are left empty.
        """
        none = np.zeros(0, np.int32)
        left = {"flags": np.zeros(0, np.uint8), "surface": none, "document": none, "sentence": none, "surfaces": ()}
        return EncodedBlock(**{**self._read(start, stop, (*_TRAINED_ARRAYS, "status")), **left})

    def _read(self, start: int, stop: int, names: Iterable[str]) -> dict[str, Any]:
        """Return arrays of a range of sequences, and where these begin, as `EncodedBlock` has them."""
        low, high = int(self._offset[start]), int(self._offset[stop])
        spans = {name: (low, high) if name in TOKEN_ARRAYS else (start, stop) for name in names}
        with reading(f"corpus {self.path}"):
            arrays = read_arrays(self.group, spans)
        return {**arrays, "offsets": self._offset[start : stop + 1] - low, "first_sequence": start}

    def tagged(
        self, start: int = 0, stop: int | None = None, part_sequences: tuple[int, ...] = (), shortest: int = 0
    ) -> TaggedBlock:
        """Return a range of sequences as a tagged block, without the identifiers and stored flags of the corpus.

        Parameters
        ----------
        start, stop : int
            Range of sequences.
        part_sequences : tuple of int
            Counted sequences of each part in the range; the whole range is one part by default.
        shortest : int
            Sequences of fewer merged tokens are marked as too short and do not change any dictionary.
        """
        block = self.encoded(start, stop)
        lengths = np.diff(block.offsets)
        status = block.status.copy()
        status[status == NO_DELIMITER] = CANDIDATE
        short = (lengths < shortest) & (status == CANDIDATE)
        status[short] = TOO_SHORT
        kept = np.repeat(~short, lengths)
        noun = (block.flags[kept] & NOUN) != 0
        symbol = np.zeros(len(noun), np.int32)
        concepts, symbol[noun] = _in_order(block.column[kept][noun], self.strings("concepts"))
        features, symbol[~noun] = _in_order(block.feature[kept][~noun], self.strings("features"))
        surface = block.surface[kept]
        surfaces, surface[noun] = _in_order(surface[noun], list(block.surfaces))
        documents, counts = np.unique(block.document, return_counts=True)
        lengths[short] = 0
        return TaggedBlock(
            offsets=pointer_of(lengths),
            status=status,
            symbol=symbol,
            flags=block.flags[kept],
            surface=surface,
            document=block.document,
            sentence=block.sentence,
            concepts=concepts,
            features=features,
            surfaces=surfaces,
            part_sequences=part_sequences or (len(block),),
            document_sentences=tuple(zip(documents.tolist(), counts.tolist(), strict=True)),
            own_flags=self._own_flags,
        )

    def describe(self) -> dict[str, Any]:
        """Return counts and sizes, ready for JSON."""
        with reading(f"corpus {self.path}"):
            sizes = {name: len(read_array(self.group, f"{name}_end")) for name in ("concepts", "features")}
        return {
            "sequences": len(self),
            **self.status_counts(),
            "tokens": self.tokens,
            **sizes,
            "bytes_on_disk": self.bytes_on_disk,
        }

    def summary(self) -> Summary:
        """Return the lines that represent the corpus."""
        counts = self.describe()
        rows = (
            ("sequences", f"{counts['sequences']:,}"),
            ("divided into columns", f"{counts['trained']:,}"),
            ("tokens", f"{counts['tokens']:,}"),
            ("concepts", f"{counts['concepts']:,}"),
            ("features", f"{counts['features']:,}"),
            ("on disk", format_bytes(counts["bytes_on_disk"])),
        )
        return Summary(f"Corpus {self.path}", rows)


def is_corpus(path: Source | Path) -> TypeGuard[str | Path]:
    """Return whether an input is the place of an encoded corpus of any version; ``-`` (standard input) never is."""
    if path == STANDARD_INPUT or isinstance(path, MemoryInput):
        return False
    path = local_name(path)
    if is_object_store(path):
        if str(path).partition(":")[0] not in SCHEMES or names_text_file(str(path)):
            return False
    # Of a text that was given as a path, which may be too long for one, this is False.
    elif not os.path.isdir(Path(path) / "refs"):
        return _format_of_folder(Path(path)) == FORMAT
    try:
        _, attributes, _ = _open_group(absolute_place(path))
    except (StoreMissingError, OptionError):
        return False
    except StoreUnreachableError:
        raise
    except (GiaannError, icechunk.IcechunkError, ValueError, KeyError):
        # Something that reads it says what is wrong with it.
        return True
    return bool(attributes.get("format") == FORMAT)


def _format_error(path: Path, found: str) -> StoreFormatError:
    return StoreFormatError(
        f"{path} is {found}", f"{FORMAT!r} version {VERSION}", "encode the text again with this version of giaann_dask"
    )


def _format_of_folder(folder: Path) -> object:
    """Return the format that the metadata of a Zarr group in a folder names; None where there is none."""
    try:
        metadata = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return metadata.get("attributes", {}).get("format")


def _open_group(path: Path) -> tuple[zarr.Group, dict[str, Any], str]:
    """Return the group of a corpus or of another repository, its attributes and the identity of its content.

    Raises
    ------
    StoreMissingError
        If there is no group.
    StoreFormatError
        If it is a corpus of a version that was a folder.
    """
    if not is_object_store(path) and (path / "zarr.json").exists():
        raise _format_error(path, "a folder with a Zarr group, which corpora of version 1 were")
    place = StorePlace(str(path))
    if not place.exists():
        raise StoreMissingError(f"there is no corpus at {path}", "an encoded corpus", "make one with encode")
    config = remembering(num_bytes_chunks=_CACHED_BYTES)
    session = icechunk.Repository.open(place.storage(), config=config).readonly_session(BRANCH)
    return *open_checked_group(session.store, str(path)), str(session.snapshot_id)


def _in_order(identifiers: npt.NDArray[np.int32], names: list[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Renumber identifiers in order of first appearance; return the names in that order."""
    distinct, first, inverse = np.unique(identifiers, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return tuple(names[i] for i in distinct[order]), rank[inverse].astype(np.int32)


class CheckedStore(WrapperStore[_Store]):
    """Zarr store that compares what it reads with digests.

    Parameters
    ----------
    store : Store
        Holds the group at its root.
    digests : mapping of str to str
        Digest by key, as `RecordingStore` computes them; metadata has none.
    where : str
        Name of the store, for errors.
    """

    def __init__(self, store: _Store, digests: Mapping[str, str], where: str) -> None:
        super().__init__(store)
        self._digests = digests
        self._where = where

    def _with_store(self, store: _Store) -> CheckedStore[_Store]:
        return type(self)(store, self._digests, self._where)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the content of a key, or a byte range of it; None for one that neither exists nor has a digest.

        Raises
        ------
        StoreDamagedError
            If it is missing or was changed since it was written.
        """
        whole = await self._store.get(key, prototype)
        found = None if whole is None else _digest(whole.to_bytes())
        if found != self._digests.get(key) and not key.endswith(_METADATA):
            raise _damage(self._where, key)
        return whole if byte_range is None else await self._store.get(key, prototype, byte_range)


class RecordingStore(WrapperStore[_Store]):
    """Zarr store that records the digests of the chunks that are written.

    Attributes
    ----------
    digests : dict of str to str
        Digest by key.
    """

    def __init__(self, store: _Store) -> None:
        super().__init__(store)
        self.digests: dict[str, str] = {}

    def _with_store(self, store: _Store) -> RecordingStore[_Store]:
        other = type(self)(store)
        other.digests = self.digests
        return other

    async def set(self, key: str, value: Buffer) -> None:
        """Write a key."""
        if not key.endswith(_METADATA):
            self.digests[key] = _digest(value.to_bytes())
        await self._store.set(key, value)


def seal_group(group: zarr.Group, attributes: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Write the attributes of a group with the digests of its chunks, the shapes of its arrays and a digest of all."""
    with_files = {**attributes, _FILES: dict(digests), "shapes": _shapes(group)}
    group.update_attributes({**with_files, _OTHERS: _digest_of(with_files)})


def open_checked_group(store: Store, where: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Return a group whose chunks are checked when they are read, and its attributes without the digests.

    A group without digests, which is no corpus, is returned as it is.

    Parameters
    ----------
    store : Store
        Holds the group at its root.
    where : str
        Name of the store, for errors.

    Raises
    ------
    StoreDamagedError
        If the attributes or the shape of an array were changed since they were written.
    """
    group = zarr.open_group(store, mode="r")
    attributes = dict(group.attrs)
    if _FILES not in attributes:
        return group, attributes
    digest = attributes.pop(_OTHERS, None)
    if digest != _digest_of(attributes) or attributes.pop("shapes") != _shapes(group):
        raise _damage(where, _METADATA)
    sums: Any = attributes.pop(_FILES)
    return zarr.open_group(CheckedStore(store, sums, where), mode="r"), attributes


def _shapes(group: zarr.Group) -> dict[str, list[Any]]:
    """Return the type and the shape of each array of a group."""
    return {name: [str(array.dtype), *array.shape] for name, array in sorted(group.arrays())}


def _digest_of(attributes: Mapping[str, Any]) -> str:
    return _digest(json.dumps(attributes, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    # A chunk ends with its CRC-32C, so the CRC-32C of the whole is the same for all chunks.
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _damage(where: str, key: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"{where}/{key} is missing or not what was written", "an intact store", "restore it from a copy"
    )
