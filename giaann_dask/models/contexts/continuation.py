"""Continue one text with profile ``contexts``: the probability of every word, token by token, with reasons.

Does not cover: probabilities (`giaann_dask.models.contexts.scores`), opening a commit and many prompts
(`giaann_dask.models.contexts.predictor`).

What can follow are all known words and those of the prompt. Where a sentence ends, the next begins, as in
the text that was counted; with `SamplingOptions` words are drawn by their probability instead of taking
the most probable one, and the same seed gives the same words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from giaann_dask.errors import PromptError
from giaann_dask.keys import source_key, word_key
from giaann_dask.models.contexts.kernel import RECENT_KINDS, RECENT_PRIOR, Text, distribution, least_share
from giaann_dask.models.contexts.kinds import CONTEXTS
from giaann_dask.models.contexts.scores import LogLinearModel
from giaann_dask.models.contexts.tables import PRIOR_COUNTS
from giaann_dask.models.generation_options import GenerationOptions, require_prompt
from giaann_dask.models.results import (
    BEGINNING,
    Candidate,
    ConnectionKey,
    ContextPart,
    GeneratedToken,
    Reason,
    largest_contributions,
)
from giaann_dask.models.words.prompts import sentences_of
from giaann_dask.models.words.sampling import choose_word, most_probable
from giaann_dask.models.words.stream import BOUNDARY, NONE, WORD, TokenStream, ending_of
from giaann_dask.text.splitting import sentence_ended

Floats = npt.NDArray[np.float64]

# Farther back in a sentence than any context looks.
_REACH = 1 + max(distance for context in CONTEXTS for _, distance in context.parts)
# How what was read lately is named, in the order of the kernel's counts.
_RECENT_CONTEXTS = ("lately", "lately after {0}", "lately after {1} {0}")


class TextContinuation:
    """Continuation of one text; an iterator of tokens, one step of inference each.

    Parameters
    ----------
    model : LogLinearModel
        The learned counts and how they are pooled.
    prompt : str
        Some words.
    options : GenerationOptions
        How much is generated and how words are drawn.

    Attributes
    ----------
    model : LogLinearModel
        What predicts the next token: the one given, or later another one of the same commit.
    prompt : tuple of str
        Its words.
    seed : int or None
        Seed that words are drawn with; None where nothing is drawn.

    Raises
    ------
    PromptError
        If the prompt has no word, or is no text.
    """

    def __init__(self, model: LogLinearModel, prompt: str, options: GenerationOptions) -> None:
        require_prompt(prompt)
        sentences = sentences_of(prompt)
        if not sentences:
            raise PromptError("the prompt has 0 words", "1 or more", "give another prompt")
        self.prompt = tuple(word for sentence in sentences for word in sentence)
        # The second one has the rows of the step.
        self.model = self._model = model
        self._options, self._now = options, len(self.prompt)
        stream = TokenStream.from_documents([sentences])
        unknown, number = model.number_words(stream)
        self._names = (*model.tables.words, *unknown)
        self._text = self._with_capacity(model.words_with(unknown), number[stream.index])
        self._sentence = [word.lower() for word in sentences[-1]]
        self.seed = options.sampling.seeded().seed
        self._draws = np.random.default_rng(self.seed)

    def _with_capacity(self, words: Text, given: npt.NDArray[np.int64]) -> Text:
        """Return a text of the given tokens with capacity for the generated ones."""
        length = len(given) + self._options.max_tokens
        rows = np.full((length, self._model.tables.kinds), NONE, np.int64)
        number = np.concatenate([given, np.zeros(self._options.max_tokens, np.int64)])
        return words._replace(words=number, document=np.zeros(length, np.int64), rows=rows)

    def __iter__(self) -> Iterator[GeneratedToken]:
        """Return this."""
        return self

    def __next__(self) -> GeneratedToken:
        """Return the next token."""
        if self._now >= len(self._text.words):
            raise StopIteration
        self._now += 1
        return self._step(self._now - 1)

    def _step(self, now: int) -> GeneratedToken:
        if sentence_ended(self._sentence):
            self._sentence = []
        text, tail = self._text, self._sentence[-_REACH:]
        # Only the last of these tokens, which is not known yet, is looked at.
        stream = TokenStream.from_documents([[[*tail, ""]]])
        tables, (text.rows[now],) = self.model.rows_of(stream, len(tail), len(stream))
        model = self._model = LogLinearModel(tables, self.model.options)
        chance, _ = distribution(text, model.evidence, model.options.pooling, now)
        chosen = choose_word(chance, self._options.sampling.temperature, self._draws)
        reasons = self._reasons(now, chosen) if self._options.reasons else ()
        likely = most_probable(chance, self._options.runners_up)
        if chosen not in likely:
            likely[-1] = chosen
        others = [int(word) for word in likely if word != chosen]
        candidates = tuple(Candidate(self._names[word], "", float(chance[word])) for word in (chosen, *others))
        text.words[now] = chosen
        self._sentence.append(self._names[chosen])
        return GeneratedToken(self._names[chosen], "", candidates, len(chance), reasons)

    def _reasons(self, now: int, word: int) -> tuple[Reason, ...]:
        """Return the evidence that made a word more or less probable than without context, the largest first."""
        # By kind, too: a token can be written as the place of any token is.
        found: dict[tuple[int, str], Reason] = {}
        for reason in (*self._chain(now, word), *self._evidence(now, word), *self._recent(now, word)):
            # What the chain and the evidence look at alike is one reason.
            before = found.get((reason.segment, reason.word))
            gain = reason.contribution + (before.contribution if before else 0.0)
            found[reason.segment, reason.word] = replace(reason, contribution=gain)
        return tuple(largest_contributions(found.values(), self._options.reasons))

    def _entry(self, row: int, word: int) -> int:
        """Return the entry of a word in the row of a context, `NONE` where it never followed it."""
        tables = self._model.tables
        if row < 0:
            return NONE
        begin, end = (int(edge) for edge in tables.pointer[row : row + 2])
        at = begin + int(np.searchsorted(tables.word[begin:end], word))
        return at if at < end and tables.word[at] == word else NONE

    def _count(self, entry: int, word: int) -> float:
        tables = self._model.tables
        return float(np.rint(np.expm1(float(tables.evidence[entry])) * PRIOR_COUNTS * tables.share[word]))

    def _chain(self, now: int, word: int) -> Iterator[Reason]:
        """Yield the longest context of the chain that was seen before the word, with the chain's evidence."""
        table, left, direct, longest = self._model.evidence, 1.0, 0.0, NONE
        for kind in range(table.chain - 1, -1, -1):
            row = int(self._text.rows[now, kind])
            if row >= 0:
                entry = self._entry(row, word)
                if entry != NONE:
                    direct += left * float(table.discounted[entry])
                    longest = max(longest, kind)
                left *= float(table.freed[row])
        if longest != NONE:
            count = self._count(self._entry(int(self._text.rows[now, longest]), word), word)
            gain = math.log(direct / float(self._text.base[word]) + left)
            key = self._key(longest + 1, word)
            yield Reason(self._seen(longest + 1), "", now - 1, longest + 1, 0, count, gain, key)

    def _evidence(self, now: int, word: int) -> Iterator[Reason]:
        """Yield every context that was seen before the word and has a weight."""
        weights = self._model.options.pooling.weights
        for kind, row in enumerate(self._text.rows[now].tolist()):
            entry = self._entry(row, word) if weights[kind] else NONE
            if entry != NONE:
                gain = float(weights[kind]) * float(self._model.tables.evidence[entry])
                nearest = now - min(distance for _, distance in CONTEXTS[kind + 1].parts)
                count, key = self._count(entry, word), self._key(kind + 1, word)
                yield Reason(self._seen(kind + 1), "", nearest, kind + 1, 0, count, gain, key)

    def _recent(self, now: int, word: int) -> Iterator[Reason]:
        """Yield the evidence of recent words, as the kernel counts it."""
        pooling, words = self._model.options.pooling, self._text.words
        at = np.arange(max(now - len(pooling.fading) + 1, 0), now)
        at = at[words[at] == word]
        once = at[(at > 0) & (words[at - 1] == words[now - 1])]
        twice = once[(once > 1) & (words[once - 2] == words[now - 2])]
        prior = RECENT_PRIOR * least_share(float(self._text.share[word]))
        seen = (pooling.fading[now - at].sum(), len(once), len(twice))
        before = [self._names[int(words[now - back])] for back in (1, 2) if now >= back]
        for kind, (places, amount) in enumerate(zip((at, once, twice), seen, strict=True)):
            gain = float(pooling.weights[-RECENT_KINDS + kind]) * math.log1p(float(amount) / prior)
            if len(places):
                yield Reason(_RECENT_CONTEXTS[kind].format(*before), "", int(places[-1]), NONE, 0, len(places), gain)

    def _key(self, kind: int, word: int) -> ConnectionKey:
        """Return the connection from a kind of context, as it is now, to a word."""
        padded, parts = [None, *self._sentence], []
        for view, distance in CONTEXTS[kind].parts:
            seen = padded[-distance]
            ending = view != WORD and seen is not None
            name = ending_of(seen) if ending and seen is not None else seen
            parts.append(ContextPart(BEGINNING if name is None else word_key(name), distance, ending))
        keys = [np.array([BOUNDARY if part.key == BEGINNING else part.key], np.int64) for part in parts]
        source = int(source_key(kind, keys)[0])
        return ConnectionKey(source, word_key(self._names[word]), kind, 0, tuple(parts))

    def _seen(self, kind: int) -> str:
        """Return the tokens of a kind of context, with ``_`` for every token between."""
        parts: Sequence[tuple[str, int]] = CONTEXTS[kind].parts
        padded = ["^", *self._sentence]
        shown = ["_"] * max(distance for _, distance in parts)
        for view, distance in parts:
            word = padded[-distance]
            shown[-distance] = word if view == WORD or word == "^" else ending_of(word)
        return "after " + " ".join(shown)
