"""Define what models of words have in common: counts of words after contexts, by hashes of both.

That are their export, the names of contexts, and an index of the places of words and endings, in which a context is
found by joining the places of its parts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import OptionError
from giaann_dask.keys import Integers, source_key, unpack_target, word_key, word_keys
from giaann_dask.models.base import EvaluatedText, Model, NameTable, UsedNames, WorkerOpening
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.models.results import BEGINNING, ConnectionKey, ContextPart
from giaann_dask.models.words.stream import (
    BOUNDARY,
    EVERYWHERE,
    NONE,
    WORD,
    Context,
    Feature,
    TokenStream,
    ending_of,
    find_numbers,
    stream_tokens,
)
from giaann_dask.runs.packed_rows import RowReader
from giaann_dask.runs.packing import PackedRegionRun, PackedRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings, divide_postings
from giaann_dask.runs.run import RegionRun, Run, divide_rows
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import CONVERTED, ColumnArray, ExportContents, Table
from giaann_dask.store.ordered_connections import OrderedConnections
from giaann_dask.text.segmentation import EncodedBlock, places_of

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.generation_options import EvaluationOptions
    from giaann_dask.models.words.predictor import WordPredictor
    from giaann_dask.models.words.score_report import ScoreReport
    from giaann_dask.rows.source import RowSource

# Attributes of a word's postings: what of the token the key stands for.
AS_WORD, AS_ENDING = 1, 2
# Place of a token in all sequences: the sequence, then the position in it, of which 23 bits are used.
_POSITION_BITS = 23


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
        places = index_words(blocks, stream, placement, self.indexed_features(specification))
        regions = sorted(counts.keys() | places.keys())
        return {region: RegionRun(counts.get(region, none), none, places.get(region, none)) for region in regions}

    def indexed_features(self, specification: Specification) -> Sequence[Feature]:
        """Return the functions among the views of contexts, whose values are indexed as words are."""
        return ()

    def segment_names(self) -> Mapping[str, str]:
        """Return the names of segments by number, as exports have them."""
        return {}

    def coordinates(self, specification: Specification) -> dict[str, ColumnArray]:
        """See `Model.coordinates`."""
        return context_columns()

    def export_contents(self, reader: CommitReader) -> ExportContents:
        """See `Model.export_contents`."""
        columns = self.coordinates(reader.manifest().specification)
        return export_contents(reader, self.segment_names(), columns)

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
        """See `Model.require_fit`: options that only networks of columns have are refused."""
        if options.beam.searches or options.inference.chosen:
            found = f"beam search or rules of inference for a network of the model {specification.profile}"
            raise OptionError(found, "profile v1 or v2", "leave them out")
        if options.model_options:
            self.changed_options(specification, options.model_options)

    @abstractmethod
    def open_rows(self, reader: CommitReader, rows: RowSource) -> WordPredictor:
        """Open a commit for one prompt in this process, given its rows."""

    def row_task(self) -> Callable[..., WordPredictor]:
        """Return the task that opens a commit for one prompt: `opened_from_rows`, or what has its parameters."""
        from giaann_dask.models.words.predictor import opened_from_rows

        return opened_from_rows

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> WordPredictor:
        """See `Model.open_for_prompt`."""
        return self.row_task()(str(reader.path), reader.commit)

    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """See `Model.open_for_prompt_on_workers`; rows are read from the store where workers do not have them."""
        from giaann_dask.rows.regions import open_prompt_regions

        place, regions = (str(reader.path), reader.commit), open_prompt_regions(client, reader, options.rows)
        if regions is None or regions.keys is None:
            return WorkerOpening(self.row_task(), place)
        return WorkerOpening.over(regions, self.row_task(), (*place, regions.argument))

    def evaluate(self, text: EvaluatedText, options: EvaluationOptions) -> ScoreReport:
        """See `Model.evaluate`."""
        from giaann_dask.models.words.score_report import ScoringOptions

        return self.score(text, ScoringOptions.limits_of(options))


class ContextNames:
    """Names of contexts and words by their keys, as far as a dictionary has the words.

    Parameters
    ----------
    words : sequence of str
        The dictionary.
    contexts : sequence of Context
        The kind that each segment counts words after.
    implied : dict of int to str, optional
        Names of further segments, whose targets are no words.

    Examples
    --------
    >>> names = ContextNames(["cat"], [Context("all", ()), Context("1", (("word", 1),))])
    >>> names.target(word_key("cat")), names.target(5), names.source(0, 5)
    ('cat', '0000000000005', 'all')
    """

    def __init__(
        self, words: Sequence[str], contexts: Sequence[Context], implied: dict[int, str] | None = None
    ) -> None:
        self._words, self._contexts, self._implied = words, contexts, implied or {}
        self._views = {WORD: word_keys(words)}
        self._order = np.argsort(self._views[WORD], kind="stable")
        self._ascending = self._views[WORD][self._order]

    @property
    def segments(self) -> list[str]:
        """Name of every segment."""
        names = {**{at: context.name for at, context in enumerate(self._contexts)}, **self._implied}
        return [names.get(at, "") for at in range(max(names, default=-1) + 1)]

    def source(self, segment: int, key: int) -> str:
        """Return the kind of a context, and its word; the key alone where it has several words, which hashes hide."""
        name, parts = self._contexts[segment].name, self._contexts[segment].parts
        if not parts:
            return name
        place = None
        if len(parts) == 1 and isinstance(view := parts[0][0], str):
            if view not in self._views:
                self._views[view] = word_keys([ending_of(word) for word in self._words])
            found = np.flatnonzero(source_key(segment, [np.append(self._views[view], BOUNDARY)]) == key)
            place = int(found[0]) if len(found) else None
        if place is None:
            return f"{name}:{key:013x}"
        if place == len(self._words):
            return f"{name}:beginning of a sentence"
        word = self._words[place]
        return f"{name}:{word if view == WORD else ending_of(word)}"

    def target(self, key: int) -> str:
        """Return the word of a key."""
        place = int(self._places(np.array([key], np.int64))[0])
        return self._words[place] if place >= 0 else f"{key:013x}"

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the names of kinds, and of the words that follow contexts."""
        place = np.where(np.isin(arrays["kind"], list(self._implied)), -1, self._places(arrays["target"]))
        return {"kind_name": (self.segments, arrays["kind"]), "target_name": (self._words, place)}

    def _places(self, keys: Integers) -> Integers:
        """Return the places of keys among the words, -1 for those of no word."""
        return find_numbers(self._ascending, self._order, keys)


