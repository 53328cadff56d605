"""Continue prompts of a server with a network of columns, token by token, with candidates and concept columns.

The commit is opened here or read from the workers that hold its regions. Does not cover: the batch that prompts share
(`giaann_dask.serving.shared_batch`) and the queue before it (`giaann_dask.serving.request_queue`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from distributed import Client

from giaann_dask.device import one_thread
from giaann_dask.diagnostics.monitoring.reporter import reporter_of
from giaann_dask.errors import PromptError
from giaann_dask.events import PromptsAdvanced
from giaann_dask.inference.batch import BatchOptions, Prompt
from giaann_dask.inference.continuation import Candidate
from giaann_dask.inference.generation import best_candidates, word_and_column
from giaann_dask.inference.handle import changed_flags
from giaann_dask.inference.profiles import RequestedRules, fitting_rules, open_batch, open_plain_session, rules_device
from giaann_dask.inference.rows.remote import RowOptions
from giaann_dask.inference.sessions import NetworkHandle
from giaann_dask.inference.sharded.workers import ShardedSession, StateOptions
from giaann_dask.inference.state.active_columns import ActiveColumns
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.state.sequence import FlagTable, StepTrace
from giaann_dask.inference.v1.push_session import Session
from giaann_dask.inference.v2.session import V2Session
from giaann_dask.serving.engine import ActiveColumn, CompletionOptions, Ended, Given, Part, Token
from giaann_dask.serving.shared_batch import SharedBatch
from giaann_dask.serving.step_slots import with_step_slot
from giaann_dask.store.network_store import CommitReader
from giaann_dask.text.tagging import check_tagger
from giaann_dask.text.vocabulary import Vocabulary

# For a response of the cluster to a health check.
_HEALTH_S = 3.0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of opening a network, and its rules of inference.

    Parameters
    ----------
    inference : InferenceOptions, V2Settings or V2Options
        Rules of inference, which must fit the network; predictions are always fed.
    tagger : str
        How prompts are tagged.
    device : str
        Device of the activation state.
    rows : RowOptions
        How this process fetches the network's rows.
    places : int
        Prompts that share a step at most.
    state : StateOptions
        Memory budget in this process for the whole activation state of a prompt, where that is needed. Beyond it
        the state is sharded over the cluster's workers, which return the strongest concept columns.
    """

    inference: RequestedRules = field(default_factory=lambda: InferenceOptions(feed="prediction"))
    tagger: str = "lexicon"
    device: str = "auto"
    rows: RowOptions = field(default_factory=RowOptions)
    places: int = 32
    state: StateOptions = field(default_factory=StateOptions)

    def __post_init__(self) -> None:
        check_tagger(self.tagger)


