"""Continue prompts with a commit of columns opened in this process: prepare them, and put predictions into words.

A prompt never depends on another: each expands a copy of the dictionaries. Does not cover: sequences that advance
together (`giaann_dask.models.columns.batch`) and the rules of a step (`giaann_dask.models.columns.rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.cluster import result, results
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import PromptError
from giaann_dask.events import Observer, PromptsAdvanced, ignore
from giaann_dask.keys import pack_neuron, unpack_neuron, unpack_target
from giaann_dask.local_files import BYTE_ORDER_MARK
from giaann_dask.models.base import ActiveColumn, PreparedText, TokenEvent, WorkerOpening
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.flags import FlagChange, changed_flags, flags_of, open_flags_with, submit_flags
from giaann_dask.models.columns.rules import (
    InferenceRules,
    fitting_rules,
    open_batch,
    open_whole_session,
    prompt_device,
    require_fit,
)
from giaann_dask.models.columns.state.activation import ActiveColumns
from giaann_dask.models.columns.state.session import Contribution, FlagTable, PreparedSequence, StepResult, StepTrace
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, StateOptions, require_prompt
from giaann_dask.models.results import Candidate, ConnectionKey, GeneratedToken, Reason, largest_contributions
from giaann_dask.rows.protocol import RowProjection
from giaann_dask.rows.regions import RegionHandles, open_prompt_regions, open_regions, submit_placement
from giaann_dask.rows.remote import RegionKeys, RemoteRows, row_source
from giaann_dask.rows.source import RowStatistics, RunRows
from giaann_dask.rows.stored import KEPT_BYTES, OpeningRows, StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_TOKENS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.blocks import CANDIDATE, NO_CONCEPT, FilterOptions, noun_text
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tagging import make_builder, tag_part
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed import Client, Future

Rows = RunRows | RemoteRows | StoredRows | OpeningRows


class ColumnsPredictor:
    """A commit of columns opened in this process; later training does not change it.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    rows : RowSource
        Its rows.
    handle : CommitHandle, optional
        Keeps the regions on the workers that the rows come from.
    observer : callable, optional
        Called when prompts enter, advance or leave.
    """

    def __init__(
        self,
        reader: CommitReader,
        rows: Rows,
        *,
        handle: CommitHandle | None = None,
        observer: Observer = ignore,
    ) -> None:
        self.observer, self.rows = observer, rows
        self.commit, self.lexicon = reader.commit, reader.tokenizer() or reader.ever_pos()
        self.specification = reader.manifest().specification
        self.vocabulary = reader.saved_vocabulary()
        self.flags = flags_of(self.vocabulary, self.specification.is_order_free)
        self._flags: dict[tuple[str, ...], FlagTable] = {(): self.flags}
        self._reader, self._handle = reader, handle

    @property
    def profile(self) -> str:
        """Profile of the network."""
        return self.specification.profile

    @property
    def subwords(self) -> bool:
        """Whether tokens are subwords."""
        return self.specification.tokens == "subwords"

    @property
    def has_probabilities(self) -> bool:
        """False: activations are no probabilities."""
        return False

    @property
    def row_figures(self) -> RowStatistics | None:
        """Rows that were requested of workers so far; None where none are."""
        return self.rows.own_figures

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> ColumnBatch:
        """Return an empty batch of prompts; see `ColumnBatch`."""
        return ColumnBatch(self, options, batch)

    def flags_for(self, rules: InferenceRules) -> FlagTable:
        """Return the stored flags with the auxiliary source neurons that rules of inference ask for."""
        kinds = rules.tables
        if kinds not in self._flags:
            if self._handle is None:
                self._flags[kinds] = open_flags_with(self._reader, self.flags, kinds)
            else:
                self._flags[kinds] = result(self._handle.flags(kinds))
        return self._flags[kinds]

    def over(self, rows: Rows) -> ColumnsPredictor:
        """Return the commit with its rows from elsewhere."""
        other = copy(self)
        other.rows = rows
        return other

    def keep_flags(self, kinds: tuple[str, ...], flags: FlagTable) -> None:
        """Keep the stored flags with these kinds of auxiliary source neurons, which were computed elsewhere."""
        self._flags[kinds] = flags

    def release(self) -> None:
        """Let go of rows beyond those that are kept between prompts."""
        if isinstance(self.rows, StoredRows):
            self.rows.release_beyond(KEPT_BYTES)

    def health(self, within_s: float) -> str | None:
        """Return why rows are unavailable now, None when they are available.

        Parameters
        ----------
        within_s : float
            Seconds for an answer of the cluster.
        """
        return None if self._handle is None else self._handle.regions.health(within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        return False if self._handle is None else self._handle.regions.lost()

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


class CommitHandle:
    """A commit opened on a cluster for prediction: its regions, flags, placement and dictionaries.

    Everything is kept on the workers as long as this value exists.

    Parameters
    ----------
    client : Client
        Of the cluster.
    reader : CommitReader
        The commit.
    regions : RegionHandles
        Its regions on the cluster.
    """

    def __init__(self, client: Client, reader: CommitReader, regions: RegionHandles) -> None:
        self._client, self._reader, self.regions = client, reader, regions
        self.specification = reader.manifest().specification

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The saved dictionaries, from which inference starts; a copy of them may be expanded."""
        return self._reader.saved_vocabulary()

    @cached_property
    def _saved(self) -> FlagTable:
        return flags_of(self.vocabulary)

    def change(self, expanded: Vocabulary) -> FlagChange:
        """Return the difference of an expanded vocabulary's flags from the saved ones."""
        return FlagChange.between(self._saved, expanded)

    @cached_property
    def placement(self) -> Future:
        """Future of the `Placement`."""
        return submit_placement(self._client, self._reader, **self.regions.submit_kwargs)

    def flags(self, auxiliary: tuple[str, ...] = ()) -> Future:
        """Return the future of the stored flags, with the auxiliary source neurons of these kinds."""
        return submit_flags(self._client, self._reader, auxiliary, **self.regions.submit_kwargs)

    def submit(
        self, task: Callable[..., object], *arguments: object, key: str, where: Mapping[str, Any] | None = None
    ) -> Future:
        """Submit a task that predicts, to a worker that can get at the rows.

        Parameters
        ----------
        task : callable
            Called with the arguments.
        *arguments
            Of the task; futures stand for their results.
        key : str
            Of the task.
        where : mapping, optional
            Arguments of `Client.submit` that name other workers, such as those with a GPU.
        """
        return self._client.submit(
            task, *arguments, key=key, **(self.regions.submit_kwargs if where is None else where)
        )