def index_words(
    blocks: Sequence[EncodedBlock], stream: TokenStream, placement: Placement, features: Sequence[Feature] = ()
) -> dict[int, Run]:
    """Return the postings of the words of blocks of raw words, of their endings and of features, by region.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        The blocks.
    stream : TokenStream
        Their tokens (`giaann_dask.models.words.stream.stream_tokens`).
    placement : Placement
        Assigns keys to regions.
    """
    sequence = np.concatenate([np.zeros(0, np.int64), *(places_of(block)[0] for block in blocks)])
    word, ending = stream.keys[stream.index], stream.endings[stream.index]
    other = np.flatnonzero(word != ending)
    attributes = np.where(word == ending, AS_WORD | AS_ENDING, AS_WORD)
    found = [(word, slice(None), attributes), (ending[other], other, np.full(len(other), AS_ENDING))]
    for feature in features:
        values = stream.seen(feature, 0, len(stream))
        known = np.flatnonzero(values != NONE)
        found.append((values[known], known, np.full(len(known), AS_WORD)))
    keys, at, kinds = zip(*found, strict=True)
    sequences, positions = (np.concatenate([each[part] for part in at]) for each in (sequence, stream.place))
    return divide_postings(np.concatenate(keys), Postings(sequences, positions, np.concatenate(kinds)), placement)


def find_occurrences(
    postings: Callable[[int], Postings], word: int, context: Sequence[ContextPart]
) -> tuple[Integers, Integers]:
    """Return the sequences in which a word stands after a context, ascending, and how often it does in each.

    The places of all words of the context are intersected.
    """
    lists = [_targets(postings, ContextPart(word, 0, False))]
    lists += [_targets(postings, part) for part in context if part.key != BEGINNING]
    lists.sort(key=len)
    places = lists[0]
    for others in lists[1:]:
        # Both ascend, so few places are found in many by bisection.
        at = np.minimum(np.searchsorted(others, places), max(len(others) - 1, 0))
        places = places[others[at] == places] if len(others) else places[:0]
    for part in context:
        if part.key == BEGINNING:
            places = places[places & ((1 << _POSITION_BITS) - 1) == part.distance - 1]
    sequences, counts = np.unique(places >> _POSITION_BITS, return_counts=True)
    return sequences, counts


def _targets(postings: Callable[[int], Postings], part: ContextPart) -> Integers:
    """Return the places of the targets whose context may have a part, ascending."""
    found = postings(part.key)
    chosen = (found.attributes & (AS_ENDING if part.is_ending else AS_WORD)) != 0
    places: Integers = ((found.sequence << _POSITION_BITS) + found.position + part.distance)[chosen]
    return places


def export_contents(
    reader: CommitReader, kinds: Mapping[str, str], columns: Mapping[str, ColumnArray]
) -> ExportContents:
    """Return the contents of an export of a commit, given the names of segments by number, and the arrays."""
    return ExportContents(columns, lambda: context_dictionaries(reader, kinds), _word_counts)


def context_dictionaries(reader: CommitReader, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the words of a commit with their keys, and the names of kinds, ready for JSON."""
    manifest = reader.manifest()
    words = sorted(reader.saved_vocabulary().features[1:], key=lambda word: (word_key(word), word))
    return {
        "kinds": dict(kinds),
        "words": words,
        "keys": [word_key(word) for word in words],
        "specification": manifest.specification.without_regions(),
        "sequences": manifest.sequences,
        "tokens": manifest.tokens,
    }


def context_columns() -> dict[str, ColumnArray]:
    """Return how the coordinate arrays are made of a run, by their names.

    ``context`` is a key, ``kind`` a place in ``kinds`` of the dictionaries, ``target`` the key of the word, or of
    the shorter context that a longer one extends. Their order is that of context, kind and target.
    """
    return {
        "context": ColumnArray(np.int64, lambda run: np.repeat(run.source, np.diff(run.pointer))),
        "kind": ColumnArray(np.int8, lambda run: unpack_target(run.target)[0]),
        "target": ColumnArray(np.int64, lambda run: unpack_target(run.target)[1]),
        "count": ColumnArray(np.int64, lambda run: run.strength),
    }


@contextmanager
def _word_counts(connections: OrderedConnections, _folder: Path) -> Iterator[Table]:
    """Yield the table of the words by key, and how often each occurs."""
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for block in connections.blocks(CONVERTED):
        kind, target, _ = unpack_target(block.target)
        found.append((target[kind == 0], block.strength[kind == 0].astype(np.int64)))
    key, count = (np.concatenate(part) for part in zip(*found, strict=True))
    yield Table.of({"key": key, "count": count})
