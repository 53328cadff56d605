"""Replaying what can win against pushing every row: the same values, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st
from support.examples import examples
from support.generated import generate
from support.random_networks import FEATURES, OPTIONS, SPECIFICATIONS, assert_same, both, random_run

from giaann_dask.keys import pack_neuron
from giaann_dask.models.columns.state.activation import Layout, Pulse
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import Contribution, FlagTable, PreparedSequence, StepResult, StepTrace
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.runs.run import Row
from giaann_dask.spec import Specification
from giaann_dask.text.vocabulary import Vocabulary

NETWORKS = st.tuples(
    st.integers(0, 2**32),
    st.sampled_from(SPECIFICATIONS),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.integers(3, 12),
    st.one_of(st.integers(10, 24), st.integers(1, 24)),
)


def require_the_same_steps(
    seed: int,
    specification: Specification,
    options: InferenceOptions,
    fullness: float,
    size: int,
    length: int,
) -> None:
    rng = np.random.default_rng(seed)
    neurons = np.unique(pack_neuron(rng.integers(0, 3, size), rng.integers(0, FEATURES, size)))
    run = random_run(rng, specification, neurons, fullness)
    names = Vocabulary(*(rng.permutation(100)[:size].astype(str) for size in (3, FEATURES)), (), ())
    order = NameOrder.of(names) if rng.random() < 0.5 else NameOrder()
    flags = FlagTable(rng.random(FEATURES) < 0.5, rng.integers(-1, 3, FEATURES), order=order)
    neuron = rng.choice(neurons, length)
    sequence = PreparedSequence(neuron=neuron, noun=rng.random(length) < 0.4, number=1)
    pushed, pulled = both(run, flags, specification, options)
    traces: tuple[list[StepTrace], list[StepTrace]] = ([], [])
    stops = [x.run_sequence(sequence, observer=t.append).stop for x, t in zip((pushed, pulled), traces, strict=True)]
    assert stops[0] == stops[1]
    assert_same(*traces)
    event(f"predicted {any(step.result.predicted is not None for step in traces[0])}")
    begin = len(traces[0])
    prompt = PreparedSequence(neuron=neuron[:6], noun=sequence.noun[:6], number=1)
    one = generate(pushed, prompt, 8, observer=traces[0].append)
    other = generate(pulled, prompt, 8, observer=traces[1].append)
    assert_same(traces[0][begin:], traces[1][begin:])
    assert (other.tokens, other.stop, other.steps) == (one.tokens, one.stop, one.steps)
    for step in one.steps:
        reasons = reasons_of_whole_rows(pushed, one.steps, step.index)
        assert pulled.explain(other.steps, step.index) == pushed.explain(one.steps, step.index) == reasons


def reasons_of_whole_rows(session: Session, steps: Sequence[StepResult], index: int) -> tuple[Contribution, ...]:
    """The connections that raise entries of the predicted neuron while whole rows are pushed into a state."""
    neuron = steps[index].predicted
    if neuron is None:
        return ()
    layout, state = Layout.of(session.specification), session.new_state()
    entries, found = layout.entries(neuron), list[Contribution]()
    for step in steps[: index + 1]:
        row = session.rows.row(step.source) or Row(np.zeros(0, np.int64), np.zeros(0, np.int32))
        if step.index:
            before, drive = state.values(entries), layout.drives[step.activity or 0]
            times = {"column_time": step.column_time, "feature_time": step.index - 1}
            state.propagate(row.target, Pulse(source=step.source, drive=drive, **times))
            rise = state.values(entries) - before
            for segment, branch in np.argwhere(rise > 0).tolist():
                at = row.target.searchsorted(entries[segment, branch : branch + 1])
                (strength,) = session.specification.strengths(row.strength[at]).tolist()
                rose = float(rise[segment, branch])
                found.append(Contribution(step.index, step.source, segment, branch, strength, rose))
        else:
            state.burst(step.source)
        state.deactivate(step.source)
        if step.source == neuron:
            left = state.values(entries)
            found = [item for item in found if left[item.segment, item.branch] > 0]
        if step.seed and step.next is not None:
            state.burst(step.next)
    return tuple(found)


@examples(60)
@given(NETWORKS)
def test_the_same_steps_as_pushing(network: tuple[Any, ...]) -> None:
    require_the_same_steps(*network)
