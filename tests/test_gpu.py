"""The dense step and the steps of inference on a GPU give the same bytes as on the CPU.

Needs pytest, NumPy, numba, PyTorch and the checkout, so that it can be carried to any machine with a GPU.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from support.random_networks import FEATURES, SPECIFICATIONS, assert_same, random_prompts, random_run
from support.random_networks import OPTIONS as OPTIONS_OF_INFERENCE
from support.tagged_tokens import EVER, OPTIONS, TOKENS

from giaann_dask.device import select_device
from giaann_dask.increments.connections import connect_batch
from giaann_dask.inference.batch import BatchOptions, run_prompts
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import StepTrace
from giaann_dask.inference.v1.pull_batch import PullBatch
from giaann_dask.keys import pack_neuron
from giaann_dask.runs.placement import Placement
from giaann_dask.spec import Specification
from giaann_dask.text.block_building import BlockBuilder
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tokens import TaggedSentence
from giaann_dask.text.vocabulary import Vocabulary, summarise


@pytest.mark.gpu
@pytest.mark.parametrize("factors", [{}, {"NOUN": 10.0, "VERB": 2.5}])
def test_connect_on_a_gpu(factors: dict[str, float]) -> None:
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


@pytest.mark.gpu
@pytest.mark.parametrize("options", OPTIONS_OF_INFERENCE, ids=str)
def test_steps_of_a_batch_on_a_gpu(options: InferenceOptions) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rng = np.random.default_rng(5)
    for specification in SPECIFICATIONS:
        neurons = np.unique(pack_neuron(rng.integers(0, 4, 12), rng.integers(0, FEATURES, 12)))
        rows = RunRows([random_run(rng, specification, neurons, 0.4)], lambda _: 0)
        prompts = [prompt for _ in range(6) for prompt in random_prompts(rng, neurons, 20)]
        found = []
        for device in (None, select_device("cuda")):
            batch = PullBatch(specification, rows, options=options, batch=BatchOptions(slots=9), device=device)
            steps: dict[int, list[StepTrace]] = {}
            for advance in run_prompts(batch, prompts):
                steps.setdefault(advance.number, []).extend(advance.traces)
            found.append(steps)
        for number in range(len(prompts)):
            assert_same(found[0][number], found[1][number])
