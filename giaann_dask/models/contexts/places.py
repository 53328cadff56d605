"""Index the words and endings of a batch of sentences; contexts are found by joining those of their parts.

What a sequence added to a count follows from these places alone (`giaann_dask.tracing.index`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from giaann_dask.models.contexts.kinds import TokenStream
from giaann_dask.models.token_places import divide_postings, places_of
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import Run
from giaann_dask.text.segmentation import EncodedBlock

# Attributes of a word's postings: what of the token the key stands for.
AS_WORD, AS_ENDING = 1, 2


def index_words(blocks: Sequence[EncodedBlock], stream: TokenStream, placement: Placement) -> dict[int, Run]:
    """Return the postings of the words of blocks of raw words and of their endings, by region.

    Parameters
    ----------
    blocks : sequence of EncodedBlock
        The blocks.
    stream : TokenStream
        Their tokens (`giaann_dask.models.contexts.increments.stream_tokens`).
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
