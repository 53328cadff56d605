"""An activation beyond its limit ends its prompt with an error; the other prompts go on."""

from __future__ import annotations

from contextlib import closing

import pytest
from support.serving_engines import parts_of
from support.stored_networks import reader_of

import giaann_dask as gd
from giaann_dask.data import sample_text
from giaann_dask.errors import OptionError, PromptError, StateTooLargeError
from giaann_dask.models import model_of
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.generation_options import StateOptions
from giaann_dask.serving.engine import CompletionOptions, Engine

SHORT, LONG = "The old miller", "The old miller carried the flour to the baker and the horse drew the cart to the mill"
OPTIONS = gd.GenerationOptions(max_tokens=3, reasons=0)


@pytest.fixture(scope="module", params=["v1", "v2"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    with gd.connect(workers=0) as client:
        specification = gd.Specification(profile=request.param)
        return gd.train(
            sample_text(), tmp_path_factory.mktemp("net") / "net", client=client, specification=specification
        )


def limit_between(network: gd.Network) -> StateOptions:
    """Return a limit that the activation of the longer prompt exceeds, and that of the shorter one does not."""
    predictor = model_of(network.specification).open(reader_of(network), client=None, options=OPTIONS)
    for size in (1 << bits for bits in range(8, 24)):
        state = StateOptions(state_bytes=size)
        with closing(Engine(predictor, OPTIONS, gd.BatchOptions(state=state))) as engine:
            try:
                parts_of(engine, SHORT, CompletionOptions(tokens=3, columns=1))
            except StateTooLargeError:
                continue
            return state
    raise AssertionError("no limit is large enough")


def test_an_activation_beyond_the_limit_ends_its_prompt_alone(network: gd.Network) -> None:
    state = limit_between(network)
    predictor = model_of(network.specification).open(reader_of(network), client=None, options=OPTIONS)
    with closing(Engine(predictor, OPTIONS, gd.BatchOptions(state=state))) as engine:
        wanted = CompletionOptions(tokens=3, columns=2)
        with pytest.raises(StateTooLargeError, match=r"takes [\d,]+ bytes; expected at most [\d,]+; .*state_bytes"):
            parts_of(engine, LONG, wanted)
        shown = [part for part in parts_of(engine, SHORT, wanted) if isinstance(part, TokenEvent) and part.token]
        assert shown[0].columns, "another prompt goes on"
    assert issubclass(StateTooLargeError, PromptError)
    assert issubclass(StateTooLargeError, MemoryError)


def test_a_batch_of_v2_goes_on_without_the_prompt(network: gd.Network) -> None:
    if network.specification.profile != "v2":
        pytest.skip("batches of v1 hold no whole activation")
    predictor = model_of(network.specification).open(reader_of(network), client=None, options=OPTIONS)
    batch = predictor.open_batch(OPTIONS, gd.BatchOptions(state=limit_between(network)))
    long, short = (batch.prepare(prompt, OPTIONS).enter() for prompt in (LONG, SHORT))
    events: list[TokenEvent] = []
    while len(batch):
        events += batch.step()
    (failed,) = [event for event in events if event.error is not None]
    assert failed.number == long
    assert failed.finished
    tokens = [event.token.word for event in events if event.number == short and event.token is not None]
    assert tokens == [token.word for token in network.generate(SHORT, options=OPTIONS).tokens]
    assert tokens


def test_a_limit_below_one_entry_is_refused() -> None:
    for wrong in ({"state_bytes": 15}, {"columns": -1}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            StateOptions(**wrong)
