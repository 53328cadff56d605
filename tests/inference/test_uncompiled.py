"""Predictions that NumPy alone computes, before numba is imported: the same bits as those of compiled code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numba  # noqa: F401 - so that public functions take compiled code here
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.small_limits import store_all_tables
from test_packed_counts import random_rows, require_same
from test_pooled_scores import OTHERS, SOME, WEIGHTS, Documents, tables_of

import giaann_dask as gd
from benchmarks.choose_weights import with_weights
from giaann_dask.data import sample_text
from giaann_dask.models.contexts import uncompiled
from giaann_dask.models.contexts.context_rows import Rows
from giaann_dask.models.contexts.kernel import exponentials, exponentials_of, logarithms_of, logarithms_of_more
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.packed_counts import FIELDS, PackedCounts, decoding_of
from giaann_dask.models.contexts.scores import LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.span_kernel import distribution
from giaann_dask.models.contexts.tables import PRIOR_COUNTS, chain_shares, compute_evidence
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.spec import NEURON_BITS


@examples(20)
@given(st.integers(0, 1 << 32), st.sampled_from([1, 7, 300]), st.sampled_from([1, 40, 2000]))
def test_rows_are_those_of_compiled_code(seed: int, rows: int, longest: int) -> None:
    rng = np.random.default_rng(seed)
    contexts = [random_rows(rng, rows, longest) for _ in range(1, len(CONTEXTS))]
    links = [each._replace(counts=rng.integers(1, each.counts + 1)) for each in contexts[: CHAIN - 1]]
    packed = PackedCounts.pack(contexts, [*links, contexts[CHAIN - 1]])
    for kind in (1, CHAIN, CHAIN + 1):
        wanted = np.unique(np.concatenate([[-1], contexts[kind - 1].keys, rng.integers(0, 1 << NEURON_BITS, 20)]))
        codes = decoding_of(packed.lengths[kind - 1])
        where = packed.bits, packed.begins, packed.kinds[kind - 1], codes
        *columns, longer, row_of = uncompiled.read_rows(*where, wanted, kind < CHAIN, FIELDS)
        expected, other_longer, other_row_of = packed.rows(kind, wanted)
        require_same(Rows(*columns), expected)
        assert (longer.tolist(), row_of.tolist()) == (other_longer.tolist(), other_row_of.tolist())


@examples(20)
@given(SOME, OTHERS, WEIGHTS, st.integers(0, CHAIN), st.sampled_from([0, 3, 1500]))
def test_probabilities_are_those_of_compiled_code(
    training: Documents, tested: Documents, weights: list[list[float]], chain: int, remembered: int
) -> None:
    tables = tables_of(training)
    options = with_weights(PoolingOptions(remembered_tokens=remembered, chain=chain), np.array(weights))
    model, stream = LogLinearModel(tables, options), TokenStream.from_documents(tested)
    part, evidence = model.with_evidence(stream, model.numbered(stream), 0, len(stream))
    for now in range(len(stream)):
        expected, rest = distribution(part, evidence, options.pooling, now)
        found, other = uncompiled.distribution(part, evidence, options.pooling, now)
        assert (found.tobytes(), other) == (expected.tobytes(), rest)


def test_evidence_and_shares_are_those_of_compiled_code() -> None:
    rng = np.random.default_rng(5)
    rows = random_rows(rng, 50, 300)
    share = rng.random(int(rows.word.max()) + 1) / 1000
    found, expected = np.empty(len(rows.word), np.float32), np.empty(len(rows.word), np.float32)
    compute_evidence(rows.word, rows.counts, PRIOR_COUNTS * share, np.zeros((0, 0), np.float32), expected)
    uncompiled.add_evidence(rows.word, rows.counts, PRIOR_COUNTS * share, np.zeros((0, 0), np.float32), found)
    assert found.tobytes() == expected.tobytes()
    discounts = np.array([0.0, 0.6, 0.9, 1.3])
    shares, freed = np.empty(len(rows.word), np.float32), np.empty(len(rows.keys))
    uncompiled.divide(rows.pointer, rows.counts, discounts, shares, freed)
    assert [each.tobytes() for each in chain_shares(rows, discounts)] == [shares.tobytes(), freed.tobytes()]


def test_functions_of_arrays_are_those_of_compiled_code() -> None:
    rng = np.random.default_rng(3)
    for values in (rng.normal(0, 300, 1001), rng.normal(0, 1e-3, 1001), np.array([0.0, -0.0, 708.5, -1e9, 1e300])):
        found, spare = np.empty_like(values), np.empty_like(values)
        exponentials(values, len(values), found, spare)
        assert exponentials_of(values).tobytes() == found.tobytes()
        logarithms_of_more(np.abs(values), len(values), found, spare)
        assert logarithms_of(np.abs(values)).tobytes() == found.tobytes()


_GENERATE = """
import json, sys
import giaann_dask as gd
from benchmarks.choose_weights import with_weights
plain = gd.open(sys.argv[1]).generate(sys.argv[2], max_tokens=3)
before = "numba" in sys.modules
import numba
compiled = gd.open(sys.argv[1]).generate(sys.argv[2], max_tokens=3)
print(json.dumps([plain.as_dict(), compiled.as_dict(), before]))
"""


@pytest.mark.parametrize("tables", [False, True], ids=["rows", "tables"])
def test_a_new_process_predicts_without_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: bool) -> None:
    """What the first tokens of a process take from rows and from stored tables, with the same probabilities."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store_all_tables(monkeypatch)
    network = str(tmp_path / "network")
    with gd.connect(workers=0) as client:
        gd.train(sample_text(), network, profile="contexts", client=client)
        if tables:
            gd.open(network).score(["The old miller carried the flour to the baker in the old village."], client=client)
    assert (tmp_path / "cache").exists() == tables
    command = [sys.executable, "-c", _GENERATE, network, "The old miller carried the"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    plain, compiled, imported = json.loads(printed)
    assert plain == compiled
    assert not imported
