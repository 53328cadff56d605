"""Estimate the characters of inputs from file sizes and a sample of each file, for progress bars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from giaann_dask.encoding.sources import CORPUS_CHARACTERS
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.inputs import JSON_SUFFIXES, content_suffix, resolve_inputs
from giaann_dask.text.lines import is_pipe, open_bytes
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
    if content_suffix(path.name) not in JSON_SUFFIXES:
        return len(sample.decode("utf-8", "ignore")) / max(len(sample), 1) or 1.0
    *whole, _ = sample.split(b"\n")
    characters = 0
    for line in whole:
        try:
            characters += len(json.loads(line)[text_field])
        except (ValueError, KeyError, TypeError):
            continue
    return characters / max(sum(len(line) + 1 for line in whole), 1) or 1.0
