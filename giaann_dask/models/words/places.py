"""Index the words and endings of a batch of sentences, and find contexts by joining the places of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from giaann_dask.keys import Integers
from giaann_dask.models.results import BEGINNING, ContextPart
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings, divide_postings
from giaann_dask.runs.run import Run
from giaann_dask.text.segmentation import EncodedBlock, places_of

# Attributes of a word's postings: what of the token the key stands for.
AS_WORD, AS_ENDING = 1, 2
# Place of a token in all sequences: the sequence, then the position in it, of which 23 bits are used.
_POSITION_BITS = 23


def index_words(blocks: Sequence[EncodedBlock], stream: TokenStream, placement: Placement) -> dict[int, Run]:
    """Return the postings of the words of blocks of raw words and of their endings, by region.

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
    places = Postings(
        np.append(sequence, sequence[other]),
        np.append(stream.place, stream.place[other]),
        np.append(attributes, np.full(len(other), AS_ENDING)),
    )
    return divide_postings(np.append(word, ending[other]), places, placement)


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