class NetworkEngine:
    """Engine over a commit that is in this process, or whose rows are fetched from workers.

    Later training does not change it. All prompts share the steps of one batch. A prompt whose whole activation
    state is needed, for concept columns, advances by itself; of those, at most as many do a step simultaneously as
    there are processors.

    Parameters
    ----------
    client : Client
        Where the regions are opened; has to stay connected as long as the engine is used.
    reader : CommitReader
        The commit that predicts.
    options : EngineOptions, optional
        How it is opened.

    Raises
    ------
    ClusterError
        If the cluster does not open the regions in time.
    """

    def __init__(self, client: Client, reader: CommitReader, options: EngineOptions | None = None) -> None:
        self._options = options or EngineOptions()
        self._client = client
        self._name, self._commit = reader.path.resolve().name, reader.commit
        self._opened = opened = NetworkHandle(
            reader, client=client, rows=self._options.rows, observer=reporter_of(client)
        )
        # Taggers load their words when first used; here, so that no request waits for it.
        with suppress(PromptError):
            opened.prepare("the word", self._options.tagger)
        slots = BatchOptions(slots=self._options.places)
        self._rules = fitting_rules(opened.specification, self._options.inference)
        self._device = rules_device(self._rules, self._options.device)
        self._shared = SharedBatch(
            open_batch(opened.specification, opened.rows, options=self._rules, batch=slots, device=self._device)
        )
        # More would only compete for processors in the middle of their steps, and be slower in total.
        self._processors = threading.Semaphore(os.cpu_count() or 1)

    @property
    def name(self) -> str:
        """Name of the network's folder."""
        return self._name

    @property
    def commit(self) -> str:
        """Identity of the commit that predicts."""
        return self._commit

    @property
    def draws(self) -> bool:
        """False: activations are no probabilities."""
        return False

    def trouble(self) -> str | None:
        """Return why rows cannot be fetched now; see `Engine.trouble`."""
        return self._opened.trouble(_HEALTH_S)

    def lost(self) -> bool:
        """Return whether the cluster that held the rows is lost."""
        return self._opened.lost()

    def close(self) -> None:
        """End all generations; none can be started after that."""
        self._shared.close()

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt; see `Engine.complete`."""
        observe = self._opened.observer
        observe(PromptsAdvanced(entered=1))
        try:
            with closing(self._complete(prompt, options)) as parts:
                for part in parts:
                    if isinstance(part, Token):
                        observe(PromptsAdvanced(tokens=1))
                    yield part
        finally:
            observe(PromptsAdvanced(left=1))

    def _complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        opened = self._opened
        prepared, vocabulary = opened.prepare(prompt, self._options.tagger)
        flags = changed_flags(opened.flags_for(self._rules), prepared.change)
        yield Given(prepared.words, opened.specification.tokens == "subwords")
        if options.columns:
            session = self._whole(flags, options.columns)
            with one_thread():
                steps = session.stream(prepared.sequence, options.tokens)
                yield from _parts(with_step_slot(steps, self._processors), vocabulary, options)
        else:
            given = Prompt(sequence=prepared.sequence, flags=flags, tokens=options.tokens)
            with closing(self._shared.run(given)) as shared:
                yield from _parts(shared, vocabulary, options)

    def _whole(self, flags: FlagTable, columns: int) -> ShardedSession | Session | V2Session:
        """Open a session whose traces have the whole activation, or, beyond its budget, the strongest columns."""
        network = (self._opened.specification, self._opened.rows, flags)
        if isinstance(self._rules, InferenceOptions):
            return ShardedSession(
                *network,
                client=self._client,
                options=self._rules,
                device=self._device,
                state=replace(self._options.state, columns=columns),
            )
        return open_plain_session(*network, options=self._rules, device=self._device)


def _parts(
    steps: Iterable[StepTrace | None], vocabulary: Vocabulary, options: CompletionOptions
) -> Generator[Part | None, None, None]:
    for trace in steps:
        if trace is None or trace.result.seed:
            yield None
        elif trace.result.predicted is None:
            yield Ended(trace.result.stop)
            return
        else:
            yield _token(trace, trace.result.predicted, vocabulary, options)
    yield Ended(None)


def _token(trace: StepTrace, neuron: int, vocabulary: Vocabulary, options: CompletionOptions) -> Token:
    """Return what a step predicted, in words."""
    assert trace.candidates is not None
    best, values = best_candidates(trace.candidates, options.candidates, neuron)
    candidates = tuple(
        Candidate(*word_and_column(int(n), vocabulary), float(v)) for n, v in zip(best, values, strict=True)
    )
    columns = active_columns(trace, options.columns, vocabulary) if options.columns else ()
    value = float(trace.result.value or 0.0)
    return Token(*word_and_column(neuron, vocabulary), value, len(trace.candidates), candidates, columns)


def active_columns(trace: StepTrace, count: int, vocabulary: Vocabulary) -> tuple[ActiveColumn, ...]:
    """Return the concept columns with the largest activation after a step.

    Parameters
    ----------
    trace : StepTrace
        The step; without its state, or its columns, there are none.
    count : int
        Columns to return at most.
    vocabulary : Vocabulary
        Names of the columns.

    Returns
    -------
    tuple of Column
        Those with some activation, the largest first, ties in the order of columns.
    """
    lit = trace.lit if trace.state is None else ActiveColumns.of(trace.state)
    if lit is None:
        return ()
    found = lit.strongest(count)
    pairs = zip(found.column.tolist(), found.activation.tolist(), strict=True)
    return tuple(ActiveColumn(vocabulary.concepts[column], activation) for column, activation in pairs)
