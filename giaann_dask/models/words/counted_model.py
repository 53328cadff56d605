"""Define the base class of models of one's own: words counted after contexts, and probabilities made of the counts.

A model says which contexts it counts and how counts become probabilities; numbering, training on a cluster, commits,
adding, forgetting, tracing, export, generation, serving and evaluation are those of all models. Do not change either
rule after networks were trained: counts are stored by segment, which is the place of a context among the others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import SpecificationError
from giaann_dask.events import Observer, ignore
from giaann_dask.models.base import EvaluatedText, WorkerOpening
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.words.counted_predictor import (
    CountedPredictor,
    SeenWords,
    counted_from_regions,
    counted_from_store,
)
from giaann_dask.models.words.model import WordModel
from giaann_dask.models.words.naming import ContextNames
from giaann_dask.models.words.specification import own_options
from giaann_dask.models.words.stream import Context, TokenStream, count_contexts
from giaann_dask.rows.regions import RegionHandles, open_prompt_regions, open_regions
from giaann_dask.rows.stored import StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_SEGMENTS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions

Floats = npt.NDArray[np.float64]


class CountedModel(WordModel):
    """Base class of models of words: what is counted, and what becomes of it.

    `options` is a frozen dataclass of the model's own options, which `Specification.model_options` gives values.
    """

    @abstractmethod
    def contexts(self, options: Any) -> Sequence[Context]:
        """Return the contexts that words are counted after, 31 at most; how often words occur is always counted."""

    @abstractmethod
    def probabilities(self, seen: SeenWords, options: Any) -> Floats:
        """Return the probability of each known word to come next.

        Parameters
        ----------
        seen : SeenWords
            Counts of words after the contexts as they are now.
        options : object
            An instance of `options`.

        Returns
        -------
        ndarray
            In the order of ``seen.counts``; not negative, with a sum of at most 1. The rest is the probability of a
            word that is not known.
        """

    def options_of(self, specification: Specification) -> Any:
        """Return the model's own options of a network."""
        return own_options(specification, self.options)

    def require_contexts(self, specification: Specification) -> tuple[Context, ...]:
        """Return the contexts of a network.

        Raises
        ------
        SpecificationError
            If there are too many.
        """
        contexts = tuple(self.contexts(self.options_of(specification)))
        if len(contexts) >= MAXIMUM_SEGMENTS:
            most = f"at most {MAXIMUM_SEGMENTS - 1}, a segment for each"
            raise SpecificationError(f"a model of {len(contexts)} contexts", most, "count fewer")
        return contexts

    def require_trainable(self, specification: Specification) -> None:
        """See `Model.require_trainable`."""
        self.require_contexts(specification)

    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """See `WordModel.count_stream`."""
        return count_contexts(stream, self.require_contexts(specification))

    def names(self, specification: Specification, vocabulary: Vocabulary) -> ContextNames:
        """See `Model.names`."""
        return ContextNames(vocabulary.features[1:], [Context("all", ()), *self.require_contexts(specification)])

    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> CountedPredictor:
        """See `Model.open`; rows are read from the store."""
        return CountedPredictor(reader, StoredRows(reader), observer)

    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """See `Model.open_on_workers`."""
        return _on_workers(reader, open_regions(client, reader, options.rows))

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> CountedPredictor:
        """See `Model.open_for_prompt`."""
        return counted_from_store(str(reader.path), reader.commit)

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`; rows are read from the store where workers do not have them."""
        regions = open_prompt_regions(client, reader, options.rows)
        if regions is None:
            return WorkerOpening(counted_from_store, (str(reader.path), reader.commit))
        return _on_workers(reader, regions)

    def score(self, text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
        """See `Model.score`."""
        from giaann_dask.models.words.counted_scores import score_counted

        return score_counted(text, options)


def _on_workers(reader: CommitReader, regions: RegionHandles) -> WorkerOpening:
    """Return how tasks open a commit whose regions are on workers."""
    arguments = (str(reader.path), reader.commit, regions.argument)
    return WorkerOpening.over(regions, counted_from_regions, arguments)
