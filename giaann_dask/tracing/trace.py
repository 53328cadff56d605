"""Trace the connections behind predicted tokens to the training sequences that built them, with their text.

Of the index of a network, only the chunks are read that hold the postings of the neurons asked for; each model has the
rule by which these make a connection. `training_text` finds the text of sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers
from giaann_dask.models import model_of
from giaann_dask.models.results import ConnectionKey
from giaann_dask.representations import Summarised, Summary
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.postings import Postings, read_postings
from giaann_dask.storage import reading
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.memory_inputs import Source
from giaann_dask.tracing.training_text import TrainingText

if TYPE_CHECKING:
    import pandas as pd

# Bytes of postings that are kept; what is kept is dropped together.
_KEPT_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class TracedSentence:
    """A training sequence that built a part of a connection.

    Attributes
    ----------
    sequence : int
        Its number in the network.
    place : str
        File, URL, corpus or description of the input that it was read from.
    document, sentence, offset : int or None
        Number of its document in that place and of its first sentence in the document, each from 1, and the
        characters of the document before it; None where that is not known (`giaann_dask.tracing.training_text`).
    text : str or None
        Its words; None where the text is gone.
    missing : str
        Why there is no text, else empty.
    part : str
        Identity of its part of text in the ledger, which `giaann_dask.forget` takes.
    units : int
        What it added, in strength units; of profile ``contexts`` how often the word follows the context in it.
    share : float
        The same as a share of the connection's whole strength.
    """

    sequence: int
    place: str
    document: int | None
    sentence: int | None
    offset: int | None
    text: str | None
    missing: str
    part: str
    units: int
    share: float

    def line(self) -> str:
        """Return the sequence, its place and its share as one line."""
        where = [self.place, *([f"document {self.document}"] if (self.document or 1) > 1 else [])]
        where += [] if self.offset is None else [f"character {self.offset:,}"]
        where += [] if self.sentence is None else [f"sentence {self.sentence:,}"]
        return f"{100 * self.share:.3g} %  {self.text or f'({self.missing})'}  ({', '.join(filter(None, where))})"


@dataclass(frozen=True, slots=True)
class TracedConnection:
    """A connection that raised a token, with the training sequences that built it.

    Attributes
    ----------
    source, column : str
        Its source neuron; of profile ``contexts`` its context, and an empty string.
    segment, branch : int
        Where it ends; of profile ``contexts`` the kind of context, and 0.
    contribution : float
        By how much it raised the token (`giaann_dask.models.results.Reason`).
    units : int
        Its stored strength, in strength units; of profile ``contexts`` a count.
    sequences : int
        How many sequences built it.
    sentences : tuple of TracedSentence
        Those with the largest shares, the largest first; all of them where as many were asked for.
    """

    source: str
    column: str
    segment: int
    branch: int
    contribution: float
    units: int
    sequences: int
    sentences: tuple[TracedSentence, ...]

    def line(self) -> str:
        """Return the connection as one line."""
        source = f"{self.source} [{self.column}] on segment {self.segment}" if self.column else self.source
        return f"{source}: {self.sequences:,} {'sentence' if self.sequences == 1 else 'sentences'}"


@dataclass(frozen=True, slots=True)
class TracedToken:
    """A predicted token with the connections that decided.

    Attributes
    ----------
    word, column : str
        The word, and the concept of its column.
    connections : tuple of TracedConnection
        Largest contribution first; what the prompt itself contributed, in profile ``contexts``, is left out.
    """

    word: str
    column: str
    connections: tuple[TracedConnection, ...]

    def lines(self) -> list[str]:
        """Return the token, its connections and their sentences for a person."""
        shown = [f"{self.word} [{self.column}]" if self.column else self.word]
        for connection in self.connections:
            shown.append(f"  from {connection.line()}")
            shown.extend(f"    {sentence.line()}" for sentence in connection.sentences)
        return shown


@dataclass(frozen=True, repr=False)
class Trace(Summarised):
    """The training sequences behind the tokens of a continuation.

    Attributes
    ----------
    tokens : tuple of TracedToken
        The tokens of the continuation.
    commit : str
        The commit that predicted.
    """

    tokens: tuple[TracedToken, ...]
    commit: str

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the trace as readable lines."""
        return [line for token in self.tokens for line in token.lines()]

    def summary(self) -> Summary:
        """Return the lines that represent the trace: for each token, connections and their largest sentence."""
        rows = []
        for token in self.tokens:
            found = [
                "\n".join([each.line(), *(f"  {sentence.line()}" for sentence in each.sentences[:1])])
                for each in token.connections
            ]
            rows.append((token.word, "\n".join(found) or "(no connection)"))
        return Summary("Trace", rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each sentence of each connection of each token."""
        from giaann_dask.lazy import import_optional

        names = ("source", "column", "segment", "branch", "contribution")
        rows = [
            {
                "token": number,
                "word": token.word,
                **{name: getattr(connection, name) for name in names},
                "strength_units": connection.units,
                "sequences": connection.sequences,
                **asdict(sentence),
            }
            for number, token in enumerate(self.tokens)
            for connection in token.connections
            for sentence in connection.sentences
        ]
        return import_optional("pandas", "dataframe").DataFrame(rows)


class SequenceShares(NamedTuple):
    """Shares of sequences in a connection.

    Attributes
    ----------
    sequence : ndarray
        Numbers of the sequences that added something, ascending; int64.
    units : ndarray
        Strength units of each; of models of words counts; int64, of the same shape. Their sum is the stored strength.
    """

    sequence: Integers
    units: Integers


def require_index(reader: CommitReader) -> None:
    """Raise an `OptionError` where a network has no index."""
    if not reader.manifest().specification.trace:
        raise OptionError(
            f"network {reader.path} has no index of its sequences",
            "one that was trained with trace, or indexed afterwards",
            f"index it with its text: giaann-dask index {reader.path} TEXT..., or giaann_dask.index in Python",
            names=("trace",),
        )


class TraceIndex:
    """The index of a commit, read on demand.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network that is trained with ``trace``.

    Raises
    ------
    OptionError
        If the network has no index.
    """

    def __init__(self, reader: CommitReader) -> None:
        require_index(reader)
        self._specification = reader.manifest().specification
        self._reader, self._placement = reader, reader.placement()
        self._runs: dict[int, list[str]] = {}
        for run in reader.manifest().runs:
            self._runs.setdefault(run.region, []).append(run.identity)
        self._rows: dict[str, RowReader] = {}
        self._postings: dict[int, Postings] = {}
        self._kept_bytes = 0

    def postings(self, key: int) -> Postings:
        """Return all places of a neuron, of a word or of an ending, in the order of the sequences."""
        found = self._postings.get(key)
        if found is None:
            found = self._read(key)
            nbytes = sum(column.nbytes for column in found)
            if self._kept_bytes + nbytes > _KEPT_BYTES:
                self._postings, self._kept_bytes = {}, 0
                for rows in self._rows.values():
                    rows.release()
            self._postings[key] = found
            self._kept_bytes += nbytes
        return found

    def _read(self, key: int) -> Postings:
        region = int(self._placement.regions_of(np.array([key], np.int64))[0])
        parts = []
        with reading(f"network {self._reader.path}"):
            for identity in self._runs.get(region, ()):
                rows = self._rows.get(identity)
                if rows is None:
                    rows = self._rows[identity] = self._reader.rows(identity, "postings")
                parts.append(rows.between(key, key + 1))
        run = merge_runs(parts)
        return read_postings(run.target, run.strength)

    def shares(self, connection: ConnectionKey) -> SequenceShares:
        """Return what each sequence added to a connection."""
        model = model_of(self._specification)
        return SequenceShares(*model.shares(self.postings, connection, self._specification))


class Tracer:
    """Index and training text of a commit, opened once for many traces.

    Parameters
    ----------
    reader : CommitReader
        A commit of a network that is trained with ``trace``.
    texts : sequence of str or MemoryInput
        Where the text is looked for first.

    Raises
    ------
    OptionError
        If the network has no index.
    """

    def __init__(self, reader: CommitReader, texts: Sequence[Source] = ()) -> None:
        self.index, self.commit = TraceIndex(reader), reader.commit
        self._text = TrainingText(reader, texts)

    def connection(
        self, key: ConnectionKey, *, source: str, column: str, contribution: float, sentences: int
    ) -> TracedConnection:
        """Return a connection with the sequences that built it.

        Parameters
        ----------
        key : ConnectionKey
            The connection.
        source, column, contribution
            See `TracedConnection`.
        sentences : int
            Sequences whose text is read.
        """
        shares = self.index.shares(key)
        total = int(shares.units.sum())
        largest = np.argsort(-shares.units, kind="stable")[:sentences]
        found = tuple(
            TracedSentence(number, *self._text.find(number), units, units / total)
            for number, units in zip(shares.sequence[largest].tolist(), shares.units[largest].tolist(), strict=True)
        )
        return TracedConnection(
            source, column, key.segment, key.branch, contribution, total, len(shares.sequence), found
        )


@functools.lru_cache(maxsize=4)
def _open(path: str, commit: str) -> Tracer:
    return Tracer(NetworkStore(path).open(commit))


def open_tracer(path: str, commit: str, texts: Sequence[Source] = ()) -> Tracer:
    """Return the tracer of a commit, which this process keeps for the last ones without texts of their own."""
    return Tracer(NetworkStore(path).open(commit), texts) if texts else _open(path, commit)
