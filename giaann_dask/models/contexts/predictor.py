"""Continue prompts with a commit of profile ``contexts``, its tables built in this process or on a cluster.

What can follow are all known words and those of the prompt. `giaann_dask.models.contexts.table_files` opens the tables.
Does not cover: probabilities (`giaann_dask.models.contexts.scores`), and what all models of words have in common
(`giaann_dask.models.words.predictor`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.cluster import result
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.events import Observer, ignore
from giaann_dask.models.contexts.kernel import (
    LEAST_SHARE,
    RECENT_KINDS,
    RECENT_PRIOR,
    TOKENS_OF_RECENCY,
    Floats,
    recency_of,
    weights_before,
)
from giaann_dask.models.contexts.kinds import CONTEXTS
from giaann_dask.models.contexts.scores import BEST, NAMES, LogLinearModel
from giaann_dask.models.contexts.span_kernel import distribution
from giaann_dask.models.contexts.stored_tables import StoredTables
from giaann_dask.models.contexts.table_files import CommitTables, commit_tables, has_tables, place_of, submit_tables
from giaann_dask.models.contexts.tables import PRIOR_COUNTS, PackedTables
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import GeneratedToken, Reason, ScoredWord, largest_contributions
from giaann_dask.models.words.predictor import WordBatch, WordPredictor, WordText, opened_from_rows
from giaann_dask.models.words.stream import NONE, TokenStream
from giaann_dask.rows.remote import RegionKeys
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import KEPT_BYTES, open_in_background
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client


# Connections for each token of a single prompt that is predicted from rows before all tables are built: these take
# about as long as so many tokens from rows, and a short text needs none.
_CONNECTIONS_PER_TOKEN = 40_000
# Kinds of contexts that a prediction reads.
_KINDS = tuple(BEST.kinds)
# Farther back in a sentence than any context looks.
_REACH = 1 + max(distance for context in CONTEXTS for _, distance in context.parts)
# How what was read lately is named, in the order of the kernel's counts.
_RECENT_CONTEXTS = ("lately", "lately after {0}", "lately after {1} {0}")


class ContextsPredictor(WordPredictor):
    """A commit of profile ``contexts`` opened in this process.

    First tokens are predicted from rows that are read for them, if the commit has what that needs. Meanwhile all tables
    are built in the background: at once for a batch of prompts or a server, and for a single prompt when it has cost as
    much; the predictions are the same.

    Parameters
    ----------
    reader : CommitReader
        The commit, of profile ``contexts``.
    client : Client, optional
        Of the cluster that builds the tables; without one they are built in this process.
    tables : CommitTables, optional
        Its tables, where they have been opened already.
    rows : RowSource, optional
        Its rows, until the tables are there; read from the store by default.
    background : bool
        Whether tables are built in the background; a single prompt is continued from rows alone.
    observer : callable, optional
        Called when prompts enter, advance or leave.

    Attributes
    ----------
    model : LogLinearModel
        What predicts.
    has_tables : bool
        Whether all tables are there.
    building : Thread or None
        Thread that builds them, once it has begun.
    """

    model: LogLinearModel

    def __init__(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        tables: CommitTables | None = None,
        rows: RowSource | None = None,
        background: bool = True,
        observer: Observer = ignore,
    ) -> None:
        super().__init__(reader, rows, observer)
        self._reader, self._client, self._opened, self._background = reader, client, tables, background
        self._tokens = 0
        self.building: threading.Thread | None = None
        # None where tables are there, or have to be built as the commit has stored no repeats.
        from_rows = tables is None and not has_tables(*place_of(reader)) and reader.repeats() is not None
        self._stored = StoredTables(reader, _KINDS, rows) if from_rows else None
        self.has_tables = self._stored is None
        if self._stored is None:
            self._build()
        else:
            self.model = LogLinearModel(self._stored, BEST)

    def start(self, prompt: str, options: GenerationOptions) -> ContextsText:
        """Return the continuation of a prompt; see `WordText`."""
        return ContextsText(self, prompt, options)

    def count_token(self) -> None:
        """Count a predicted token; begin to build the tables when tokens from rows have cost as much."""
        self._tokens += 1
        if self._tokens * _CONNECTIONS_PER_TOKEN >= self._reader.manifest().connections:
            self.build_tables()

    def build_tables(self) -> None:
        """Begin to build all tables in the background, unless they are there or being built."""
        if self.has_tables or self.building is not None or not self._background:
            return
        self.building = open_in_background(self._build, "tables")

    def _tables(self) -> PackedTables:
        if self._opened is not None:
            return self._opened.tables
        if self._client is None:
            return commit_tables(self._reader)
        opened: CommitTables = result(submit_tables(self._client, self._reader))
        return opened.tables

    def _build(self) -> None:
        self.model, self.has_tables = LogLinearModel(self._tables(), BEST), True

    def release(self) -> None:
        """Let go of rows beyond those that are kept between prompts."""
        if self._stored is not None:
            self._stored.release_beyond(KEPT_BYTES)

    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text; see `LogLinearModel.score_text`."""
        self.count_token()
        return self.model.score_text(text, candidates, after)

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> WordBatch:
        """Return an empty batch of prompts; see `WordBatch`."""
        opened = super().open_batch(options, batch)
        if opened.free_slots > 1:
            self.build_tables()
        return opened


