"""Write and read encoded corpora: tagged and segmented sequences in a Zarr group.

A corpus is written block by block and read by ranges of sequences, either as neurons of its own dictionaries or as a
tagged block, without stored flags and identifiers, that can be encoded into the dictionaries of any network.

A corpus is a Zarr group of flat arrays over tokens (``column``, ``feature``, ``branch``,
``occurrence``, ``flags``, ``surface``) and over sequences (``offset``, ``status``, ``document``,
``sentence``), string tables, and the ledger of its parts. It is renamed to its path when it is complete.

Does not cover: encoding blocks on a cluster (`giaann_dask.encoding`).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import zarr

from giaann_dask.errors import StoreExistsError, StoreFormatError, StoreMissingError, parameter
from giaann_dask.representations import Summarised, Summary, format_bytes, format_count
from giaann_dask.storage import (
    CHUNK,
    absolute_place,
    append_values,
    bytes_on_disk,
    create_array,
    read_array,
    read_json,
    reading,
    require_folder,
    write_json,
    writing,
)
from giaann_dask.text.blocks import CANDIDATE, NO_DELIMITER, NOUN, STATUS_NAMES, TOO_MANY_BYTES, TOO_SHORT, TaggedBlock
from giaann_dask.text.checked_folder import add_digests, open_checked_group
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.ledger import LedgerEntry, append_entries, read_entries
from giaann_dask.text.lines import STANDARD_INPUT
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.strings import append_strings, read_strings
from giaann_dask.text.tokenizer import SubwordTokenizer, open_content
from giaann_dask.text.vocabulary import Vocabulary

FORMAT = "giaann-dask corpus"
VERSION = 1

_TOKEN_ARRAYS = ("column", "feature", "branch", "occurrence", "flags")
_SEQUENCE_ARRAYS = ("status", "document", "sentence")


def require_absent(path: Path) -> None:
    """Check that a new corpus can be written to a path.

    Raises
    ------
    StoreExistsError
        If the path exists already.
    OptionError
        If the path names an object store.
    """
    require_folder(path)
    if path.exists():
        raise StoreExistsError(
            f"{path} exists already",
            "a path where nothing is",
            f"set {parameter('out')} to another folder, or remove it",
        )


class CorpusWriter:
    """Write a corpus to a temporary folder next to its path, and rename it when it is complete.

    Parameters
    ----------
    path : Path
        Final path of the corpus; absolute.
    buffer_tokens : int
        Tokens, of about 20 bytes, that are held in memory before they are appended to the arrays together. An append
        writes the last chunk of each array again, which took a third of the time of encoding when every block was
        appended by itself.

    Raises
    ------
    StoreExistsError
        If the path exists already.
    OptionError
        If the path names an object store.
    """

    def __init__(self, path: Path, buffer_tokens: int = 4 * CHUNK) -> None:
        require_absent(path)
        self._path = path
        self._buffer_tokens, self._buffered = buffer_tokens, 0
        self._buffer: dict[str, list[npt.NDArray[Any]]] = {}
        self._partial = path.with_name(path.name + ".partial")
        self._surfaces: dict[str, int] = {}
        self._tokens = 0
        with writing(str(path)):
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._group = zarr.open_group(str(self._partial), mode="w")
            create_array(self._group, "offset", np.zeros(1, np.int64))

    def append(self, block: EncodedBlock) -> None:
        """Append the sequences of the next block."""
        surface_ids = np.array([self._surfaces.setdefault(s, len(self._surfaces)) for s in block.surfaces], np.int32)
        surface = block.surface.copy()
        noun = surface >= 0
        surface[noun] = surface_ids[surface[noun]]
        arrays = {name: getattr(block, name) for name in (*_TOKEN_ARRAYS, *_SEQUENCE_ARRAYS)}
        for name, values in {**arrays, "surface": surface, "offset": block.offsets[1:] + self._tokens}.items():
            self._buffer.setdefault(name, []).append(values)
        self._tokens += len(surface)
        self._buffered += len(surface)
        if self._buffered >= self._buffer_tokens:
            self._write_buffer()

    def _write_buffer(self) -> None:
        """Append what is held in memory to the arrays."""
        with writing(str(self._path)):
            for name, parts in self._buffer.items():
                append_values(self._group, name, np.concatenate(parts))
        self._buffer, self._buffered = {}, 0

    def finish(
        self,
        vocabulary: Vocabulary,
        ledger: list[LedgerEntry],
        attributes: Mapping[str, Any],
        ever_pos: EverPos,
        tokenizer: SubwordTokenizer | None = None,
    ) -> None:
        """Write dictionaries, ledger, lexicon, tokenizer and attributes, and rename the corpus to its path."""
        self._write_buffer()
        with writing(str(self._path)):
            for name, strings in (
                ("concepts", vocabulary.concepts),
                ("features", vocabulary.features),
                ("surfaces", list(self._surfaces)),
            ):
                append_strings(self._group, name, strings)
            create_array(self._group, "delimiter", np.array(vocabulary.delimiter, np.bool_))
            create_array(self._group, "probable_since", np.array(vocabulary.probable_since, np.int64))
            if vocabulary.delimiter_since is not None:
                create_array(self._group, "delimiter_since", np.array(vocabulary.delimiter_since, np.int64))
            if tokenizer is not None:
                write_json(self._group, "tokenizer", tokenizer.content)
            append_entries(self._group, ledger)
            write_json(self._group, "ever_pos", ever_pos.as_dict())
            described = {"format": FORMAT, "version": VERSION, **attributes}
            self._group.attrs.update(add_digests(self._partial, described))
            os.replace(self._partial, self._path)

    def discard(self) -> None:
        """Remove the incomplete corpus."""
        shutil.rmtree(self._partial, ignore_errors=True)


class EncodedCorpus(Summarised):
    """An encoded corpus, opened for reading.

    Parameters
    ----------
    path : str or Path
        Folder of the corpus.

    Raises
    ------
    StoreMissingError, StoreFormatError, StoreDamagedError
        If it does not exist, has another format or version, or cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = absolute_place(path)
        self._strings: dict[str, list[str]] = {}
        if not self.path.exists():
            raise StoreMissingError(f"{path} does not exist", "an encoded corpus", "make one with encode")
        with reading(f"corpus {path}"):
            self._group, self.attributes = open_checked_group(self.path)
        if self.attributes.get("format") != FORMAT or self.attributes.get("version") != VERSION:
            raise StoreFormatError(
                f"{path} is {self.attributes.get('format')!r} version {self.attributes.get('version')!r}",
                f"{FORMAT!r} version {VERSION}",
                "encode the text again with this version of giaann_dask",
            )
        with reading(f"corpus {path}"):
            self._offset: npt.NDArray[np.int64] = read_array(self._group, "offset")

    def __len__(self) -> int:
        """Return the number of counted sequences."""
        return len(self._offset) - 1

    @property
    def tokens(self) -> int:
        """Number of stored tokens, after merging."""
        return int(self._offset[-1])

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all files of the corpus."""
        return bytes_on_disk(self.path)

    def __fspath__(self) -> str:
        """Return the folder, so that a corpus can be given where a path can."""
        return str(self.path)

    def status_counts(self) -> dict[str, int]:
        """Return the number of sequences by status."""
        with reading(f"corpus {self.path}"):
            counts = np.bincount(read_array(self._group, "status"), minlength=len(STATUS_NAMES))
        found = {name: int(count) for name, count in zip(STATUS_NAMES, counts, strict=True)}
        return {name: count for name, count in found.items() if count or name != STATUS_NAMES[TOO_MANY_BYTES]}

    def strings(self, table: str) -> list[str]:
        """Return the string table ``concepts``, ``features`` or ``surfaces``, which is cached; do not modify it."""
        if table not in self._strings:
            with reading(f"corpus {self.path}"):
                self._strings[table] = read_strings(self._group, table)
        return self._strings[table]

    def vocabulary(self) -> Vocabulary:
        """Return the dictionaries at the end of the corpus."""
        with reading(f"corpus {self.path}"):
            delimiter = read_array(self._group, "delimiter").tolist()
            since = read_array(self._group, "probable_since").tolist()
            later = read_array(self._group, "delimiter_since").tolist() if self._own_flags else None
        return Vocabulary(self.strings("concepts"), self.strings("features"), delimiter, since, len(self), later)

    @property
    def _own_flags(self) -> bool:
        return "delimiter_since" in self._group

    def tokenizer(self) -> SubwordTokenizer | None:
        """Return the tokenizer that the corpus was encoded with; None for words."""
        if not self._own_flags:
            return None
        with reading(f"corpus {self.path}"):
            return open_content(read_json(self._group, "tokenizer"))

    def ever_pos(self) -> EverPos:
        """Return the ever-POS lexicon that the corpus was encoded with."""
        with reading(f"corpus {self.path}"):
            return EverPos.from_dict(read_json(self._group, "ever_pos"))

    def ledger(self) -> list[LedgerEntry]:
        """Return the parts that the corpus was made from, in order."""
        with reading(f"corpus {self.path}"):
            return read_entries(self._group)

    def encoded(self, start: int = 0, stop: int | None = None) -> EncodedBlock:
        """Return a range of sequences as neurons of the corpus's own dictionaries."""
        stop = len(self) if stop is None else min(stop, len(self))
        low, high = int(self._offset[start]), int(self._offset[stop])
        with reading(f"corpus {self.path}"):
            token = {n: read_array(self._group, n, low, high) for n in (*_TOKEN_ARRAYS, "surface")}
            sequence = {n: read_array(self._group, n, start, stop) for n in _SEQUENCE_ARRAYS}
        return EncodedBlock(
            offsets=self._offset[start : stop + 1] - low,
            surfaces=tuple(self.strings("surfaces")),
            first_sequence=start,
            **token,
            **sequence,
        )

    def numbers(self, start: int, stop: int) -> EncodedBlock:
        """Return a range of sequences as `encoded` does, with only the arrays that training reads.

        Flags, words and origins (``flags``, ``surface``, ``surfaces``, ``document``, ``sentence``)
        are left empty.
        """
        low, high = int(self._offset[start]), int(self._offset[stop])
        with reading(f"corpus {self.path}"):
            token = {n: read_array(self._group, n, low, high) for n in ("column", "feature", "branch", "occurrence")}
            status = read_array(self._group, "status", start, stop)
        none = np.zeros(0, np.int32)
        return EncodedBlock(
            offsets=self._offset[start : stop + 1] - low,
            status=status,
            flags=np.zeros(0, np.uint8),
            surface=none,
            document=none,
            sentence=none,
            surfaces=(),
            first_sequence=start,
            **token,
        )

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
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
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
            sizes = {name: len(read_array(self._group, f"{name}_end")) for name in ("concepts", "features")}
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
            ("sequences", format_count(counts["sequences"])),
            ("divided into columns", format_count(counts["trained"])),
            ("tokens", format_count(counts["tokens"])),
            ("concepts", format_count(counts["concepts"])),
            ("features", format_count(counts["features"])),
            ("on disk", format_bytes(counts["bytes_on_disk"])),
        )
        return Summary(f"Corpus {self.path}", rows)


def is_corpus(path: Source | Path) -> TypeGuard[str | Path]:
    """Return whether an input is the path of an encoded corpus of any version; ``-`` (standard input) never is."""
    if path == STANDARD_INPUT or isinstance(path, MemoryInput):
        return False
    try:
        metadata = json.loads((Path(path) / "zarr.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(metadata.get("attributes", {}).get("format") == FORMAT)


def _in_order(identifiers: npt.NDArray[np.int32], names: list[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Renumber identifiers in order of first appearance; return the names in that order."""
    distinct, first, inverse = np.unique(identifiers, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return tuple(names[i] for i in distinct[order]), rank[inverse].astype(np.int32)
