"""Predict the tokens of the sequences of a block, as a task, and record the predictions or mark the tokens missed.

Sequences of profile `v1` advance in batches: on the CPU by compiled steps, on a device all together by one kernel.
Others follow one another in a session. Rows of given sources are requested ahead. `evaluation.evaluation` submits the
tasks of an evaluation, `giaann_dask.training.error_driven` those that mark what a commit misses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import task_key
from giaann_dask.device import DeviceName
from giaann_dask.keys import Integers, pack_neuron
from giaann_dask.models.columns.batch import Prompt
from giaann_dask.models.columns.evaluation.accuracy import NO_PREDICTION, Predictions, token_probability
from giaann_dask.models.columns.evaluation.prefixes import PrefixRules, unpredicted
from giaann_dask.models.columns.flags import FlagChange, changed_flags
from giaann_dask.models.columns.predictor import CommitHandle
from giaann_dask.models.columns.rules import InferenceRules, fitting_rules, prompt_device, require_cpu
from giaann_dask.models.columns.state.activation import Candidates
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.name_order import NameOrder
from giaann_dask.models.columns.state.session import FlagTable, Observer, PreparedSequence, StepResult, StepTrace
from giaann_dask.models.columns.state.word_rows import WordRows
from giaann_dask.models.columns.v1.pull_batch import PullBatch, StepTable
from giaann_dask.models.columns.v1.tables import GOES_ON, NONE
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import BatchOptions, EvaluationProtocol
from giaann_dask.rows.protocol import RowOptions, RowProjection
from giaann_dask.rows.regions import open_regions
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource, RowStatistics
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.blocks import CANDIDATE, POS_SHIFT
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

# So many sequences' rows are asked for at once, while those before them are predicted.
SEQUENCES_AHEAD = 8
Marks = npt.NDArray[np.bool_]


class StepRecords:
    """The completed steps of the prediction phase of some sequences of a block.

    Parameters
    ----------
    block : EncodedBlock
        Which holds the sequences.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    by_word : bool
        Whether the probability of a token is that of its word in any column, instead of in its own, which is not known
        from left to right.
    """

    def __init__(
        self,
        block: EncodedBlock,
        ranks: int,
        *,
        probability: bool = False,
        by_word: bool = False,
        pooled: WordRows | None = None,
    ) -> None:
        self._block, self._by_word, self._pooled = block, by_word, pooled
        self._ranks = ranks
        self._shares: list[float] | None = [] if probability else None
        # Of each step: sequence, position, predicted neuron, candidates, token.
        self._steps: list[Integers] = [np.zeros((0, 5), np.int64)]
        self._runners_up: list[npt.NDArray[np.int64]] = []
        self._tokens = self._stopped = 0

    @property
    def observing(self) -> bool:
        """Whether the candidates of steps are looked at."""
        return self._ranks > 1 or self._shares is not None or self._pooled is not None

    def begin(self, place: int) -> None:
        """Count the tokens of a sequence, given its place in the block."""
        self._tokens += int(self._block.offsets[place + 1] - self._block.offsets[place])

    def add(
        self,
        place: int,
        steps: Sequence[StepResult],
        candidates: Mapping[int, Candidates],
        order: NameOrder | None = None,
    ) -> None:
        """Add the steps of a sequence, and where they are looked at the candidates by step.

        Parameters
        ----------
        place : int
            Of the sequence in the block.
        steps : sequence of StepResult
            All that it has.
        candidates : mapping of int to Candidates
            By the index of a step.
        order : NameOrder, optional
            Which of equal candidates is the first.
        """
        self._stopped += steps[-1].end is not None
        kept = [step for step in steps if not step.seed and step.next is not None]
        index = np.array([step.index for step in kept], np.int64)
        predicted = np.array([NO_PREDICTION if step.predicted is None else step.predicted for step in kept], np.int64)
        counts = np.array([step.candidates for step in kept], np.int64)
        found = [candidates.get(step.index) for step in kept] if self.observing else []
        self._add(
            np.full(len(kept), place),
            index,
            predicted,
            counts,
            [step.source for step in kept],
            found,
            order or NameOrder(),
        )

    def add_together(self, table: StepTable, places: Integers, order: NameOrder) -> None:
        """Add steps of many sequences.

        Parameters
        ----------
        table : StepTable
            The steps, with their candidates where these are looked at.
        places : ndarray
            Places of the sequences in the block, int64.
        order : NameOrder
            Which of equal candidates is the first.
        """
        self._stopped += int(((table.following == NONE) & (table.stop != GOES_ON)).sum())
        kept = np.flatnonzero(~table.seed & (table.following != NONE))
        place, index = places[table.number[kept]], table.index[kept]
        predicted = np.where(table.predicted[kept] == NONE, NO_PREDICTION, table.predicted[kept])
        found: list[Candidates | None] = []
        for at in kept.tolist() if self.observing else ():
            here = slice(table.pointer[at], table.pointer[at + 1])
            some = table.candidates[at] > 0
            found.append(Candidates(table.neuron[here], table.found[here], order) if some else None)
        self._add(
            place, index, predicted, table.candidates[kept].astype(np.int64), table.source[kept].tolist(), found, order
        )

    def _add(
        self,
        place: Integers,
        index: Integers,
        predicted: Integers,
        counts: Integers,
        sources: Sequence[int],
        found: Sequence[Candidates | None],
        order: NameOrder,
    ) -> None:
        """Add steps; where candidates are looked at, with the candidates of the sources in every column."""
        if self._pooled is not None:
            pairs = zip(sources, found, strict=True)
            found = [self._pooled.candidates(source, candidates, order) for source, candidates in pairs]
            for at, its in enumerate(found):
                if its is not None:
                    predicted[at], counts[at] = its.neuron[its.best], len(its)
        self._keep(place, index, predicted, counts)
        tokens = (self._block.offsets[place] + index).tolist()
        for candidates, its, token in zip(found, predicted.tolist(), tokens, strict=True) if found else ():
            self._observe(candidates, its, token)

    def add_unpredicted(self, place: int, tokens: Sequence[int]) -> None:
        """Add steps of a sequence that predict nothing, for lack of columns."""
        index = np.array(tokens, np.int64)
        none = np.full(len(index), NO_PREDICTION)
        self._keep(np.full(len(index), place), index, none, np.zeros(len(index), np.int64))
        for token in (int(self._block.offsets[place]) + index).tolist() if self.observing else ():
            self._observe(None, NO_PREDICTION, token)

    def stop(self) -> None:
        """Count a sequence that ended before its first prediction."""
        self._stopped += 1

    def _keep(self, place: Integers, index: Integers, predicted: Integers, candidates: npt.ArrayLike) -> None:
        sequence, token = self._block.first_sequence + place, self._block.offsets[place] + index
        self._steps.append(np.stack([sequence, index, predicted, np.asarray(candidates, np.int64), token], axis=1))

    def _observe(self, found: Candidates | None, predicted: int, token: int) -> None:
        """Record the candidates of a step after the predicted one, and the probability of its token.

        There are none where the predicted one was rejected, as all are then.
        """
        if self._ranks > 1:
            others = np.full(self._ranks - 1, NO_PREDICTION, np.int64)
            if predicted != NO_PREDICTION and found is not None:
                best = found.ranked(self._ranks)[0]
                rest = best[best != predicted][: self._ranks - 1]
                others[: len(rest)] = rest
            self._runners_up.append(others)
        if self._shares is not None:
            target = _neuron(self._block, token)
            self._shares.append(0.0 if found is None else token_probability(found, target, by_word=self._by_word))

    def predictions(self, rows: RowStatistics | None = None) -> Predictions:
        """Return the collected predictions, with the figures of the rows read."""
        block, columns = self._block, np.concatenate(self._steps)
        order = np.lexsort((columns[:, 1], columns[:, 0]))
        columns = columns[order]
        token = columns[:, 4]
        words = block.surface[token].tolist()
        return Predictions(
            sequence=columns[:, 0].copy(),
            position=columns[:, 1].copy(),
            predicted=columns[:, 2].copy(),
            target=pack_neuron(block.column[token], block.feature[token]),
            surface=tuple(block.surfaces[word] if word >= 0 else "" for word in words),
            part=(block.flags[token] >> POS_SHIFT).astype(np.uint8),
            candidates=columns[:, 3].copy(),
            runners_up=np.array(self._runners_up, np.int64).reshape(len(token), self._ranks - 1)[order],
            tokens=self._tokens,
            stopped=self._stopped,
            rows=rows,
            probability=None if self._shares is None else np.array(self._shares, np.float64)[order],
        )


def _neuron(block: EncodedBlock, token: int) -> int:
    """Return the neuron key of a token of a block."""
    return int(pack_neuron(block.column[token : token + 1], block.feature[token : token + 1])[0])


@dataclass(frozen=True, kw_only=True)
class PredictionRule:
    """Rules by which predictions are made, and the parts of them to keep.

    Attributes
    ----------
    specification : Specification
        Of the network.
    options : InferenceOptions or V2Options
        Rules of inference.
    protocol : {"left-to-right", "published"}
        What the columns of a token depend on.
    device : {"cpu", "cuda"}
        Where steps are computed.
    ranks : int
        How many of the best candidates of each step are kept, 1 or more.
    probability : bool
        Whether the probabilities of tokens are kept, too.
    """

    specification: Specification
    options: InferenceRules
    protocol: EvaluationProtocol = "published"
    device: DeviceName = "cpu"
    ranks: int = 1
    probability: bool = False


def infer(
    block: EncodedBlock,
    span: tuple[int, int],
    flags: FlagTable,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    rule: PredictionRule,
) -> Predictions:
    """Predict the tokens of some sequences of a block and keep the requested candidates, as a task."""
    rows = row_source(placement, regions, projection=RowProjection(strengths=rule.options.sends_strengths))
    return predict_span(block, span, flags, rows, rule)


def predict_span(
    block: EncodedBlock, span: tuple[int, int], flags: FlagTable, rows: RowSource, rule: PredictionRule
) -> Predictions:
    """Return the predictions of some sequences of a block; the parameters are those of `infer`, with rows."""
    from_left = rule.protocol == "left-to-right"
    pooled = flags.pooled if from_left else None
    # Of fed predictions the steps choose themselves.
    chosen = pooled if rule.options.feed == "target" else None
    records = StepRecords(block, rule.ranks, probability=rule.probability, by_word=from_left, pooled=chosen)
    device = prompt_device(rule.device)
    if isinstance(rule.options, InferenceOptions):
        asked = rule.options.feed == "target" and device is None
        # From left to right a sequence takes several rounds, so that more of them advance in each.
        few = asked and rule.protocol == "published"
        batch = PullBatch(
            rule.specification,
            rows,
            options=rule.options,
            batch=BatchOptions(slots=SEQUENCES_AHEAD if few else max(1, span[1] - span[0])),
            device=device,
            traced=records.observing,
        )
        prompts = _prompts(block, span, flags, rows if asked else None, rule, records)
        predict_together(batch, prompts, flags.order, records)
    else:
        require_cpu(device)
        session = V2Session(rule.specification, rows, flags, options=rule.options)
        asking = rows if rule.options.feed == "target" else None
        for place, prompt in _prompts(block, span, flags, asking, rule, records):
            found: dict[int, Candidates] = {}
            observer = partial(_note, found) if records.observing else None
            records.add(place, _steps(session, prompt, observer), found, flags.order)
    return records.predictions(rows.own_figures)


def _steps(session: V2Session, prompt: Prompt, observer: Observer | None) -> Sequence[StepResult]:
    """Return the steps of a sequence in a session."""
    if prompt.prefixes:
        return session.predict_prefixes(prompt.prefixes, observer=observer)
    if prompt.tokens is None:
        return session.run_sequence(prompt.sequence, observer=observer).steps
    steps = []
    for trace in session.with_flags(prompt.flags).stream(prompt.sequence, prompt.tokens, pooled=prompt.pooled):
        steps.append(trace.result)
        if observer is not None:
            observer(trace)
    return steps


def _prompts(
    block: EncodedBlock,
    span: tuple[int, int],
    flags: FlagTable,
    rows: RowSource | None,
    rule: PredictionRule,
    records: StepRecords,
) -> Iterator[tuple[int, Prompt]]:
    """Yield sequences of a block as a protocol divides them, with their places in it; count their tokens.

    Where `rows` are given, those of the next sequences are requested.
    """
    if rule.protocol == "published":
        for place, sequence in prepared_sequences(block, span) if rows is None else _asking_ahead(rows, block, span):
            records.begin(place)
            yield place, Prompt(sequence=sequence, flags=flags)
        return
    rules = PrefixRules(block, rule.specification, flags)
    for place in np.flatnonzero(block.status[slice(*span)] == CANDIDATE).tolist():
        at = span[0] + place
        records.begin(at)
        prompt = _from_left(rules, at, rule, records)
        if prompt is not None:
            if rows is not None:
                rows.prefetch({*chain.from_iterable(each.sequence.neuron.tolist() for each in prompt.prefixes)})
            yield at, prompt


def _from_left(rules: PrefixRules, place: int, rule: PredictionRule, records: StepRecords) -> Prompt | None:
    """Return a sequence as it is divided from left to right, None where it cannot be; record what it predicts not."""
    seed, tokens = rule.specification.seed_tokens, int(np.diff(rules.block.offsets[place : place + 2])[0])
    if rule.options.feed == "prediction":
        start = rules.seed(place)
        if start is None:
            records.stop()
            return None
        pooled = start.flags.pooled is not None
        return Prompt(sequence=start.sequence, flags=start.flags, tokens=tokens - seed, pooled=pooled)
    prefixes = rules.prefixes(place)
    records.add_unpredicted(place, unpredicted(prefixes, seed, tokens))
    return Prompt.from_left(prefixes) if prefixes else None


def _note(found: dict[int, Candidates], trace: StepTrace) -> None:
    """Note the candidates of a step; an observer of sessions."""
    if trace.candidates is not None:
        found[trace.result.index] = trace.candidates


def prepared_sequences(block: EncodedBlock, span: tuple[int, int]) -> Iterator[tuple[int, PreparedSequence]]:
    """Yield those of some sequences of a block that can be predicted, with their places in it."""
    for place in range(*span):
        if block.status[place] == CANDIDATE:
            tokens = slice(int(block.offsets[place]), int(block.offsets[place + 1]))
            sequence = PreparedSequence(
                neuron=pack_neuron(block.column[tokens], block.feature[tokens]),
                noun=block.feature[tokens] == 0,
                number=block.first_sequence + place,
            )
            yield place, sequence


def predict_together(
    batch: PullBatch, prompts: Iterator[tuple[int, Prompt]], order: NameOrder, records: StepRecords
) -> None:
    """Predict sequences in a batch; keep the records that they would leave one by one, in the same order."""
    places, more = list[int](), True
    while more or len(batch):
        while more and batch.free_slots:
            place, prompt = next(prompts, (0, None))
            more = prompt is not None
            if prompt is not None:
                places.append(place)
                batch.enter(prompt)
        if batch.pools:
            for advance in batch.step():
                found = {trace.result.index: trace.candidates for trace in advance.traces if trace.candidates}
                records.add(places[advance.number], advance.results, found, order)
        elif (table := batch.step_together()) is not None:
            records.add_together(table, np.array(places, np.int64), order)


def _asking_ahead(
    rows: RowSource, block: EncodedBlock, span: tuple[int, int]
) -> Iterator[tuple[int, PreparedSequence]]:
    """Yield sequences of a block, requesting the rows of the next ones."""
    asked = span[0]
    for place, sequence in prepared_sequences(block, span):
        while asked <= place:
            _fetch_ahead(rows, block, asked, span[1])
            asked += SEQUENCES_AHEAD
        yield place, sequence


def _fetch_ahead(rows: RowSource, block: EncodedBlock, first: int, last: int) -> None:
    """Request the rows of the next sequences, and of those after them, whose sources are given."""
    for start in (first, first + SEQUENCES_AHEAD):
        given = [
            slice(int(block.offsets[place]), int(block.offsets[place + 1]) - 1)
            for place in range(start, min(start + SEQUENCES_AHEAD, last))
            if block.status[place] == CANDIDATE
        ]
        rows.prefetch(n for part in given for n in pack_neuron(block.column[part], block.feature[part]).tolist())


def missed(
    block: EncodedBlock, rows: RowSource, flags: FlagTable, *, rules: InferenceRules, network: Specification
) -> Marks:
    """Return which tokens of a block are not predicted when every token is fed.

    Parameters
    ----------
    block : EncodedBlock
        Sequences to predict.
    rows : RowSource
        Connections of the network.
    flags : FlagTable
        Stored flags, with what the block's own text added.
    rules : InferenceOptions or V2Options
        Options of prediction; targets must be fed.
    network : Specification
        Of the network.

    Returns
    -------
    ndarray of bool
        For each token of the block whether another neuron than its own was predicted, or none. Seed
        tokens, which nothing predicts, are missed, and so are those of sequences without columns.
    """
    rule = PredictionRule(specification=network, options=rules)
    found = predict_span(block, (0, len(block)), flags, rows, rule)
    marks: Marks = np.ones(len(block.column), np.bool_)
    token = block.offsets[found.sequence - block.first_sequence] + found.position
    marks[token] = found.predicted != found.target
    return marks


def mark_missed(
    block: EncodedBlock,
    flags: FlagTable,
    change: FlagChange,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    specification: Specification,
    rules: InferenceRules,
) -> EncodedBlock:
    """Return a block in which only the tokens that a commit misses are marked for training, as a task."""
    rows = row_source(placement, regions, projection=RowProjection(strengths=rules.sends_strengths))
    return replace(
        block, train_mask=missed(block, rows, changed_flags(flags, change), rules=rules, network=specification)
    )


class ColumnsErrorMask:
    """See `giaann_dask.models.base.ErrorMask`; a commit predicts by the defaults of its profile.

    Parameters
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit.
    """

    def __init__(self, client: Client, reader: CommitReader) -> None:
        self._rules = fitting_rules(reader.manifest().specification, InferenceOptions())
        self._handle = CommitHandle(client, reader, open_regions(client, reader, RowOptions()))
        self._flags = self._handle.flags()

    def submit(self, block: Future, vocabulary: Vocabulary) -> Future:
        """See `giaann_dask.models.base.ErrorMask.submit`."""
        handle, flags = self._handle, self._flags
        change = handle.change(vocabulary)
        identity = (block.key, flags.key, *astuple(change), self._rules, handle.regions.identity)
        return handle.submit(
            mark_missed,
            *(block, flags, change, handle.placement, handle.regions.argument),
            *(handle.specification, self._rules),
            key=task_key("predict", identity),
        )
