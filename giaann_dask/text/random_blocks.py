"""Make encoded blocks of random sequences, for measurements."""

from __future__ import annotations

import numpy as np

from giaann_dask.text.segmentation import EncodedBlock, number_branches

# Tokens of a sequence, in columns of four.
TOKENS = 25
# Largest numbers of concepts and of features.
CONCEPTS, FEATURES = 20_000, 10_000


def random_block(sequences: int, seed: int = 1) -> EncodedBlock:
    """Return sequences of 25 tokens in columns of 4 with words of a Zipf distribution.

    Examples
    --------
    >>> len(random_block(3).column)
    75
    """
    rng = np.random.default_rng(seed)
    tokens = sequences * TOKENS
    position = np.tile(np.arange(TOKENS), sequences)
    occurrence = position // 4
    concepts = np.minimum(rng.zipf(1.3, (sequences, TOKENS // 4 + 1)), CONCEPTS)
    column = concepts[np.repeat(np.arange(sequences), TOKENS), occurrence].astype(np.int32)
    # The second token of each column is its noun; the last column has one token, its noun.
    noun = (position % 4 == 1) | (position == TOKENS - 1)
    feature = np.where(noun, 0, np.minimum(rng.zipf(1.4, tokens), FEATURES)).astype(np.int32)
    sequence = np.repeat(np.arange(sequences), TOKENS)
    none = np.full(tokens, -1, np.int32)
    return EncodedBlock(
        offsets=np.arange(sequences + 1) * TOKENS,
        status=np.zeros(sequences, np.uint8),
        column=column,
        feature=feature,
        branch=number_branches((column.astype(np.int64) << 25) | feature, sequence, 2),
        occurrence=occurrence.astype(np.uint16),
        flags=(feature == 0).astype(np.uint8),
        surface=none,
        document=np.zeros(sequences, np.int32),
        sentence=np.arange(sequences, dtype=np.int32),
        surfaces=(),
        first_sequence=0,
    )
