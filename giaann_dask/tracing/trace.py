"""Trace the connections behind predicted tokens to the training sequences that built them, with their text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.errors import require_option
from giaann_dask.models.results import ConnectionKey
from giaann_dask.representations import Summarised, Summary
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.memory_inputs import Source
from giaann_dask.tracing.index import TraceIndex
from giaann_dask.tracing.training_text import FoundText, TrainingText

if TYPE_CHECKING:
    import pandas as pd


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
            _traced(number, self._text.find(number), units, total)
            for number, units in zip(shares.sequence[largest].tolist(), shares.units[largest].tolist(), strict=True)
        )
        return TracedConnection(
            source, column, key.segment, key.branch, contribution, total, len(shares.sequence), found
        )


def _traced(number: int, found: FoundText, units: int, total: int) -> TracedSentence:
    return TracedSentence(number, *found, units, units / total)


def check_sentences(sentences: int) -> None:
    """Raise an `OptionError` where a number of sentences is negative."""
    require_option(sentences >= 0, "sentences", sentences, "0 or more")


def check_reasons(reasons: int) -> None:
    """Raise an `OptionError` where no connection is to be traced."""
    require_option(reasons >= 1, "reasons", reasons, "1 or more")


@functools.lru_cache(maxsize=4)
def _open(path: str, commit: str) -> Tracer:
    return Tracer(NetworkStore(path).open(commit))


def open_tracer(path: str, commit: str, texts: Sequence[Source] = ()) -> Tracer:
    """Return the tracer of a commit, which this process keeps for the last ones without texts of their own."""
    return Tracer(NetworkStore(path).open(commit), texts) if texts else _open(path, commit)
