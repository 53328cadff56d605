"""Prediction by pooled counts: profile ``contexts``, with true perplexity and bits per byte.

Has the weights of each kind of context and their defaults, the scores of a text and their sums. Counts are in
`giaann_dask.models.contexts.counting`, tables in `giaann_dask.models.contexts.tables` and the compiled pass in
`giaann_dask.models.contexts.kernel`.

Weights do not change what was learnt. They are about twenty constants for a whole profile, like the decays and
thresholds of other profiles, chosen once by `benchmarks/choose_weights.py` on text that is neither trained on nor
reported on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import require_option
from giaann_dask.keys import Integers
from giaann_dask.models.contexts.kernel import RECENT_KINDS, Evidence, Pooling, Text
from giaann_dask.models.contexts.kinds import CHAIN, CONTEXTS
from giaann_dask.models.contexts.span_kernel import score_tokens
from giaann_dask.models.contexts.tables import PooledTables, RowTables
from giaann_dask.models.words.scores import TextScores
from giaann_dask.models.words.stream import NONE, TokenStream

Floats = npt.NDArray[np.float64]

NAMES = tuple(context.name for context in CONTEXTS[1:])


@dataclass(frozen=True, kw_only=True)
class PoolingOptions:
    """Options of pooling evidence.

    Parameters
    ----------
    weights : tuple of float
        Of each kind of context, in the order of `NAMES`.
    recent_weights : tuple of float
        Of the words read lately in the same document: of each word, fading; of what followed the last
        word; of what followed the last two.
    remembered_tokens : int
        How many tokens back that reaches; 0 leaves it out.
    fading_tokens : float
        By which distance the first of these counts 1 / e.
    chain : int
        Longest context of the chain, 0 to 4 words.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    weights: tuple[float, ...] = (0.0,) * len(NAMES)
    recent_weights: tuple[float, ...] = (0.0,) * RECENT_KINDS
    remembered_tokens: int = 1500
    fading_tokens: float = 50.0
    chain: int = CHAIN

    def __post_init__(self) -> None:
        for name, length in (("weights", len(NAMES)), ("recent_weights", RECENT_KINDS)):
            values = getattr(self, name)
            valid = len(values) == length and all(abs(value) <= 10 for value in values)
            require_option(valid, name, values, f"{length} numbers from -10 to 10")
        require_option(
            0 <= self.remembered_tokens <= 1 << 20, "remembered_tokens", self.remembered_tokens, "0 to 1048576"
        )
        require_option(self.fading_tokens > 0, "fading_tokens", self.fading_tokens, "more than 0")
        require_option(0 <= self.chain <= CHAIN, "chain", self.chain, f"0 to {CHAIN}")

    @property
    def pooling(self) -> Pooling:
        """The weights and fading as arrays."""
        weights = np.array((*self.weights, *self.recent_weights), np.float64)
        distance = np.arange(self.remembered_tokens + 1, dtype=np.float64)
        # Words read long ago count little, but count.
        return Pooling(weights, np.maximum(np.exp(-distance / self.fading_tokens), np.finfo(np.float64).tiny))


# Chosen by `benchmarks/choose_weights.py` on every fourth document of EWT dev, with the counts of EWT train. Kinds
# that it gave less than 0.03 are left out but for one: on the other documents of dev nothing is lost by it (top-1
# 0.1454 for 0.1459) and scoring takes half the time.
BEST = PoolingOptions(
    weights=(
        *(-0.141, -0.103, -0.213, -0.109),
        *(0.0, 0.0, 0.0, 0.0, 0.0),
        *(0.026, 0.152, 0.061, 0.097),
        *(0.06, 0.067, 0.056, 0.04, 0.0, 0.0),
    ),
    recent_weights=(0.511, 0.296, 0.334),
)


