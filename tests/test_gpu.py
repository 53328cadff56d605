"""The dense step on a GPU gives the same bytes as on the CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from test_invariance import EVER, OPTIONS, TOKENS

from giaann_dask.device import select_device
from giaann_dask.network.connections import connect_batch
from giaann_dask.network.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import BlockBuilder
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tokens import TaggedSentence
from giaann_dask.text.vocabulary import Vocabulary, summarise


@pytest.mark.gpu
@pytest.mark.parametrize("factors", [{}, {"NOUN": 10.0, "VERB": 2.5}])
def test_connect_on_a_gpu(data_folder: Path, factors: dict[str, float]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    builder = BlockBuilder(EVER, dataclasses.replace(OPTIONS, parts_of_speech=True))
    sentences = [TaggedSentence(*zip(*(TOKENS[i:] + TOKENS[:i])[:11], strict=True)) for i in range(len(TOKENS))]
    builder.add_part([(0, sentences * 50)])
    tagged = builder.build()
    block = encode_block(tagged, Vocabulary().extend(summarise(tagged)), 2)
    specification = Specification(seed_tokens=6, pos_factors=factors)
    runs = [connect_batch([block], specification, Placement(4), select_device(name)) for name in ("cpu", "cuda")]
    assert runs[0].keys() == runs[1].keys()
    for region in runs[0]:
        for first, second in zip(*(run[region] for run in runs), strict=True):
            for field in dataclasses.fields(first):
                assert getattr(first, field.name).tobytes() == getattr(second, field.name).tobytes()
