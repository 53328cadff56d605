"""Define what models of words have in common: counts of words after contexts, by hashes of both."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers, unpack_target
from giaann_dask.models.base import EvaluatedText, Model, UsedNames
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.results import ConnectionKey
from giaann_dask.models.words.export import context_columns, export_contents
from giaann_dask.models.words.places import find_occurrences, index_words
from giaann_dask.models.words.stream import EVERYWHERE, TokenStream, stream_tokens
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import PackedRegionRun, PackedRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import RegionRun, Run, divide_rows
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray, ExportContents
from giaann_dask.text.segmentation import EncodedBlock

if TYPE_CHECKING:
    from giaann_dask.models.generation_options import EvaluationOptions
    from giaann_dask.models.words.score_report import ScoreReport


class WordModel(Model):
    """Counts of words after contexts; on segment 0 how often each word occurs at all."""

    @abstractmethod
    def count_stream(self, stream: TokenStream, specification: Specification) -> Run:
        """Return how often each word occurs, and how often after each context."""

    def count(
        self, blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement
    ) -> Mapping[int, RegionRun]:
        """See `Model.count`; contexts end with their sentence, so that the division of sentences does not matter."""
        stream, none = stream_tokens(blocks), Run.empty()
        run = self.count_stream(stream, specification)
        counts = divide_rows(run, placement.regions_of(run.source))
        if not specification.trace:
            return {region: RegionRun(counts[region], none) for region in counts}
        places = index_words(blocks, stream, placement)
        regions = sorted(counts.keys() | places.keys())
        return {region: RegionRun(counts.get(region, none), none, places.get(region, none)) for region in regions}

    def segment_names(self) -> Mapping[str, str]:
        """Return the names of segments by number, as exports have them."""
        return {}

    def coordinates(self, specification: Specification) -> dict[str, ColumnArray]:
        """See `Model.coordinates`."""
        return context_columns()

    def export_contents(self, reader: CommitReader) -> ExportContents:
        """See `Model.export_contents`."""
        return export_contents(reader, self.segment_names())

    def find_used(self, run: RegionRun | PackedRegionRun) -> UsedNames:
        """Return the keys of the words that occur."""
        counts = run.connections
        if isinstance(counts, PackedRun):
            counts = RowReader(counts.read).between(EVERYWHERE, EVERYWHERE + 1)
        segment, word, _ = unpack_target(counts.target)
        return UsedNames(np.zeros(0, np.int64), np.unique(word[segment == 0]))

    def shares(
        self, postings: Callable[[int], Postings], connection: ConnectionKey, specification: Specification
    ) -> tuple[Integers, Integers]:
        """See `Model.shares`; the context of the connection says which words stand before the target."""
        return find_occurrences(postings, connection.target, connection.context)

    def require_fit(self, specification: Specification, options: GenerationOptions) -> None:
        """See `Model.require_fit`."""
        require_words_fit(specification, options)

    def evaluate(self, text: EvaluatedText, options: EvaluationOptions) -> ScoreReport:
        """See `Model.evaluate`."""
        from giaann_dask.models.words.score_report import ScoringOptions

        return self.score(text, ScoringOptions.limits_of(options))


def require_words_fit(specification: Specification, options: GenerationOptions) -> None:
    """Raise an `OptionError` if an option is set that only networks of columns have."""
    if options.beam.searches or options.inference.chosen:
        found = f"beam search or rules of inference for a network of the model {specification.profile}"
        raise OptionError(found, "profile v1 or v2", "leave them out")