@dataclass(frozen=True, eq=False)
class LogLinearModel:
    """Tables and how they are pooled.

    Attributes
    ----------
    tables : PooledTables
        What was learnt.
    options : PoolingOptions
        Weights.
    rows : RowTables, optional
        Makes the tables of the contexts before tokens; without it `tables` has all rows. With it `tables` has none, and
        `for_text` returns the model that has those of a text.
    """

    tables: PooledTables
    options: PoolingOptions = field(default_factory=PoolingOptions)
    rows: RowTables | None = None

    @classmethod
    def of(cls, rows: RowTables, options: PoolingOptions) -> LogLinearModel:
        """Return a model that makes its tables of rows."""
        return cls(rows.words, options, rows)

    def for_text(self, stream: TokenStream, begin: int = 0) -> LogLinearModel:
        """Return a model that has the rows of all contexts before the tokens of a text, from a given one on."""
        return self if self.rows is None else LogLinearModel(self.rows.of_tokens(stream, begin)[0], self.options)

    def score(self, stream: TokenStream) -> TextScores:
        """Score every token of a text, given the tokens before it in its sentence and document."""
        return self.score_span(stream, self.numbered(stream), 0, len(stream))

    def score_span(self, stream: TokenStream, text: Text, begin: int, end: int) -> TextScores:
        """Score the tokens of a stretch of a text, which `numbered` returned; the same however it is cut."""
        # Two more tokens than are remembered, which say what the first of these came after.
        first = max(begin - self.options.remembered_tokens - 2, 0)
        rows = np.full((end - first, self.tables.kinds), NONE, np.int64)
        tables, rows[begin - first :] = self.rows_of(stream, begin, end)
        part = text._replace(words=text.words[first:end], document=text.document[first:end], rows=rows)
        logs, rank = score_tokens(part, self._evidence_of(tables), self.options.pooling, begin - first, end - first)
        index, words = stream.index[begin:end], text.words[begin:end]
        used, at = np.unique(index, return_inverse=True)
        names = (stream.words[number] for number in used.tolist())
        lengths = np.array([len(word.encode("utf-8", "surrogatepass")) + 1 for word in names], np.int64)
        known = words < len(self.tables.words)
        return TextScores(logs, rank == 0, lengths[at], stream.place[begin:end], known, rank)

    def rows_of(self, stream: TokenStream, begin: int, end: int) -> tuple[PooledTables, Integers]:
        """Return tables that have the rows of all contexts before the tokens of a span, and these rows."""
        if self.rows is not None:
            return self.rows.of_tokens(stream, begin, end)
        return self.tables, self.tables.find_rows(stream, begin, end)

    def text(self, stream: TokenStream) -> Text:
        """Return a text with its rows; see `numbered`."""
        return self.numbered(stream)._replace(rows=self.tables.find_rows(stream))

    def numbered(self, stream: TokenStream) -> Text:
        """Return a text with the probabilities of its unknown words added to those of the known ones, without rows."""
        unknown, number = self.number_words(stream)
        return self.words_with(unknown)._replace(words=number[stream.index], document=stream.document)

    def words_with(self, unknown: Sequence[str]) -> Text:
        """Return a text without tokens: all known words and some unknown ones, numbered in this order."""
        tables, known = self.tables, self.tables.spelled
        other = tables.spelling.log_probability(unknown) + math.log(tables.unknown) if unknown else np.zeros(0)
        spelled = np.concatenate([known, other])
        nothing = np.zeros(len(unknown))
        # A known word could be spelled, too: so all strings together have a probability of 1.
        base = np.concatenate([tables.base, nothing]) + np.exp(spelled)
        log_base = np.concatenate([np.log(base[: len(known)]), spelled[len(known) :]])
        share = np.concatenate([tables.share, nothing])
        none = np.zeros(0, np.int64)
        rows = np.zeros((0, tables.kinds), np.int64)
        return Text(none, none, rows, base, share, log_base, np.argsort(-base, kind="stable"))

    @property
    def evidence(self) -> Evidence:
        """Tables that the compiled pass reads."""
        return self._evidence_of(self.tables)

    def _evidence_of(self, tables: PooledTables) -> Evidence:
        arrays = (tables.pointer, tables.word, tables.evidence, tables.discounted, tables.freed)
        return Evidence(*arrays, min(self.options.chain, tables.kinds))

    def number_words(self, stream: TokenStream) -> tuple[tuple[str, ...], Integers]:
        """Return the unknown words of a text, and the number of each of its words."""
        number = self.tables.word_numbers(stream.keys)
        missing = np.flatnonzero(number == NONE)
        number[missing] = len(self.tables.words) + np.arange(len(missing))
        return tuple(stream.words[at] for at in missing.tolist()), number