def open_columns(
    reader: CommitReader, *, client: Client | None, options: GenerationOptions, observer: Observer = ignore
) -> ColumnsPredictor:
    """Open a commit of columns for many prompts in this process; without a client its rows are read from the store.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    """
    if client is None:
        return ColumnsPredictor(reader, StoredRows(reader), observer=observer)
    handle = CommitHandle(client, reader, open_regions(client, reader, options.rows))
    placement = reader.placement()
    rows: Rows
    if handle.regions.keys is None:
        futures = handle.regions.futures
        rows = OpeningRows(StoredRows(reader, whole=False), lambda: RunRows.placed(placement, results(futures)))
    else:
        rows = RemoteRows.of_client(client, placement, handle.regions.keys, projection=_projection(reader, options))
    return ColumnsPredictor(reader, rows, handle=handle, observer=observer)


def _projection(reader: CommitReader, options: GenerationOptions) -> RowProjection:
    """Return which part of rows the options need; of profile v2 only the train-set settings do without strengths."""
    strengths = reader.manifest().specification.ruled_by != "v1"
    return RowProjection(strengths=strengths or options.reads_strengths)


def columns_on_workers(client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
    """Return how tasks open a commit of columns on workers; its regions and flags are kept on the cluster.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    OptionError
        If the options do not fit the network.
    """
    return _on_workers(client, reader, options, open_regions(client, reader, options.rows))


def _on_workers(
    client: Client, reader: CommitReader, options: GenerationOptions, regions: RegionHandles
) -> WorkerOpening:
    kinds, flags = _auxiliary(client, reader, options, **regions.submit_kwargs)
    arguments = (str(reader.path), reader.commit, regions.argument, _projection(reader, options), kinds, flags)
    return WorkerOpening.over(regions, columns_from_regions, arguments, partial(_regions_of, reader, options.tagger))


def _regions_of(reader: CommitReader, tagger: str, prompt: str) -> list[int]:
    """Return the regions of the neurons of a prompt."""
    opened = opened_from_store(str(reader.path), reader.commit)
    assert isinstance(opened.rows, StoredRows)
    regions: list[int] = opened.rows.placement.regions_of(opened.prepare(prompt, tagger)[0].sequence.neuron).tolist()
    return regions


def _auxiliary(
    client: Client, reader: CommitReader, options: GenerationOptions, **where: Any
) -> tuple[tuple[str, ...], Future | None]:
    """Return the kinds of auxiliary source neurons that options ask for, and the flags with these, if there are any."""
    kinds = fitting_rules(reader.manifest().specification, options.inference).tables
    # Those without are what a worker has of the commit.
    return kinds, submit_flags(client, reader, kinds, **where) if kinds else None


def columns_for_prompt(client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
    """Return how a task opens a commit of columns for one prompt.

    Its rows are read from the store where workers do not have them. Errors are those of `columns_on_workers`.
    """
    regions = open_prompt_regions(client, reader, options.rows)
    if regions is not None:
        return _on_workers(client, reader, options, regions)
    return WorkerOpening(columns_from_store, (str(reader.path), reader.commit, *_auxiliary(client, reader, options)))


def columns_from_regions(
    path: str,
    commit: str,
    regions: Sequence[Run] | RegionKeys,
    projection: RowProjection,
    kinds: tuple[str, ...] = (),
    flags: FlagTable | None = None,
) -> ColumnsPredictor:
    """Open a commit of columns in a task; `flags` have the auxiliary source neurons of `kinds`, if there are any."""
    stored = columns_from_store(path, commit, kinds, flags)
    assert isinstance(stored.rows, StoredRows)
    return stored.over(row_source(stored.rows.placement, regions, projection=projection))


def columns_from_store(
    path: str, commit: str, kinds: tuple[str, ...] = (), flags: FlagTable | None = None
) -> ColumnsPredictor:
    """Open a commit of columns in a task that reads its rows from the store; see `columns_from_regions`."""
    opened = opened_from_store(path, commit)
    if flags is not None:
        opened.keep_flags(kinds, flags)
    return opened


@lru_cache(maxsize=1)
def opened_from_store(path: str, commit: str) -> ColumnsPredictor:
    """Return a commit, as a process has opened it for the prompt before."""
    reader = open_commit(path, commit)
    return ColumnsPredictor(reader, StoredRows(reader, whole=False))


@dataclass(eq=False)
class _PromptText:
    """A prepared prompt, and its steps once it is in a batch."""

    sequence: PreparedSequence
    options: GenerationOptions
    vocabulary: Vocabulary
    flags: FlagTable
    steps: list[StepResult] = field(default_factory=list)


class ColumnBatch:
    """Prompts continued together over a network of columns; a `giaann_dask.models.base.ContinuationBatch`.

    Parameters
    ----------
    opened : ColumnsPredictor
        The commit that predicts.
    options : GenerationOptions
        Rules of inference, tagger and device.
    batch : BatchOptions, optional
        How many prompts advance together.

    Raises
    ------
    OptionError
        If the options do not fit the network.
    """

    def __init__(self, opened: ColumnsPredictor, options: GenerationOptions, batch: BatchOptions | None = None) -> None:
        self._opened, self._tagger = opened, options.tagger
        self._rules = require_fit(opened.specification, options)
        self._batch = open_batch(
            *(opened.specification, opened.rows),
            options=self._rules,
            beam=options.beam,
            batch=batch,
            device=prompt_device(options.device),
        )
        self._texts: dict[int, _PromptText] = {}

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
        text = _PromptText(prepared.sequence, options, vocabulary, flags)
        return PreparedText(prepared.words, partial(self._enter, text), partial(self._with_columns, text))

    def _enter(self, text: _PromptText) -> int:
        tokens, pooled = text.options.max_tokens, text.flags.pooled is not None and not text.options.beam.searches
        number = self._batch.enter(Prompt(sequence=text.sequence, flags=text.flags, tokens=tokens, pooled=pooled))
        self._texts[number] = text
        self._opened.observer(PromptsAdvanced(entered=1))
        return number

    def _with_columns(self, text: _PromptText, state: StateOptions) -> Generator[TokenEvent | None, None, None]:
        """Continue a prompt with its whole activation; events have its strongest columns."""
        observe = self._opened.observer
        network = self._opened.specification, self._opened.rows, text.flags
        session = open_whole_session(*network, options=self._rules, state=state)
        observe(PromptsAdvanced(entered=1))
        try:
            length = len(text.sequence) + text.options.max_tokens
            pooled = text.flags.pooled is not None
            for trace in session.stream(text.sequence, text.options.max_tokens, pooled=pooled):
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
            if advance.error is not None:
                events.append(TokenEvent(advance.number, None, True, error=advance.error))
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

    def _token(self, text: _PromptText, trace: StepTrace) -> GeneratedToken | None:
        """Return the prediction of a step, in words."""
        if trace.result.predicted is None or trace.candidates is None:
            return None
        reasons: list[Contribution] = []
        if text.options.reasons:
            opened = self._opened
            session = open_whole_session(opened.specification, opened.rows, text.flags, options=self._rules)
            found = session.explain(tuple(text.steps), trace.result.index)
            reasons = largest_contributions((*found, *self._pooled_reason(text, trace.result)), text.options.reasons)
        return in_words(trace.result, best_candidates(trace, text.options.runners_up), reasons, text.vocabulary)

    def _pooled_reason(self, text: _PromptText, step: StepResult) -> tuple[Contribution, ...]:
        """Return the strongest connection by which a source in every column has raised the prediction of a step."""
        if text.flags.pooled is None or step.predicted is None or text.options.beam.searches:
            return ()
        specification, last = self._opened.specification, self._opened.specification.last_segment
        source, raised = text.flags.pooled.strongest(step.source, step.predicted)
        row = None if source is None else self._opened.rows.row(source)
        if source is None or row is None:
            return ()
        segment, neuron, branch = unpack_target(row.target)
        at = np.flatnonzero((segment == last) & (neuron == step.predicted))[:1]
        strengths = specification.strengths(row.strength[at]).tolist()
        return tuple(
            Contribution(step.index, source, last, its, strength, raised)
            for its, strength in zip(branch[at].tolist(), strengths, strict=True)
        )


def _active_columns(trace: StepTrace, count: int, text: _PromptText) -> tuple[ActiveColumn, ...]:
    """Return the concept columns with the largest activation after a step, ties in the order of the network."""
    assert trace.state is not None, "a whole session"
    found = ActiveColumns.of(trace.state).strongest(count, text.flags.order)
    pairs = zip(found.column.tolist(), found.activation.tolist(), strict=True)
    return tuple(ActiveColumn(text.vocabulary.concepts[column], activation) for column, activation in pairs)


@dataclass(frozen=True, eq=False)
class PreparedPrompt:
    """A prompt divided into columns.

    Attributes
    ----------
    sequence : PreparedSequence
        Its neurons.
    words : tuple of str
        Its words as text has them, merged nouns with spaces.
    change : FlagChange
        What its words change in the flags of the commit.
    """

    sequence: PreparedSequence
    words: tuple[str, ...]
    change: FlagChange


def best_candidates(trace: StepTrace, count: int) -> list[tuple[int, float]]:
    """Return the best candidates of a step with their values, the predicted one first and always among them.

    Ties are in the order of `Candidates`.
    """
    candidates, chosen = trace.candidates, trace.result.predicted
    assert candidates is not None, "a step that predicts"
    assert chosen is not None, "a step that predicts"
    neurons, values = candidates.ranked(count)
    if count and chosen not in neurons:
        place = int(np.searchsorted(candidates.neuron, chosen))
        neurons[-1], values[-1] = chosen, float(candidates.value[place])
    pairs = list(zip(neurons.tolist(), values.tolist(), strict=True))
    return sorted(pairs, key=lambda pair: pair[0] != chosen)


def prepare_prompt(
    prompt: str,
    vocabulary: Vocabulary,
    lexicon: EverPos | SubwordTokenizer,
    *,
    specification: Specification,
    tagger: str,
    flags: FlagTable | None = None,
) -> PreparedPrompt:
    """Divide a prompt into columns.

    Parameters
    ----------
    prompt : str
        Some words, with at least one noun.
    vocabulary : Vocabulary
        The saved dictionaries of the commit; expanded in place.
    lexicon : EverPos or SubwordTokenizer
        Which words can end a column, or what divides text into subwords.
    specification : Specification
        Of the network.
    tagger : str
        How the prompt is tagged.
    flags : FlagTable, optional
        Those of the dictionaries as saved; read from them by default, which takes longer the more they hold.

    Raises
    ------
    PromptError
        If it cannot be divided.
    """
    require_prompt(prompt)
    base = flags or flags_of(vocabulary)
    # As in files, a mark of byte order is no text.
    part = Part("the prompt", "text", (prompt.replace(BYTE_ORDER_MARK, ""),), (0,))
    text = tag_part(part, tagger)
    limits = FilterOptions.of(specification)
    # All of the prompt is one sequence.
    whole = replace(limits, seed_tokens=0, maximum_tokens=MAXIMUM_TOKENS, sentences=max(1, len(text)), crop=False)
    builder = make_builder(lexicon, whole)
    builder.add_part(text)
    block = builder.build()
    if len(block) == 0:
        raise PromptError(
            f"the prompt has {len(text.entry)} words",
            f"1 to {MAXIMUM_TOKENS}",
            "give another prompt",
        )
    encoded = encode_block(block, vocabulary.extend(summarise(block)), specification)
    if encoded.status[0] != CANDIDATE:
        missing = "a noun" if encoded.status[0] == NO_CONCEPT else "a verb or preposition between its nouns"
        raise PromptError(f"the prompt {prompt[:80]!r} lacks {missing}", "words that form columns", "add one")
    text_of = str if specification.tokens == "subwords" else noun_text
    words = tuple(
        text_of(encoded.surfaces[s]) if s >= 0 else vocabulary.features[f]
        for s, f in zip(encoded.surface, encoded.feature, strict=True)
    )
    sequence = PreparedSequence(
        neuron=pack_neuron(encoded.column, encoded.feature),
        noun=encoded.feature == 0,
        number=encoded.first_sequence,
    )
    return PreparedPrompt(sequence, words, FlagChange.between(base, vocabulary, encoded.feature))


def in_words(
    result: StepResult, best: Sequence[tuple[int, float]], reasons: Sequence[Contribution], vocabulary: Vocabulary
) -> GeneratedToken:
    """Put the prediction of a step into words, with its best candidates and the connections that raised it."""
    neuron = result.predicted
    assert neuron is not None, "a step that predicts"
    return GeneratedToken(
        *word_and_column(neuron, vocabulary),
        tuple(Candidate(*word_and_column(other, vocabulary), value) for other, value in best),
        result.candidates,
        tuple(
            Reason(
                *word_and_column(reason.source, vocabulary),
                reason.step - 1,
                reason.segment,
                reason.branch,
                reason.strength,
                reason.contribution,
                ConnectionKey(reason.source, neuron, reason.segment, reason.branch),
            )
            for reason in reasons
        ),
    )


def word_and_column(neuron: int, vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the word of a neuron key, and the concept of its column."""
    column, feature = (int(x[0]) for x in unpack_neuron(np.array([neuron])))
    concept = vocabulary.concepts[column]
    if feature:
        return vocabulary.features[feature], concept
    if vocabulary.delimiter_since is not None and vocabulary.features[column + 1 : column + 2] != [concept]:
        # A column that is named by words opens with the first subword of any of them.
        return " " + noun_text(concept), concept
    return concept, concept
