"""Build networks again from their index alone, to compare both."""

from __future__ import annotations

import numpy as np

from giaann_dask.keys import unpack_neuron, word_key
from giaann_dask.models.columns.connections import TokenPlaces
from giaann_dask.models.contexts.kinds import count_kinds
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.words.model import AS_WORD
from giaann_dask.models.words.stream import TokenStream, ending_of
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import unpack
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import read_postings
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.blocks import POS_FLAGS
from giaann_dask.text.segmentation import EncodedBlock
from support.summed_increments import connect_summed


def stored(reader: CommitReader) -> RegionRun:
    """Connections, neurons and postings of all regions of a commit."""
    runs = [reader.run(run.identity) for run in reader.manifest().runs]
    postings = [unpack(run.postings) for run in runs if run.postings is not None]
    assert len(postings) == len(runs)
    return RegionRun(
        merge_runs([unpack(run.connections) for run in runs]),
        merge_runs([unpack(run.neurons) for run in runs]),
        merge_runs(postings),
    )


def rebuilt(postings: Run, specification: Specification, words: list[str]) -> tuple[Run, Run]:
    """Connections and neurons that the sequences of an index train, by the project's own increments."""
    source = np.repeat(postings.source, np.diff(postings.pointer))
    if not specification.traits.columns:
        rows = np.flatnonzero(postings.strength - 1 & AS_WORD)
        places = read_postings(postings.target, postings.strength)
        order = np.lexsort((places.position, places.sequence))
        # Sorted as read_postings does.
        keys = source[_order(postings)][order]
        chosen = (places.attributes & AS_WORD) != 0
        assert chosen.sum() == len(rows)
        named = {word_key(word): word for word in words}
        distinct, index = np.unique(keys[chosen], return_inverse=True)
        endings = np.array([word_key(ending_of(named[key])) for key in distinct.tolist()], np.int64)
        names = tuple(named[key] for key in distinct.tolist())
        document = places.sequence[chosen]
        stream = TokenStream(names, distinct, endings, index, places.position[chosen], document)
        kinds = [CONTEXT_NAMES.index(name) for name in specification.contexts]
        return count_kinds(stream, kinds), Run.empty()
    places = TokenPlaces.of(read_postings(postings.target, postings.strength))
    column, feature = unpack_neuron(source[_order(postings)])
    numbers, lengths = np.unique(places.sequence, return_counts=True)
    assert np.array_equal(places.position, np.concatenate([np.arange(length) for length in lengths.tolist()]))
    none = np.zeros(len(numbers), np.int32)
    # Some part of speech with the factor of each class of tokens; class 0 has none.
    part_of = {factor: POS_FLAGS[name] for name, factor in specification.pos_factors}
    flags = np.array([0, *(part_of[factor] for factor in sorted(part_of))], np.uint8)
    block = EncodedBlock(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        status=np.zeros(len(numbers), np.uint8),
        column=column.astype(np.int32),
        feature=feature.astype(np.int32),
        branch=places.branch.astype(np.uint8),
        occurrence=places.occurrence.astype(np.uint16),
        flags=flags[places.token_class],
        surface=np.zeros(0, np.int32),
        document=none,
        sentence=none,
        surfaces=(),
        first_sequence=0,
        train_mask=places.train_mask,
    )
    found = connect_summed([block], specification, Placement(1)).get(0, RegionRun(Run.empty(), Run.empty()))
    return found.connections, found.neurons


def _order(postings: Run) -> np.ndarray:
    """Order in which `read_postings` returns the entries of a run."""
    entries = np.arange(len(postings), dtype=np.int64)
    return read_postings(postings.target, entries + 1).attributes


def assert_index_agrees(reader: CommitReader) -> None:
    """Assert that the sequences in the index of a commit train exactly its network, and have their origins."""
    whole, specification = stored(reader), reader.manifest().specification
    assert whole.postings is not None
    found = rebuilt(whole.postings, specification, reader.vocabulary().features)
    for one, other in zip((whole.connections, whole.neurons), found, strict=True):
        for name in ("source", "pointer", "target", "strength"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
    origins, ledger = reader.origins(), reader.ledger()
    assert origins is not None
    assert origins.sequences == reader.manifest().sequences == sum(entry.sequences for entry in ledger)
    counted = np.zeros(len(ledger), np.int64)
    for each in origins.ranges:
        assert each.begin == counted[each.part]
        counted[each.part] += each.sequences
    assert counted.tolist() == [entry.sequences for entry in ledger]
