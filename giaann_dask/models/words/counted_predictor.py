"""Predict words with a model of one's own, from rows of counts that are read as they are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers, unpack_target, word_key
from giaann_dask.models import model_of
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, require_prompt
from giaann_dask.models.results import (
    BEGINNING,
    Candidate,
    ConnectionKey,
    ContextPart,
    GeneratedToken,
    Reason,
    ScoredWord,
    largest_contributions,
)
from giaann_dask.models.words.batch import WordBatch
from giaann_dask.models.words.prompts import sentences_of, word_places
from giaann_dask.models.words.sampling import choose_word, most_probable
from giaann_dask.models.words.spelling import Spelling
from giaann_dask.models.words.stream import EVERYWHERE, NONE, WORD, Context, TokenStream, ending_of
from giaann_dask.rows.cache import RowStatistics
from giaann_dask.rows.messages import RowProjection
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource
from giaann_dask.rows.stored import KEPT_BYTES, StoredRows
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.splitting import sentence_ended

if TYPE_CHECKING:
    from giaann_dask.models.words.counted_model import CountedModel

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SeenWords:
    """Counts that predict the next word of a text.

    Attributes
    ----------
    counts : ndarray
        How often each known word occurs at all, in falling order; float64, shape ``(words,)``.
    after : tuple of (ndarray, ndarray)
        For each context of the model the places in `counts` of the words that followed it, int64, and how often each
        did, float64; both are empty where it was never seen.
    """

    counts: Floats
    after: tuple[tuple[Integers, Floats], ...]


class CountedPredictor:
    """A commit of a model of one's own, opened in this process.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    rows : RowSource
        Its counts.
    observer : callable, optional
        Called when prompts enter, advance or leave.

    Attributes
    ----------
    words : tuple of str
        Known words, the most frequent ones first, equal ones by name.
    """

    has_probabilities, subwords = True, False

    def __init__(self, reader: CommitReader, rows: RowSource, observer: Observer = ignore) -> None:
        self.commit, self.observer = reader.commit, observer
        self._rows, self._specification = rows, reader.manifest().specification
        self.profile = self._specification.profile
        self._model = cast("CountedModel", model_of(self._specification))
        self._options = self._model.options_of(self._specification)
        self.contexts = self._model.require_contexts(self._specification)
        self.words, self._counts, self._keys, self._order = self._read_words(reader)

    def _read_words(self, reader: CommitReader) -> tuple[tuple[str, ...], Floats, Integers, Integers]:
        """Return the words, their counts, their keys, and the order of these."""
        row, names = self._rows.row(EVERYWHERE), reader.saved_vocabulary().features[1:]
        counted = (
            {} if row is None else dict(zip(unpack_target(row.target)[1].tolist(), row.strength.tolist(), strict=True))
        )
        found = sorted((-counted[key], name, key) for name in names if (key := word_key(name)) in counted)
        keys = np.array([key for *_, key in found], np.int64)
        return tuple(name for _, name, _ in found), np.array([-n for n, *_ in found], float), keys, np.argsort(keys)

    @property
    def row_figures(self) -> RowStatistics | None:
        """Rows that were requested of workers so far; None where none are."""
        return self._rows.own_figures

    def numbers(self, keys: Integers) -> Integers:
        """Return the places of words by their keys, `NONE` for unknown ones."""
        if not len(self._keys):
            return np.full(len(keys), NONE, np.int64)
        at = self._order[np.minimum(np.searchsorted(self._keys, keys, sorter=self._order), len(self._keys) - 1)]
        return np.where(self._keys[at] == keys, at, NONE)

    def seen(self, sentence: Sequence[str]) -> SeenWords:
        """Return the counts that predict the word after the beginning of a sentence."""
        stream, after = TokenStream.from_documents([[[*sentence, ""]]]), []
        for segment, context in enumerate(self.contexts, 1):
            key = int(stream.sources(segment, context, len(sentence))[0])
            row = None if key == NONE else self._rows.row(key)
            if row is None:
                after.append((np.zeros(0, np.int64), np.zeros(0)))
                continue
            of, word, _ = unpack_target(row.target)
            number = self.numbers(word)
            known = (of == segment) & (number != NONE)
            after.append((number[known], row.strength[known].astype(np.float64)))
        return SeenWords(self._counts, tuple(after))

    def chance(self, seen: SeenWords) -> Floats:
        """Return the probability of each known word, as the model says.

        Raises
        ------
        OptionError
            If these are no probabilities.
        """
        found = np.asarray(self._model.probabilities(seen, self._options), np.float64)
        fits = found.shape == self._counts.shape and bool((found >= 0).all()) and float(found.sum()) <= 1 + 1e-6
        if not fits:
            received = f"the model {self.profile} returns {found.shape} values with a sum of {float(found.sum()):g}"
            expected = f"{len(self.words)} probabilities, one for each known word"
            raise OptionError(received, expected, "mend its method probabilities")
        return found

    @cached_property
    def _spelling(self) -> Spelling:
        return Spelling.learn(self.words)

    def log_probability(self, chance: Floats, word: str) -> tuple[float, int]:
        """Return the natural logarithm of a word's probability, and its place, `NONE` where it is not known."""
        number = int(self.numbers(np.array([word_key(word)], np.int64))[0])
        with np.errstate(divide="ignore"):
            if number != NONE:
                return float(np.log(chance[number])), number
            # An unknown word costs its spelling, so that models with other dictionaries can be compared.
            return float(np.log(max(1 - chance.sum(), 0)) + self._spelling.log_probability([word])[0]), NONE

    def health(self, within_s: float) -> str | None:
        """Return None: rows that cannot be read are errors of their prompts."""
        return None

    def lost(self) -> bool:
        """Return False: rows are in this process, or read from the store."""
        return False

    def release(self) -> None:
        """Let go of rows beyond those that are kept between prompts."""
        if isinstance(self._rows, StoredRows):
            self._rows.release_beyond(KEPT_BYTES)

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> WordBatch[CountedText]:
        """Return an empty batch of prompts."""
        self._model.require_fit(self._specification, options)
        return WordBatch(self, batch)

    def start(self, prompt: str, options: GenerationOptions) -> CountedText:
        """Return the continuation of a prompt."""
        return CountedText(self, prompt, options)

    def advance(self, text: CountedText) -> GeneratedToken | None:
        """Return the next word of a continuation, None at its end."""
        return text.step()

    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text that ends after so many characters."""
        require_prompt(text)
        sentences = sentences_of(text)
        places = iter(word_places(text, [word for sentence in sentences for word in sentence]))
        found = []
        for sentence in sentences:
            for at, word in enumerate(sentence):
                begin, end = next(places)
                if end <= after:
                    continue
                chance = self.chance(self.seen(sentence[:at]))
                value, number = self.log_probability(chance, word.lower())
                likely = most_probable(chance, candidates).tolist() if candidates else []
                listed = tuple(Candidate(self.words[each], "", float(chance[each])) for each in likely)
                found.append(ScoredWord(begin, end, value, number == int(np.argmax(chance)), listed))
        return tuple(found)


class CountedText:
    """Continuation of one text; parameters are those of `CountedPredictor.start`.

    Raises
    ------
    PromptError
        If the prompt has no word, or the network has counted nothing.
    """

    def __init__(self, opened: CountedPredictor, prompt: str, options: GenerationOptions) -> None:
        require_prompt(prompt)
        sentences = sentences_of(prompt)
        if not sentences:
            raise PromptError("the prompt has 0 words", "1 or more", "give another prompt")
        if not opened.words:
            raise PromptError("the network has counted no word", "a trained network", "train it first")
        self.prompt = tuple(word for sentence in sentences for word in sentence)
        self.seed = options.sampling.seeded().seed
        self._opened, self._options, self._left = opened, options, options.max_tokens
        self._sentence = [word.lower() for word in sentences[-1]]
        self._position, self._draws = len(self.prompt), np.random.default_rng(self.seed)

    def step(self) -> GeneratedToken | None:
        """Return the next word, None at the end."""
        if not self._left:
            return None
        if sentence_ended(self._sentence):
            self._sentence = []
        opened, options = self._opened, self._options
        seen = opened.seen(self._sentence)
        chance = opened.chance(seen)
        chosen = choose_word(chance, options.sampling.temperature, self._draws)
        likely = most_probable(chance, options.runners_up)
        others = [int(word) for word in likely if word != chosen][: max(options.runners_up - 1, 0)]
        candidates = tuple(Candidate(opened.words[word], "", float(chance[word])) for word in (chosen, *others))
        reasons = self._reasons(seen, chosen) if options.reasons else ()
        self._sentence.append(opened.words[chosen])
        self._left, self._position = self._left - 1, self._position + 1
        return GeneratedToken(opened.words[chosen], "", candidates, len(chance), reasons)

    def _reasons(self, seen: SeenWords, word: int) -> tuple[Reason, ...]:
        """Return the contexts that the word was seen after, the one that raises its share most first."""
        found, share = [], float(seen.counts[word] / seen.counts.sum())
        for segment, (context, (words, counts)) in enumerate(zip(self._opened.contexts, seen.after, strict=True), 1):
            at = np.flatnonzero(words == word)
            if len(at):
                count = float(counts[at[0]])
                gain = math.log(count / float(counts.sum()) / share)
                nearest = self._position - min((distance for _, distance in context.parts), default=0)
                key = self._key(segment, context, word)
                found.append(Reason(self._shown(context), "", nearest, segment, 0, count, gain, key))
        return tuple(largest_contributions(found, self._options.reasons))

    def _key(self, segment: int, context: Context, word: int) -> ConnectionKey:
        padded, parts = [None, *self._sentence], []
        for view, distance in context.parts:
            token = padded[-distance]
            name = token if token is None or view == WORD else ending_of(token)
            parts.append(ContextPart(BEGINNING if name is None else word_key(name), distance, view != WORD))
        stream = TokenStream.from_documents([[[*self._sentence, ""]]])
        source = int(stream.sources(segment, context, len(self._sentence))[0])
        return ConnectionKey(source, word_key(self._opened.words[word]), segment, 0, tuple(parts))

    def _shown(self, context: Context) -> str:
        """Return the tokens of a context, with ``_`` for every token between."""
        padded = ["^", *self._sentence]
        shown = ["_"] * max((distance for _, distance in context.parts), default=0)
        for view, distance in context.parts:
            token = padded[-distance]
            shown[-distance] = token if view == WORD or token == "^" else ending_of(token)
        return "after " + " ".join(shown)


def counted_from_regions(path: str, commit: str, regions: Sequence[Run] | RegionKeys) -> CountedPredictor:
    """Open a commit in a task, given its regions or where these are."""
    reader = open_commit(path, commit)
    return CountedPredictor(reader, row_source(reader.placement(), regions, projection=RowProjection()))


@lru_cache(maxsize=1)
def counted_from_store(path: str, commit: str) -> CountedPredictor:
    """Open a commit that reads its rows from the store; a process keeps the last one."""
    reader = open_commit(path, commit)
    return CountedPredictor(reader, StoredRows(reader, whole=False))
