"""Define the model of counted contexts, for networks of profile ``contexts``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models.base import DerivedTables, EvaluatedText, ExportFormat, WorkerOpening
from giaann_dask.models.contexts.commit_tables import clear_tables, place_of
from giaann_dask.models.contexts.continuation_counts import ContinuationTables
from giaann_dask.models.contexts.counting import count_rows
from giaann_dask.models.contexts.kinds import CONTEXTS, EXTENDS
from giaann_dask.models.contexts.predictor import (
    ContextsPredictor,
    contexts_for_prompt,
    contexts_from_rows,
    contexts_on_workers,
)
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.contexts.totals import ContextTotals
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.words.model import WordModel
from giaann_dask.models.words.naming import ContextNames
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions


class ContextsModel(WordModel):
    """Counts of words after contexts of the words before, pooled to probabilities."""

    implied_segment = EXTENDS

    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """See `WordModel.count_stream`."""
        return count_rows(stream, [CONTEXT_NAMES.index(name) for name in specification.contexts])

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
        """See `Model.open_on_workers`."""
        return contexts_on_workers(client, reader)

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> ContextsPredictor:
        """See `Model.open_for_prompt`."""
        return contexts_from_rows(*place_of(reader))

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`."""
        return contexts_for_prompt(client, reader, options.rows)


MODEL = ContextsModel()
