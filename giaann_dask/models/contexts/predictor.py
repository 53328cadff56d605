"""Continue prompts with a commit of profile ``contexts``, its tables built in this process or on a cluster.

`giaann_dask.models.contexts.commit_tables` opens the tables.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING

from giaann_dask.cluster import result, wait_all
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.events import Observer, ignore
from giaann_dask.models.base import WorkerOpening
from giaann_dask.models.contexts.commit_tables import CommitTables, place_of, read_tables, submit_tables
from giaann_dask.models.contexts.continuation import TextContinuation
from giaann_dask.models.contexts.scores import BEST, LogLinearModel
from giaann_dask.models.contexts.stored_tables import StoredTables
from giaann_dask.models.contexts.table_files import has_tables
from giaann_dask.models.contexts.tables import PackedTables
from giaann_dask.models.contexts.word_scores import score_text
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import GeneratedToken, ScoredWord
from giaann_dask.models.words.batch import WordBatch
from giaann_dask.models.words.model import require_words_fit
from giaann_dask.rows.cache import RowStatistics
from giaann_dask.rows.messages import RowProjection
from giaann_dask.rows.opening import open_in_background
from giaann_dask.rows.regions import open_prompt_regions
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.row_options import RowOptions
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import KEPT_BYTES
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client


# Connections for each token of a single prompt that is predicted from rows before all tables are built: these take
# about as long as so many tokens from rows, and a short text needs none.
_CONNECTIONS_PER_TOKEN = 40_000
# Kinds of contexts that a prediction reads.
_KINDS = tuple(kind for kind, weight in enumerate(BEST.weights, 1) if weight)


class ContextsPredictor:
    """A commit of profile ``contexts`` opened in this process.

    First tokens are predicted from rows that are read for them, if the commit has what that needs. Meanwhile all tables
    are built in the background: at once for a batch of prompts or a server, and for a single prompt when it has cost as
    much; the predictions are the same.

    Parameters
    ----------
    reader : CommitReader
        The commit, of profile ``contexts``.
    client : Client, optional
        Of the cluster that builds the tables; without one they are built in this process.
    tables : CommitTables, optional
        Its tables, where they have been opened already.
    rows : RowSource, optional
        Its rows, until the tables are there; read from the store by default.
    background : bool
        Whether tables are built in the background; a single prompt is continued from rows alone.
    observer : callable, optional
        Called when prompts enter, advance or leave.

    Attributes
    ----------
    model : LogLinearModel
        What predicts.
    has_tables : bool
        Whether all tables are there.
    """

    model: LogLinearModel

    def __init__(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        tables: CommitTables | None = None,
        rows: RowSource | None = None,
        background: bool = True,
        observer: Observer = ignore,
    ) -> None:
        self.commit, self.observer = reader.commit, observer
        self._reader, self._client, self._opened, self._background = reader, client, tables, background
        self._rows = rows
        self._tokens = 0
        self._building: threading.Thread | None = None
        # None where tables are there, or have to be built as the commit has stored no repeats.
        from_rows = tables is None and not has_tables(*place_of(reader)) and reader.repeats() is not None
        self._stored = StoredTables(reader, _KINDS, rows) if from_rows else None
        self.has_tables = self._stored is None
        if self._stored is None:
            self._build()
        else:
            self.model = LogLinearModel.of(self._stored, BEST)

    def start(self, prompt: str, options: GenerationOptions) -> TextContinuation:
        """Return the continuation of a prompt; see `TextContinuation`."""
        return TextContinuation(self.model, prompt, options)

    def advance(self, text: TextContinuation) -> GeneratedToken | None:
        """Return the next word of a continuation, None at its end."""
        # Also in the middle of a text, tables are faster than rows.
        text.model = self.model
        token = next(text, None)
        if token is not None:
            self.count_token()
        return token

    def count_token(self) -> None:
        """Count a predicted token; begin to build the tables when tokens from rows have cost as much."""
        self._tokens += 1
        if self._tokens * _CONNECTIONS_PER_TOKEN >= self._reader.manifest().connections:
            self.build_tables()

    def build_tables(self) -> None:
        """Begin to build all tables in the background, unless they are there or being built."""
        if self.has_tables or self._building is not None or not self._background:
            return
        self._building = open_in_background(self._build, "tables")

    def _tables(self) -> PackedTables:
        if self._opened is not None:
            return self._opened.tables
        if self._client is None:
            return read_tables(*place_of(self._reader))
        opened: CommitTables = result(submit_tables(self._client, self._reader))
        return opened.tables

    def _build(self) -> None:
        self.model, self.has_tables = LogLinearModel.of(self._tables(), BEST), True

    @property
    def profile(self) -> str:
        """Profile of the network."""
        return "contexts"

    @property
    def subwords(self) -> bool:
        """False: tokens are words."""
        return False

    @property
    def has_probabilities(self) -> bool:
        """True: words have probabilities."""
        return True

    @property
    def row_figures(self) -> RowStatistics | None:
        """Rows that were requested of workers so far; None where none are."""
        return None if self._rows is None else self._rows.own_figures

    def health(self, within_s: float) -> str | None:
        """Return None: all tables are in this process."""
        return None

    def lost(self) -> bool:
        """Return False: all tables are in this process."""
        return False

    def release(self) -> None:
        """Let go of rows beyond those that are kept between prompts."""
        if self._stored is not None:
            self._stored.release_beyond(KEPT_BYTES)

    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text; see `giaann_dask.models.contexts.word_scores.score_text`."""
        self.count_token()
        return score_text(self.model, text, candidates, after)

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> WordBatch[TextContinuation]:
        """Return an empty batch of prompts; see `WordBatch`."""
        require_words_fit(self._reader.manifest().specification, options)
        opened = WordBatch(self, batch)
        if opened.free_slots > 1:
            self.build_tables()
        return opened


