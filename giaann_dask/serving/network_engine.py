"""An engine that continues prompts from one commit, many of them a step at a time.

Covers: opening the commit, whole or from the workers that hold its regions, and generation token by
token with candidates and concept columns. Does not cover: how prompts share steps (`shared_batch`) and
who asks (`line`).
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

# For an answer of the cluster, when somebody asks how the server is.
_LOOK_S = 3.0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How a network is opened and asked.

    Parameters
    ----------
    inference : InferenceOptions, V2Settings or V2Options
        Rules of inference, which must fit the network; predictions are always fed.
    tagger : str
        How prompts are tagged.
    device : str
        Device of the activation state.
    rows : RowOptions
        How this process comes by the network's rows.
    places : int
        Prompts that share a step at most.
    state : StateOptions
        How much of the whole activation of a prompt is held here, where it has to be known. What passes that
        goes to the cluster's workers, who say which concept columns are the strongest.
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
    """Continues prompts from a commit that is held here, or by workers that are asked for its rows.

    What is trained meanwhile changes nothing. All prompts share their steps. Each is advanced
    by itself where the whole activation has to be known, for concept columns; of those, as many are in the
    middle of a step as there are processors.

    Parameters
    ----------
    client : Client
        Where the regions are opened; has to stay connected as long as the engine is used.
    reader : CommitReader
        The commit that answers.
    options : EngineOptions, optional
        How it is opened and asked.

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
        # Taggers load their words when first used: not while a client waits.
        with suppress(PromptError):
            opened.prepare("the word", self._options.tagger)
        slots = BatchOptions(slots=self._options.places)
        self._rules = fitting_rules(opened.specification, self._options.inference)
        self._device = rules_device(self._rules, self._options.device)
        self._shared = SharedBatch(
            open_batch(opened.specification, opened.rows, options=self._rules, batch=slots, device=self._device)
        )
        # More would only wait for each other in the middle of their steps, and be slower all together.
        self._processors = threading.Semaphore(os.cpu_count() or 1)

    @property
    def name(self) -> str:
        """Name of the network's folder."""
        return self._name

    @property
    def commit(self) -> str:
        """Identity of the commit that answers."""
        return self._commit

    @property
    def draws(self) -> bool:
        """False: activations are no probabilities."""
        return False

    def trouble(self) -> str | None:
        """Return what keeps rows from being had now; see `Engine.trouble`."""
        return self._opened.trouble(_LOOK_S)

    def lost(self) -> bool:
        """Return whether the cluster that held the rows is lost."""
        return self._opened.lost()

    def close(self) -> None:
        """End what is under way; nothing is continued after that."""
        self._shared.close()

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt; see `Engine.complete`."""
        tell = self._opened.observer
        tell(PromptsAdvanced(entered=1))
        try:
            with closing(self._complete(prompt, options)) as parts:
                for part in parts:
                    if isinstance(part, Token):
                        tell(PromptsAdvanced(tokens=1))
                    yield part
        finally:
            tell(PromptsAdvanced(left=1))

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
