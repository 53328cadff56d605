"""Find the text of documents that are named by their identities in the ledger of a network.

A network with an index records where each part of its text was read and with which options. The text itself is not
stored: it is read there again, and only parts that still have their identity are used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from giaann_dask.encoding.sources import SourceOptions, is_rereadable, reading_of
from giaann_dask.errors import OptionError, parameter
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.inputs import Files
from giaann_dask.text.ledger import LedgerEntry
from giaann_dask.text.memory_inputs import Source

_IDENTITY = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Text of documents.

    Attributes
    ----------
    inputs : sequence of str or MemoryInput
        Where it is read.
    sources : SourceOptions
        How it is read; of documents that are named by identity, only these parts.
    """

    inputs: Sequence[Source]
    sources: SourceOptions


def find_documents(reader: CommitReader, documents: Sequence[Source], sources: SourceOptions) -> Documents:
    """Return the text of documents, some or all of which may be named by their identities.

    Parameters
    ----------
    reader : CommitReader
        The network.
    documents : sequence of str or MemoryInput
        Inputs, or identities of parts of text in the ledger: 32 hexadecimal digits each, which are no file.
    sources : SourceOptions
        How inputs are read.

    Raises
    ------
    OptionError
        If both are named, the ledger has no such part, or it is not known where its text was read.
    """
    named = [each for each in documents if isinstance(each, str) and _is_identity(each)]
    if not named:
        return Documents(inputs=documents, sources=sources)
    if len(named) < len(documents):
        raise OptionError(
            f"{len(named):,} identities and {len(documents) - len(named):,} inputs as documents",
            "identities alone, or inputs alone",
            "forget them with a command each",
        )
    wanted = frozenset(bytes.fromhex(each) for each in named)
    number = {entry.identity: part for part, entry in enumerate(reader.ledger())}
    if missing := sorted(each.hex() for each in wanted - number.keys()):
        raise OptionError(
            f"network {reader.path} holds no part of text with the identity {missing[0]}",
            "identities in its ledger, such as traces and certificates name",
            "name the file of the document",
        )
    origins = reader.origins()
    places = {origins.place(number[each]) if origins is not None else None for each in wanted}
    found = {name: json.loads(name) for name in places if name is not None}
    names = sorted({place.get("corpus", place.get("name", "")) for place in found.values()})
    gone = [name for name in names if not is_rereadable(name)]
    if None in places or gone:
        where = f"text that was read from {gone[0]}" if gone else "text that no place is known of"
        raise OptionError(
            f"documents by identity, with {where}",
            f"a network that was trained on files or corpora with {parameter('trace')}, which records their places",
            "name the file of the document",
        )
    how = {(place.get("tagger", sources.tagger), json.dumps(reading_of(place))) for place in found.values()}
    if len(how) > 1:
        raise OptionError("documents that were read with different options", "the same ones", "a command for each")
    tagger, reading = next(iter(how))
    options = replace(sources.reading, **json.loads(reading))
    return Documents(inputs=Files(names), sources=replace(sources, tagger=tagger, reading=options, only=wanted))


def require_found(ledger: Sequence[LedgerEntry], documents: Documents) -> None:
    """Raise an `OptionError` where the text of documents that are named by identity has not been found any more."""
    gone = (documents.sources.only or frozenset()) - {entry.identity for entry in ledger}
    if gone:
        raise OptionError(
            f"{', '.join(map(str, documents.inputs))} does not hold the text of {len(gone):,} documents any more, "
            f"such as {min(gone).hex()}",
            "text as it was trained",
            "name the file of a copy of the document",
        )


def _is_identity(name: str) -> bool:
    return _IDENTITY.fullmatch(name) is not None and not os.path.exists(Path(name))
