"""Continue many prompts together in this process: open a commit, prepare prompts and put predictions into words.

A prompt never depends on another: each expands a copy of the dictionaries. Does not cover: profile ``best``
(`giaann_dask.inference.best.handle`), a whole continuation as one task of a cluster
(`giaann_dask.inference.generation`), and a server (`giaann_dask.serving`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from giaann_dask.cluster import result, results
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.device import one_thread, torch
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.events import Observer, PromptsAdvanced, ignore
from giaann_dask.inference.batch import Batch, BatchOptions, Prompt
from giaann_dask.inference.continuation import GeneratedToken, GenerationOptions
from giaann_dask.inference.generation import PreparedPrompt, RawToken, best_candidates, in_words, prepare_prompt
from giaann_dask.inference.handle import CommitHandle, changed_flags, flags_of, open_flags_with
from giaann_dask.inference.profiles import (
    InferenceRules,
    fitting_rules,
    open_batch,
    open_plain_session,
    open_whole_session,
    prompt_device,
)
from giaann_dask.inference.rows.messages import RowProjection
from giaann_dask.inference.rows.opening import OpeningRows
from giaann_dask.inference.rows.remote import RegionKeys, RemoteRows, RowOptions, row_source
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.rows.stored import StoredRows
from giaann_dask.inference.sharded.sessions import ShardedSession
from giaann_dask.inference.state.activation import ActiveColumns
from giaann_dask.inference.state.options import StateOptions
from giaann_dask.inference.state.sequence import FlagTable, PreparedSequence, StepResult, StepTrace
from giaann_dask.inference.token_events import (
    ActiveColumn,
    ContinuationStream,
    OpenNetwork,
    PreparedText,
    TokenEvent,
    WorkerOpening,
)
from giaann_dask.inference.v1.session import Session
from giaann_dask.inference.v2.session import V2Session
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client


class NetworkHandle:
    """A commit of columns opened for sessions in this process; later training does not change it.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    client : Client, optional
        Of the cluster that holds its regions; without one they are read into this process.
    rows : RowOptions, optional
        How rows are fetched from a cluster.
    strengths : bool
        Whether rows are fetched with their strengths, which explanations need.
    observer : callable, optional
        Called when prompts enter, advance or leave.
    regions : sequence of Run, or RegionKeys, optional
        Where this is a task: the regions of the commit, or where to request their rows.
    """

    def __init__(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        rows: RowOptions | None = None,
        strengths: bool = False,
        observer: Observer = ignore,
        regions: Sequence[Run] | RegionKeys | None = None,
    ) -> None:
        self.observer = observer
        self.commit, self.lexicon = reader.commit, reader.tokenizer() or reader.ever_pos()
        self.specification = reader.manifest().specification
        self.vocabulary = reader.saved_vocabulary()
        self.flags = flags_of(self.vocabulary, self.specification.is_order_free)
        self._flags: dict[tuple[str, ...], FlagTable] = {(): self.flags}
        self._client, self._reader = client, reader
        # Keeps the regions on the workers.
        self._handle: CommitHandle | None = None
        self.rows: RunRows | RemoteRows | StoredRows | OpeningRows
        # Of profile v2 only the train-set settings do without them.
        projection = RowProjection(strengths=strengths or self.specification.profile != "v1")
        if regions is not None:
            self.rows = row_source(reader.placement(), regions, projection=projection)
            return
        if client is None:
            self.rows = StoredRows(reader)
            return
        self._handle = CommitHandle(client, reader, rows)
        opened = self._handle.regions
        if opened.keys is None:
            placement, futures = reader.placement(), opened.futures
            self.rows = OpeningRows(
                StoredRows(reader, whole=False), lambda: RunRows.placed(placement, results(futures))
            )
        else:
            self.rows = RemoteRows.of_client(client, reader.placement(), opened.keys, projection=projection)

    @property
    def profile(self) -> str:
        """Profile of the network."""
        return self.specification.profile

    @property
    def subwords(self) -> bool:
        """Whether tokens are subwords."""
        return self.specification.tokens == "subwords"

    @property
    def draws(self) -> bool:
        """False: activations are no probabilities."""
        return False

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> ColumnBatch:
        """Return an empty batch of prompts; see `ColumnBatch`."""
        return ColumnBatch(self, options, batch)

    def flags_for(self, rules: InferenceRules) -> FlagTable:
        """Return the stored flags with the auxiliary source neurons that rules of inference ask for."""
        kinds = rules.auxiliary
        if kinds not in self._flags:
            if self._handle is None:
                self._flags[kinds] = open_flags_with(self._reader, self.flags, kinds)
            else:
                self._flags[kinds] = result(self._handle.flags(kinds))
        return self._flags[kinds]

    def keep_flags(self, kinds: tuple[str, ...], flags: FlagTable) -> None:
        """Keep the stored flags with these kinds of auxiliary source neurons, which were computed elsewhere."""
        self._flags[kinds] = flags

    def open_whole_session(
        self, flags: FlagTable, rules: InferenceRules, device: torch.device | None, state: StateOptions
    ) -> ShardedSession | Session | V2Session:
        """Return a session for one prompt whose traces have the whole activation, or its strongest columns."""
        network = (self.specification, self.rows, flags)
        return open_whole_session(*network, options=rules, device=device, client=self._client, state=state)

    def open_sequences(self, rules: InferenceRules, batch: BatchOptions | None, device: torch.device | None) -> Batch:
        """Return an empty batch of sequences that follow some rules."""
        network = (self.specification, self.rows)
        return open_batch(*network, options=rules, batch=batch, device=device, client=self._client)

    def trouble(self, within_s: float) -> str | None:
        """Return why rows are unavailable now, None when they are available.

        Parameters
        ----------
        within_s : float
            Seconds for an answer of the cluster.
        """
        return None if self._handle is None else self._handle.trouble(within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        return False if self._handle is None else self._handle.lost()

    def prepare(self, prompt: str, tagger: str) -> tuple[PreparedPrompt, Vocabulary]:
        """Divide a prompt into columns; return it with the dictionaries that its words have expanded.

        Raises
        ------
        PromptError
            If it cannot be divided.
        """
        vocabulary = self.vocabulary.copy()
        prepared = prepare_prompt(
            prompt, vocabulary, self.lexicon, specification=self.specification, tagger=tagger, flags=self.flags
        )
        return prepared, vocabulary


def columns_on_workers(client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
    """Return how tasks open a commit of columns on workers; its regions and flags are kept on the cluster.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    OptionError
        If the options do not fit the network.
    """
    handle = CommitHandle(client, reader, options.rows)
    kinds = fitting_rules(handle.specification, options.inference).auxiliary
    flags = handle.flags(kinds)
    arguments = (str(reader.path), reader.commit, handle.regions.argument, kinds, flags, options.reasons > 0)
    return WorkerOpening(
        open_columns,
        arguments,
        profile=handle.specification.profile,
        subwords=handle.specification.tokens == "subwords",
        draws=False,
        trouble=handle.trouble,
        lost=handle.lost,
    )


def open_columns(
    path: str,
    commit: str,
    regions: Sequence[Run] | RegionKeys,
    kinds: tuple[str, ...],
    flags: FlagTable,
    strengths: bool,
) -> NetworkHandle:
    """Open a commit of columns in a task; `flags` have the auxiliary source neurons of `kinds`."""
    from distributed import get_client

    reader = open_commit(path, commit)
    # Activation states that are too large for this worker are divided over others.
    opened = NetworkHandle(reader, client=get_client(), strengths=strengths, regions=regions)
    opened.keep_flags(kinds, flags)
    return opened


@dataclass(eq=False)
class _Text:
    """A prepared prompt, and its steps once it is in a batch."""

    sequence: PreparedSequence
    options: GenerationOptions
    vocabulary: Vocabulary
    flags: FlagTable
    steps: list[StepResult] = field(default_factory=list)


class ColumnBatch:
    """Prompts continued together over a network of columns; a `giaann_dask.inference.token_events.ContinuationBatch`.

    Parameters
    ----------
    opened : NetworkHandle
        The commit that predicts.
    options : GenerationOptions
        Rules of inference, tagger and device.
    batch : BatchOptions, optional
        How many prompts advance together.

    Raises
    ------
    OptionError
        If the options do not fit the network, or search with a beam.
    """

    def __init__(self, opened: NetworkHandle, options: GenerationOptions, batch: BatchOptions | None = None) -> None:
        options.require_fit(opened.specification)
        if options.beam.searches:
            beam = options.beam
            raise OptionError(
                f"beam width {beam.width} and depth {beam.depth}", "1 and 1 for sessions", "look ahead with generate"
            )
        self._opened, self._tagger = opened, options.tagger
        self._rules = fitting_rules(opened.specification, options.inference)
        self._device = device = prompt_device(options.device)
        self._batch = opened.open_sequences(self._rules, batch, device)
        self._texts: dict[int, _Text] = {}

    def __len__(self) -> int:
        """Return the number of prompts in the batch."""
        return len(self._texts)

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return self._batch.free_slots

    def prepare(self, prompt: str, options: GenerationOptions) -> PreparedText:
        """Divide a prompt into columns; see `ContinuationBatch.prepare`."""
        prepared, vocabulary = self._opened.prepare(prompt, self._tagger)
        flags = changed_flags(self._opened.flags_for(self._rules), prepared.change)
        text = _Text(prepared.sequence, options, vocabulary, flags)
        return PreparedText(prepared.words, partial(self._enter, text), partial(self._with_columns, text))

    def _enter(self, text: _Text) -> int:
        number = self._batch.enter(Prompt(sequence=text.sequence, flags=text.flags, tokens=text.options.tokens))
        self._texts[number] = text
        self._opened.observer(PromptsAdvanced(entered=1))
        return number

    def _with_columns(self, text: _Text, state: StateOptions) -> Generator[TokenEvent | None, None, None]:
        """Continue a prompt with the whole activation, or beyond its budget with the strongest columns."""
        observe = self._opened.observer
        session = self._opened.open_whole_session(text.flags, self._rules, self._device, state)
        observe(PromptsAdvanced(entered=1))
        try:
            with one_thread():
                length = len(text.sequence) + text.options.tokens
                for trace in session.stream(text.sequence, text.options.tokens):
                    text.steps.append(trace.result)
                    if trace.result.seed:
                        yield None
                        continue
                    token, last = self._token(text, trace), trace.result.index + 1 == length
                    columns = _active_columns(trace, state.columns, text)
                    observe(PromptsAdvanced(tokens=int(token is not None)))
                    yield TokenEvent(0, token, last or token is None, trace.result.end, columns=columns)
        finally:
            observe(PromptsAdvanced(left=1))

    def step(self) -> list[TokenEvent]:
        """Do the next step of every prompt; return the predictions in words."""
        events = []
        for advance in self._batch.step():
            text = self._texts[advance.number]
            for trace in advance.traces:
                text.steps.append(trace.result)
                if not trace.result.seed:
                    last = advance.finished and trace.result.index == advance.steps[-1]
                    events.append(TokenEvent(advance.number, self._token(text, trace), last, trace.result.end))
            if advance.finished:
                del self._texts[advance.number]
            made = sum(not result.seed and result.predicted is not None for result in advance.results)
            self._opened.observer(PromptsAdvanced(left=int(advance.finished), tokens=made))
        return events

    def leave(self, number: int) -> None:
        """Remove a prompt before its end; do nothing if it has left already."""
        if self._texts.pop(number, None) is not None:
            self._batch.leave(number)
            self._opened.observer(PromptsAdvanced(left=1))

    def _token(self, text: _Text, trace: StepTrace) -> GeneratedToken | None:
        """Return the prediction of a step, in words."""
        if trace.result.predicted is None or trace.candidates is None:
            return None
        reasons: tuple[tuple[int, int, int, int, float, float], ...] = ()
        if text.options.reasons:
            opened = self._opened
            session = open_plain_session(opened.specification, opened.rows, text.flags, options=self._rules)
            with one_thread():
                found = session.explain(tuple(text.steps), trace.result.index)
            ranked = sorted(found, key=lambda r: -r.contribution)[: text.options.reasons]
            reasons = tuple((r.step, r.source, r.segment, r.branch, r.strength, r.contribution) for r in ranked)
        best, values = best_candidates(trace.candidates, text.options.runners_up, trace.result.predicted)
        raw = RawToken(trace.result.predicted, best, values, trace.result.candidates, reasons)
        return in_words(raw, text.vocabulary)


def _active_columns(trace: StepTrace, count: int, text: _Text) -> tuple[ActiveColumn, ...]:
    """Return the concept columns with the largest activation after a step, ties in the order of the network."""
    state = trace.state
    active = trace.active_columns if state is None else ActiveColumns.of(state)
    if active is None:
        return ()
    found = active.strongest(count, text.flags.order)
    pairs = zip(found.column.tolist(), found.activation.tolist(), strict=True)
    return tuple(ActiveColumn(text.vocabulary.concepts[column], activation) for column, activation in pairs)


class Sessions(ContinuationStream):
    """Many prompts that are continued together, a step at a time; see `ContinuationStream`.

    Prompts are drawn as slots become free, and each finishes as soon as its own end is reached.

    Parameters
    ----------
    opened : OpenNetwork
        The commit that predicts, of any profile.
    prompts : iterable of str
        Some words each, with at least one noun in a network of columns; may be endless.
    options : GenerationOptions, optional
        How much is generated; without reasons by default, which take longer than the tokens.
    batch : BatchOptions, optional
        How many advance together.

    Raises
    ------
    OptionError
        If the options do not fit the network, or search with a beam.
    """

    def __init__(
        self,
        opened: OpenNetwork,
        prompts: Iterable[str],
        *,
        options: GenerationOptions | None = None,
        batch: BatchOptions | None = None,
    ) -> None:
        self._options = options or GenerationOptions(reasons=0)
        self._opened = opened
        self._batch = opened.open_batch(self._options, batch)
        # Indices of the prompts by their numbers in the batch.
        self._index: dict[int, int] = {}
        super().__init__(opened.commit, self._run(iter(prompts)), subwords=opened.subwords)

    def _run(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        try:
            yield from self._advance(prompts)
        finally:
            for number in [*self._index]:
                self._batch.leave(number)

    def _advance(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        waiting = enumerate(prompts)
        more = True
        while more or len(self._batch):
            while more and self._batch.free_slots:
                index, prompt = next(waiting, (-1, ""))
                more = index >= 0
                if more:
                    try:
                        text = self._batch.prepare(prompt, self._options)
                    except PromptError as error:
                        yield TokenEvent(index, None, True, error=error)
                    else:
                        self._index[text.enter()], self._words[index] = index, text.words
            for event in self._batch.step():
                index = self._index.pop(event.number) if event.finished else self._index[event.number]
                yield replace(event, number=index)
