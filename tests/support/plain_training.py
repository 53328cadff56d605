"""Train by the rules read literally, to compare compiled code with."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.tokens import TaggedSentence
from support.tagged_tokens import TOKENS

sentences = st.lists(
    st.lists(st.sampled_from(TOKENS), min_size=5, max_size=14).map(
        lambda tokens: TaggedSentence(*zip(*tokens, strict=True))
    ),
    min_size=1,
    max_size=14,
)


def arrays(run: Run | None) -> list[bytes]:
    """Return the bytes of a table's arrays; none of an index that the network does not have."""
    return [] if run is None else [getattr(run, f.name).tobytes() for f in dataclasses.fields(run)]


def naive_connections(block: EncodedBlock, specification: Specification) -> dict[tuple[int, ...], int]:
    """Rule 6 read literally."""
    found: dict[tuple[int, ...], int] = {}
    weight = specification.increments()
    columns, features = specification.column_segments, specification.feature_segments
    for q in np.flatnonzero(block.status == CANDIDATE):
        low, high = block.offsets[q], block.offsets[q + 1]
        for i in range(low, high):
            for j in range(i + 1, high):
                gap = int(block.occurrence[j]) - int(block.occurrence[i])
                for segment in (max(columns - 1 - gap, 0), columns + features - min(j - i, features)):
                    key = (
                        block.column[i],
                        block.feature[i],
                        segment,
                        block.column[j],
                        block.feature[j],
                        block.branch[j],
                    )
                    found[key] = found.get(key, 0) + int(weight[j - i])
    return found