def contexts_on_workers(client: Client, reader: CommitReader) -> WorkerOpening:
    """Return how tasks open a commit of profile ``contexts`` on workers.

    Its tables are built once, by one worker, which stores them where the other workers of its machine map them.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    tables = submit_tables(client, reader)
    wait_all([tables])
    return WorkerOpening(
        contexts_from_tables,
        (*place_of(reader), tables),
        # A client that has lost its scheduler forgets its futures at once, also when it finds another one.
        lost=lambda: tables.key not in client.futures,
    )


def contexts_from_tables(path: str, commit: str, tables: CommitTables) -> ContextsPredictor:
    """Open a commit of profile ``contexts`` in a task, given its tables."""
    return ContextsPredictor(open_commit(path, commit), tables=tables)


def contexts_for_prompt(client: Client, reader: CommitReader, options: RowOptions) -> WorkerOpening:
    """Return how a task opens a commit of profile ``contexts`` for one prompt.

    Its rows come from the workers that have them in memory, else from the store.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    handle = open_prompt_regions(client, reader, options)
    if handle is None or handle.keys is None:
        return WorkerOpening(contexts_from_rows, place_of(reader))
    return WorkerOpening.over(handle, contexts_from_rows, (*place_of(reader), handle.argument))


def contexts_from_rows(path: str, commit: str, regions: RegionKeys | None = None) -> ContextsPredictor:
    """Open a commit of profile ``contexts`` for one prompt, its rows from the store or from workers."""
    if has_tables(path, commit):
        return ContextsPredictor(open_commit(path, commit))
    return _opened_from_rows(path, commit, regions)


@lru_cache(maxsize=1)
def _opened_from_rows(path: str, commit: str, regions: RegionKeys | None) -> ContextsPredictor:
    """Return a commit, as a process has opened it for the prompt before."""
    reader = open_commit(path, commit)
    if regions is None:
        return ContextsPredictor(reader, background=False)
    rows = row_source(reader.placement(), regions, projection=RowProjection())
    return ContextsPredictor(reader, rows=rows, background=False)