class ContextsText(WordText):
    """Continuation of one text; see `WordText`.

    Parameters
    ----------
    opened : ContextsPredictor
        The commit, whose model predicts each next token.
    prompt, options
        See `WordText`.
    """

    def __init__(self, opened: ContextsPredictor, prompt: str, options: GenerationOptions) -> None:
        super().__init__(prompt, options, CONTEXTS)
        self._opened, model = opened, opened.model
        stream = TokenStream.from_documents([self._sentences])
        unknown, number = model.number_words(stream)
        self._names = model.tables.words.names_with(unknown)
        # With capacity for the words to generate.
        words = np.append(number[stream.index], np.zeros(options.max_tokens, np.int64))
        rows = np.full((len(words), len(NAMES)), NONE, np.int64)
        text = model.tables.words.with_unknown(unknown)
        recency = np.ones(len(words))
        self._text = text._replace(words=words, document=np.zeros_like(words), rows=rows, recency=recency)

    def step(self) -> GeneratedToken | None:
        """Return the next word, None at the end."""
        token = super().step()
        if token is not None:
            self._opened.count_token()
        return token

    def predict(self) -> tuple[Sequence[str], Floats]:
        """See `WordText.predict`."""
        text, tail = self._text, self._sentence[-_REACH:]
        # Only the last of these tokens, which is not known yet, is looked at.
        stream = TokenStream.from_documents([[[*tail, ""]]])
        # Also in the middle of a text, tables are faster than rows.
        model = self._opened.model
        self._evidence, (text.rows[self._now],) = model.evidence_before(stream, len(tail), len(stream))
        self._pooling = model.options.pooling
        self._weights = weights_before(text.rows[self._now], self._pooling.weights)
        lately = slice(max(self._now - TOKENS_OF_RECENCY, 0), self._now + 1)
        text.recency[self._now] = recency_of(text.words[lately], text.document[lately], text.share)[-1]
        chance, _ = distribution(text, self._evidence, self._pooling, self._now)
        return self._names, chance

    def enter(self, word: int) -> None:
        """See `WordText.enter`."""
        self._text.words[self._now] = word

    def reasons(self, word: int) -> tuple[Reason, ...]:
        """Return the evidence that made a word more or less probable than without context, the largest first."""
        # By kind, too: a token can be written as the place of any token is.
        found: dict[tuple[int, str], Reason] = {}
        for reason in (*self._chain(word), *self._weighted(word), *self._recent(word)):
            # What the chain and the evidence look at alike is one reason.
            before = found.get((reason.segment, reason.word))
            gain = reason.contribution + (before.contribution if before else 0.0)
            found[reason.segment, reason.word] = replace(reason, contribution=gain)
        return tuple(largest_contributions(found.values(), self._options.reasons))

    def _entry(self, row: int, word: int) -> int:
        """Return the entry of a word in the row of a context, `NONE` where it never followed it."""
        if row < 0:
            return NONE
        begin, end = (int(edge) for edge in self._evidence.pointer[row : row + 2])
        at = begin + int(np.searchsorted(self._evidence.word[begin:end], word))
        return at if at < end and self._evidence.word[at] == word else NONE

    def _reason(self, segment: int, entry: int, word: int, gain: float) -> Reason:
        """Return a kind of context as a reason, with how often the word followed it."""
        count = np.expm1(float(self._evidence.evidence[entry])) * PRIOR_COUNTS * self._text.share[word]
        context = CONTEXTS[segment]
        key, nearest = self._key(segment, self._names[word], context), self._nearest(context)
        return Reason(self._shown(context), "", nearest, segment, 0, float(np.rint(count)), gain, key)

    def _chain(self, word: int) -> Iterator[Reason]:
        """Yield the longest context of the chain that was seen before the word, with the chain's evidence."""
        table, left, direct, longest = self._evidence, 1.0, 0.0, (NONE, NONE)
        for kind in range(table.chain - 1, -1, -1):
            row = int(self._text.rows[self._now, kind])
            if row >= 0:
                entry = self._entry(row, word)
                if entry != NONE:
                    direct += left * float(table.discounted[entry])
                    longest = max(longest, (kind, entry))
                left *= float(table.freed[row])
        kind, entry = longest
        if kind != NONE:
            gain = math.log(direct / float(self._text.base[word]) + left)
            yield self._reason(kind + 1, entry, word, gain)

    def _weighted(self, word: int) -> Iterator[Reason]:
        """Yield every context that was seen before the word and has a weight."""
        weights = self._weights
        for kind, row in enumerate(self._text.rows[self._now].tolist()):
            entry = self._entry(row, word) if weights[kind] else NONE
            if entry != NONE:
                gain = float(weights[kind]) * float(self._evidence.evidence[entry])
                yield self._reason(kind + 1, entry, word, gain)

    def _recent(self, word: int) -> Iterator[Reason]:
        """Yield the evidence of recent words, as the kernel counts it."""
        pooling, words, now = self._pooling, self._text.words, self._now
        at = np.arange(max(now - len(pooling.fading) + 1, 0), now)
        at = at[words[at] == word]
        once = at[(at > 0) & (words[at - 1] == words[now - 1])]
        twice = once[(once > 1) & (words[once - 2] == words[now - 2])]
        prior = RECENT_PRIOR * max(float(self._text.share[word]), LEAST_SHARE)
        seen = (pooling.fading[now - at].sum(), len(once), len(twice))
        before = [self._names[int(words[now - back])] for back in (1, 2) if now >= back]
        for kind, (places, amount) in enumerate(zip((at, once, twice), seen, strict=True)):
            weight = float(self._weights[-RECENT_KINDS + kind] * self._text.recency[now])
            gain = weight * math.log1p(float(amount) / prior)
            if len(places):
                yield Reason(_RECENT_CONTEXTS[kind].format(*before), "", int(places[-1]), NONE, 0, len(places), gain)


def contexts_from_tables(path: str, commit: str, tables: CommitTables) -> ContextsPredictor:
    """Open a commit of profile ``contexts`` in a task, given its tables."""
    return ContextsPredictor(open_commit(path, commit), tables=tables)


def contexts_from_rows(path: str, commit: str, regions: RegionKeys | None = None) -> WordPredictor:
    """Open a commit of profile ``contexts`` for one prompt: from its tables if there are any, else from rows."""
    if has_tables(path, commit):
        return ContextsPredictor(open_commit(path, commit))
    return opened_from_rows(path, commit, regions)
