"""Find how much text inputs have: an estimate for progress bars, and the text that a network was not trained on yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from giaann_dask.encoding.sources import CORPUS_CHARACTERS, SourceOptions, read_units
from giaann_dask.errors import EmptyInputError, InputEncodingError, InputFormatError
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.input_files import is_pipe, open_bytes, suffix_of
from giaann_dask.text.inputs import JSON_SUFFIXES, resolve_inputs
from giaann_dask.text.ledger import LedgerEntry
from giaann_dask.text.memory_inputs import MemoryInput, Source

_SAMPLE_BYTES = 65_536


def estimate_characters(inputs: Sequence[Source], text_field: str = "text") -> int | None:
    """Return an estimate of the characters of text in inputs.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        Files, folders, globs, datasets or encoded corpora.
    text_field : str
        Field of JSON lines with their text.

    Returns
    -------
    int or None
        In the unit of `giaann_dask.encoding.sources.Unit.weight`; None if an input has a size that is unknown
        until its end: a dataset, a pipe, an iterator or standard input.

    Raises
    ------
    GiaannError
        If an input does not exist.
    """
    total = 0.0
    for name in inputs:
        if is_corpus(name):
            total += CORPUS_CHARACTERS * sum(entry.sequences for entry in EncodedCorpus(name).ledger())
            continue
        for each in resolve_inputs([name]):
            if isinstance(each, MemoryInput) and each.characters is not None:
                total += each.characters
                continue
            # Reading a sample of a pipe would consume it.
            if not isinstance(each, Path) or is_pipe(each):
                return None
            total += _bytes_of(each) * _characters_per_byte(each, text_field)
    return round(total)


def _bytes_of(path: Path) -> int:
    """Return the size of a file in bytes; for gzip an estimate of the decompressed size."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".gz") or size < 18:
        return size
    with path.open("rb") as file:
        file.seek(-4, 2)
        # A gzip member ends with its decompressed size modulo 4 GiB; files with several members are rare.
        return max(int.from_bytes(file.read(4), "little"), size)


def _characters_per_byte(path: Path, text_field: str) -> float:
    """Return the characters of text per byte in a sample of a file; 1 if the sample has no text."""
    with open_bytes(path) as file:
        sample = file.read(_SAMPLE_BYTES)
    if suffix_of(path.name) not in JSON_SUFFIXES:
        return len(sample.decode("utf-8", "ignore")) / max(len(sample), 1) or 1.0
    *whole, _ = sample.split(b"\n")
    characters = 0
    for line in whole:
        try:
            characters += len(json.loads(line)[text_field])
        except (ValueError, KeyError, TypeError):
            continue
    return characters / max(sum(len(line) + 1 for line in whole), 1) or 1.0


@dataclass(frozen=True)
class UnseenInput:
    """Size of an input and of its text that is not in the ledger.

    Attributes
    ----------
    name : str
        Name of the input.
    characters, new_characters : int
        Size of its text, and of its new parts; estimates for an encoded corpus.
    problem : str
        Reason why it cannot be read; empty if it can.
    """

    name: str
    characters: int
    new_characters: int
    problem: str = ""


def find_unseen_inputs(
    inputs: Sequence[Source], sources: SourceOptions, ledger: Iterable[LedgerEntry]
) -> list[UnseenInput]:
    """Return the new text of each input: parts that are neither in a ledger nor in a preceding input.

    Unlike in training, repeated parts are counted once. A part that is incomplete in the ledger is new.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        Files, datasets or encoded corpora; each is read completely.
    sources : SourceOptions
        Options of reading; the same text read with others is new.
    ledger : iterable of LedgerEntry
        Entries of the known parts.

    Returns
    -------
    list of UnseenInput
        One per input, in order. Parts of an input that cannot be read do not count as known.
    """
    known = {entry.identity for entry in ledger if entry.complete}
    found = []
    for name in inputs:
        sizes: dict[bytes, int] = {}
        characters = 0
        try:
            for identity, size in _parts(name, sources):
                characters += size
                sizes[identity] = size
        except EmptyInputError:
            # Training skips empty files, too.
            pass
        except (InputFormatError, InputEncodingError) as error:
            found.append(UnseenInput(str(name), characters, 0, str(error)))
            continue
        found.append(UnseenInput(str(name), characters, sum(size for each, size in sizes.items() if each not in known)))
        known.update(sizes)
    return found


def _parts(name: Source, sources: SourceOptions) -> Iterator[tuple[bytes, int]]:
    """Yield identity and size of the parts of an input; training checks whether a corpus fits the network."""
    if is_corpus(name):
        yield from ((entry.identity, CORPUS_CHARACTERS * entry.sequences) for entry in EncodedCorpus(name).ledger())
        return
    for unit in read_units([name], sources):
        yield unit.identity, unit.weight
