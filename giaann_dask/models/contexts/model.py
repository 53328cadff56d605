"""Define the model of counted contexts, for networks of profile ``contexts``, and the totals of its counts.

Every token adds one for each context that fits into its sentence, so that lengths of sentences determine all totals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import wait_all
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models.base import DerivedTables, EvaluatedText, ExportFormat, WorkerOpening
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS, SINGLE, count_kinds
from giaann_dask.models.contexts.predictor import ContextsPredictor, contexts_from_rows, contexts_from_tables
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.contexts.stored_tables import ContinuationTables
from giaann_dask.models.contexts.table_files import clear_tables, has_tables, place_of, submit_tables
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.totals import GroupCounts, Totals, require
from giaann_dask.models.words.counting import EXTENDS
from giaann_dask.models.words.model import ContextNames, WordModel
from giaann_dask.models.words.predictor import WordPredictor
from giaann_dask.models.words.stream import EVERYWHERE, TokenStream
from giaann_dask.rows.source import RowSource
from giaann_dask.runs.packed_rows import among
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions


class ContextTotals(Totals):
    """Totals of counts by kind of context.

    Examples
    --------
    >>> from giaann_dask.spec import Specification
    >>> one = GroupCounts(by_status=(1, 0, 0, 0, 0), lengths=((3, 1),))
    >>> totals = ContextTotals(Specification(profile="contexts"))
    >>> totals.expected(one)[:5], totals.bound(1000)
    ([3, 3, 2, 1, 0], 3000)
    """

    def expected(self, counts: GroupCounts) -> list[int]:
        """See `Totals.expected`."""
        totals = [0] * MAXIMUM_SEGMENTS
        for kind in (CONTEXT_NAMES.index(name) for name in self.specification.contexts):
            totals[kind] = _fitting(counts, max((distance for _, distance in CONTEXTS[kind].parts), default=0))
        totals[EXTENDS] = sum(_fitting(counts, kind + 1) for kind in range(1, CHAIN))
        return totals

    def bound(self, tokens: int) -> int:
        """See `Totals.bound`."""
        # A context can extend a shorter one of each length, should their keys be the same by chance.
        return tokens * (CHAIN - 1)

    def check_keys(self, run: RegionRun, counts: GroupCounts, sizes: tuple[int, int]) -> None:
        """See `Totals.check_keys`."""
        require(not len(run.neurons), "no own strengths in profile contexts")
        _check_contexts(run.connections)


def _fitting(counts: GroupCounts, distance: int) -> int:
    """Return how many tokens have a context that reaches so far; the place before a sentence counts as a token."""
    return sum((length - max(distance - 1, 0)) * number for length, number in counts.lengths if length >= distance)


def _check_contexts(run: Run) -> None:
    """Check that words that follow contexts are counted by themselves, too, as often at least."""
    kind, word, branch = unpack_target(run.target)
    require(not branch.any(), "words without branches")
    row, strength = np.repeat(np.arange(run.rows), np.diff(run.pointer)), run.strength
    alone, named = kind == 0, kind != EXTENDS
    require(bool((run.source[row[alone]] == EVERYWHERE).all()), "words alone after nothing")
    words = word[alone]
    require(bool(among(np.unique(word[named]), words).all()), "words that are counted alone")
    # Sums of no more than the tokens of a group, which floats hold exactly.
    place = kind[named] * len(words) + np.searchsorted(words, word[named])
    totals = np.bincount(place, strength[named], EXTENDS * len(words)).reshape(EXTENDS, len(words))
    require(bool((totals <= totals[0]).all()), "no word more often after contexts than alone")
    # Before every token there is one, or the beginning of its sentence.
    require(bool((totals[SINGLE[1]] == totals[0]).all()), "every word after the one before it")
    longer = (kind > 1) & (kind <= CHAIN)
    counted, extending = (np.bincount(row[which], strength[which], run.rows) for which in (longer, ~named))
    require(bool((counted == extending).all()), "longer contexts that each extend a shorter one")


class ContextsModel(WordModel):
    """Counts of words after contexts of the words before, pooled to probabilities."""

    implied_segment = EXTENDS

    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """See `WordModel.count_stream`."""
        return count_kinds(stream, [CONTEXT_NAMES.index(name) for name in specification.contexts])

    def derived(self, specification: Specification) -> DerivedTables:
        """Return how often words follow contexts in longer ones, which smoothing needs."""
        return ContinuationTables()

    def names(self, specification: Specification, vocabulary: Vocabulary) -> ContextNames:
        """See `Model.names`."""
        return ContextNames(vocabulary.features[1:], CONTEXTS, {EXTENDS: "extends"})

    def segment_names(self) -> Mapping[str, str]:
        """See `WordModel.segment_names`."""
        return {**{str(place): kind.name for place, kind in enumerate(CONTEXTS)}, str(EXTENDS): "extends"}

    def export_formats(self) -> Mapping[str, ExportFormat]:
        """Return the n-gram model that the chain of contexts is."""
        from giaann_dask.models.contexts.arpa import ENDINGS, write_arpa

        return dict.fromkeys(ENDINGS, write_arpa)

    def may_prune(self, run: Run) -> npt.NDArray[np.bool_]:
        """Return which counts are those of words after contexts."""
        kind, _, _ = unpack_target(run.target)
        words: npt.NDArray[np.bool_] = (kind != 0) & (kind != EXTENDS)
        return words

    def kept_by_pruning(self, run: Run, minimum: int, elsewhere: Integers | None = None) -> npt.NDArray[np.bool_]:
        """Return which connections of rows are kept; what a context extends stays as long as it has words."""
        kept: npt.NDArray[np.bool_] = run.strength >= minimum
        kind, _, _ = unpack_target(run.target)
        kept |= kind == 0
        extends = kind == EXTENDS
        row = np.repeat(np.arange(run.rows), np.diff(run.pointer))
        has_words = np.bincount(row[kept & ~extends], minlength=run.rows) > 0
        has_words |= np.isin(run.source, [] if elsewhere is None else elsewhere)
        kept[extends] = has_words[row[extends]]
        return kept

    def totals(self, specification: Specification) -> ContextTotals:
        """See `Model.totals`."""
        return ContextTotals(specification)

    def clear_tables(
        self, client: Client, path: str, kept: Collection[str], gone: Collection[str]
    ) -> list[dict[str, Any]]:
        """See `Model.clear_tables`."""
        return clear_tables(client, path, kept, gone)

    def score(self, text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
        """See `Model.score`."""
        from giaann_dask.models.contexts.evaluation import score_network

        return score_network(text, options)

    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> ContextsPredictor:
        """See `Model.open`."""
        return ContextsPredictor(reader, client=client, observer=observer)

    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """See `Model.open_on_workers`.

        The tables are built once, by one worker, which stores them where the other workers of its machine map them.
        """
        tables = submit_tables(client, reader)
        wait_all([tables])
        return WorkerOpening(
            contexts_from_tables,
            (*place_of(reader), tables),
            # A client that has lost its scheduler forgets its futures at once, also when it finds another one.
            lost=lambda: tables.key not in client.futures,
        )

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> WordPredictor:
        """See `Model.open_for_prompt`."""
        if has_tables(*place_of(reader)):
            # A task would open the commit once more.
            return ContextsPredictor(reader)
        return super().open_for_prompt(reader, options)

    def open_rows(self, reader: CommitReader, rows: RowSource) -> ContextsPredictor:
        """See `WordModel.open_rows`; tables are not built in the background."""
        return ContextsPredictor(reader, rows=rows, background=False)

    def row_task(self) -> Callable[..., WordPredictor]:
        """See `WordModel.row_task`."""
        return contexts_from_rows


MODEL = ContextsModel()
