"""Continuations of one prompt or of many, token by token as they come, in this process.

Covers: opening a commit for sessions, here or from the workers that hold its regions; preparing prompts
as there is room for them; and words for what a batch predicts. Does not cover: what is made of the pieces
(`pieces`), the batch (`replay.batch`), profile ``best`` (`best.generation`), a whole continuation as one
task of a cluster (`generation`), and a server (`giaann_dask.serving`).

A prompt never sees another: each expands a copy of the dictionaries, and what is predicted after it does
not depend on which others are under way.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from distributed import Client

from giaann_dask.cluster import result, results
from giaann_dask.device import one_thread
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.events import Observer, PromptsAdvanced, ignore
from giaann_dask.inference.batch import BatchOptions, Prompt
from giaann_dask.inference.continuation import GeneratedToken, GenerationOptions
from giaann_dask.inference.generation import PreparedPrompt, RawToken, best_candidates, in_words, prepare_prompt
from giaann_dask.inference.handle import (
    RegionHandles,
    changed_flags,
    flags_of,
    open_flags_with,
    open_regions,
    read_regions,
    submit_flags,
)
from giaann_dask.inference.profiles import (
    InferenceRules,
    auxiliary_kinds,
    fitting_rules,
    open_batch,
    open_plain_session,
    rules_device,
)
from giaann_dask.inference.rows.health import find_trouble, is_lost
from giaann_dask.inference.rows.remote import RemoteRows, RowOptions
from giaann_dask.inference.rows.service import RowProjection
from giaann_dask.inference.rows.source import RunRows
from giaann_dask.inference.state.sequence import FlagTable, StepResult, StepTrace
from giaann_dask.inference.token_events import ContinuationStream, TokenEvent
from giaann_dask.store.network_store import CommitReader
from giaann_dask.text.vocabulary import Vocabulary


class NetworkHandle:
    """A commit opened for sessions in this process; training goes on beside it and changes nothing here.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    client : Client, optional
        Of the cluster that holds its regions; without one they are read here.
    rows : RowOptions, optional
        How rows are come by from a cluster.
    strengths : bool
        Whether rows are asked for with their strengths, which explanations need.
    observer : callable, optional
        Told of prompts that begin, end or are some tokens further.
    """

    def __init__(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        rows: RowOptions | None = None,
        strengths: bool = False,
        observer: Observer = ignore,
    ) -> None:
        self.observer = observer
        self.commit, self.lexicon = reader.commit, reader.tokenizer() or reader.ever()
        self.specification = reader.manifest().specification
        self.vocabulary = reader.saved_vocabulary()
        self.flags = flags_of(self.vocabulary)
        self._flags: dict[tuple[str, ...], FlagTable] = {(): self.flags}
        self._client, self._reader = client, reader
        # Its futures keep the regions on the workers.
        self._regions: RegionHandles | None = None
        self.rows: RunRows | RemoteRows
        if client is None:
            self.rows = RunRows.placed(reader.placement(), read_regions(reader))
            return
        self._regions = open_regions(client, reader, rows or RowOptions())
        if self._regions.keys is None:
            self.rows = RunRows.placed(reader.placement(), results(self._regions.futures))
        else:
            # Of profile v2 only the train-set settings do without them.
            projection = RowProjection(strengths=strengths or self.specification.profile != "v1")
            self.rows = RemoteRows.of_client(client, reader.placement(), self._regions.keys, projection=projection)

    def flags_for(self, rules: InferenceRules) -> FlagTable:
        """Return the stored flags with the auxiliary source neurons that rules of inference ask for."""
        kinds = auxiliary_kinds(rules)
        if kinds not in self._flags:
            if self._client is None:
                self._flags[kinds] = open_flags_with(self._reader, self.flags, kinds)
            else:
                self._flags[kinds] = result(submit_flags(self._client, self._reader, kinds))
        return self._flags[kinds]

    def trouble(self, within_s: float) -> str | None:
        """Return what keeps rows from being had now, None when nothing does, as where they all are here.

        Parameters
        ----------
        within_s : float
            Seconds for an answer of the cluster; see `giaann_dask.inference.rows.health.find_trouble`.
        """
        if self._client is None or self._regions is None or self._regions.keys is None:
            return None
        return find_trouble(self._client, self._regions.keys, within_s)

    def lost(self) -> bool:
        """Return whether rows will never be had again, because the cluster that held them is lost."""
        if self._client is None or self._regions is None or self._regions.keys is None:
            return False
        return is_lost(self._client, self._regions.keys)

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


@dataclass(eq=False)
class _Text:
    """A prompt under way."""

    number: int
    prepared: PreparedPrompt
    vocabulary: Vocabulary
    flags: FlagTable
    steps: list[StepResult] = field(default_factory=list)


class Sessions(ContinuationStream):
    """Many prompts that are continued together, a step at a time; see `ContinuationStream`.

    Prompts are drawn as there is room for them, and each is finished as soon as its own end is reached.

    Parameters
    ----------
    opened : NetworkHandle
        The commit that answers.
    prompts : iterable of str
        Some words each, with at least one noun; may be endless.
    options : GenerationOptions, optional
        How much is generated; without reasons by default, which take longer than the tokens.
    batch : BatchOptions, optional
        How many advance together.
    """

    def __init__(
        self,
        opened: NetworkHandle,
        prompts: Iterable[str],
        *,
        options: GenerationOptions | None = None,
        batch: BatchOptions | None = None,
    ) -> None:
        self._opened = opened
        self._options = options or GenerationOptions(reasons=0)
        self._options.require_fit(opened.specification)
        if self._options.beam.searches:
            beam = self._options.beam
            raise OptionError(
                f"beam width {beam.width} and depth {beam.depth}", "1 and 1 for sessions", "look ahead with generate"
            )
        self._rules = fitting_rules(opened.specification, self._options.inference)
        device = rules_device(self._rules, self._options.device)
        self._batch = open_batch(opened.specification, opened.rows, options=self._rules, batch=batch, device=device)
        self._under: dict[int, _Text] = {}
        super().__init__(opened.commit, self._run(iter(prompts)), subwords=opened.specification.tokens == "subwords")

    def close(self) -> None:
        """End all that is under way and let go of the rows; nothing comes after that."""
        super().close()
        self._under.clear()

    def _run(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        try:
            yield from self._advance(prompts)
        finally:
            self._opened.observer(PromptsAdvanced(left=len(self._under)))

    def _advance(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        waiting = enumerate(prompts)
        more = True
        while more or len(self._batch):
            while more and self._batch.room:
                number, prompt = next(waiting, (-1, ""))
                more = number >= 0
                if more:
                    try:
                        self._enter(number, prompt)
                    except PromptError as error:
                        yield TokenEvent(number, None, True, error=error)
            for advance in self._batch.step():
                text = self._under[advance.number]
                for trace in advance.traces:
                    text.steps.append(trace.result)
                    if not trace.result.seed:
                        last = advance.finished and trace.result.index == advance.steps[-1]
                        yield TokenEvent(text.number, self._token(text, trace), last, trace.result.end)
                if advance.finished:
                    del self._under[advance.number]
                made = sum(not result.seed and result.predicted is not None for result in advance.results)
                self._opened.observer(PromptsAdvanced(left=int(advance.finished), tokens=made))

    def _enter(self, number: int, prompt: str) -> None:
        prepared, vocabulary = self._opened.prepare(prompt, self._options.tagger)
        flags = changed_flags(self._opened.flags_for(self._rules), prepared.change)
        entered = self._batch.enter(Prompt(sequence=prepared.sequence, flags=flags, tokens=self._options.tokens))
        self._under[entered] = _Text(number, prepared, vocabulary, flags)
        self._opened.observer(PromptsAdvanced(entered=1))
        self._words[number] = prepared.words

    def _token(self, text: _Text, trace: StepTrace) -> GeneratedToken | None:
        """Return what a step predicted, in words."""
        if trace.result.predicted is None or trace.candidates is None:
            return None
        reasons: tuple[tuple[int, int, int, int, float, float], ...] = ()
        if self._options.reasons:
            opened = self._opened
            session = open_plain_session(opened.specification, opened.rows, text.flags, options=self._rules)
            with one_thread():
                found = session.explain(tuple(text.steps), trace.result.index)
            ranked = sorted(found, key=lambda r: -r.contribution)[: self._options.reasons]
            reasons = tuple((r.step, r.source, r.segment, r.branch, r.strength, r.contribution) for r in ranked)
        best, values = best_candidates(trace.candidates, self._options.runners_up, trace.result.predicted)
        raw = RawToken(trace.result.predicted, best, values, trace.result.candidates, reasons)
        return in_words(raw, text.vocabulary)
