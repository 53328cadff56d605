"""Continue prompts with a model of words, a word at a time: what the predictors of all these models have in common.

A prompt is divided into sentences and words as the text of files is. Where a sentence ends, the next begins, as in the
text that was counted. With `SamplingOptions` words are drawn by their probability instead of taking the most probable
one, and the same seed gives the same words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster.sharing import open_commit
from giaann_dask.errors import OptionError, PromptError
from giaann_dask.events import Observer, PromptsAdvanced
from giaann_dask.keys import source_key, word_key
from giaann_dask.models import model_of
from giaann_dask.models.base import PreparedText, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, SamplingOptions, require_prompt
from giaann_dask.models.results import (
    BEGINNING,
    Candidate,
    ConnectionKey,
    ContextPart,
    GeneratedToken,
    Reason,
    ScoredWord,
)
from giaann_dask.models.words.seen_words import SparseProbabilities
from giaann_dask.models.words.stream import BOUNDARY, ENDING, Context, View, key_of, value_of, view_name
from giaann_dask.rows.protocol import RowProjection
from giaann_dask.rows.remote import RegionKeys, row_source
from giaann_dask.rows.source import RowSource, RowStatistics
from giaann_dask.rows.stored import StoredRows
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import text_paragraphs
from giaann_dask.text.splitting import sentence_ended, split_text

Floats = npt.NDArray[np.float64]


class WordPredictor(ABC):
    """A commit of a model of words, opened in this process; a `giaann_dask.models.base.Predictor`.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    rows : RowSource or None
        Where its rows come from, if that is known.
    observer : callable
        Called when prompts enter, advance or leave.
    """

    has_probabilities, subwords = True, False

    def __init__(self, reader: CommitReader, rows: RowSource | None, observer: Observer) -> None:
        self.commit, self.observer, self._rows = reader.commit, observer, rows
        self.specification = reader.manifest().specification
        self.profile = self.specification.profile

    @property
    def row_figures(self) -> RowStatistics | None:
        """Rows that were requested of workers so far; None where none are."""
        return None if self._rows is None else self._rows.own_figures

    def health(self, within_s: float) -> str | None:
        """Return None: all is in this process, and rows that cannot be read are errors of their prompts."""
        return None

    def lost(self) -> bool:
        """Return False: all is in this process, or read from the store."""
        return False

    @abstractmethod
    def release(self) -> None:
        """Let go of rows beyond those that are kept between prompts."""

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> WordBatch:
        """Return an empty batch of prompts."""
        model_of(self.specification).require_fit(self.specification, options)
        return WordBatch(self, batch)

    @abstractmethod
    def start(self, prompt: str, options: GenerationOptions) -> WordText:
        """Return the continuation of a prompt; see `WordText`."""

    @abstractmethod
    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text that ends after so many characters."""


@lru_cache(maxsize=1)
def opened_from_rows(path: str, commit: str, regions: RegionKeys | None = None) -> WordPredictor:
    """Open a commit for one prompt, its rows from the store or from workers; a process keeps the last one."""
    reader = open_commit(path, commit)
    if regions is None:
        rows: RowSource = StoredRows(reader, whole=False)
    else:
        rows = row_source(reader.placement(), regions, projection=RowProjection())
    model: Any = model_of(reader.manifest().specification)
    opened: WordPredictor = model.open_rows(reader, rows)
    return opened


class WordText(ABC):
    """Continuation of one text, one step of inference for each word.

    Parameters
    ----------
    prompt : str
        Some words.
    options : GenerationOptions
        How much is generated and how words are drawn.
    contexts : sequence of Context
        Kinds of contexts, by the segments that words are counted on after them.

    Attributes
    ----------
    prompt : tuple of str
        Its words.
    seed : int or None
        Seed that words are drawn with; None where nothing is drawn.

    Raises
    ------
    PromptError
        If the prompt has no word, or is no text.
    """

    def __init__(self, prompt: str, options: GenerationOptions, contexts: Sequence[Context]) -> None:
        require_prompt(prompt)
        self._sentences = sentences_of(prompt)
        if not self._sentences:
            raise PromptError("the prompt has 0 words", "1 or more", "give another prompt")
        self.prompt = tuple(word for sentence in self._sentences for word in sentence)
        self.seed = options.sampling.seeded().seed
        self._options, self._contexts, self._left = options, contexts, options.max_tokens
        # The words so far of the present sentence, and the place of the next one in the whole text.
        self._sentence, self._now = [word.lower() for word in self._sentences[-1]], len(self.prompt)
        self._repeats = RepeatedWords(options.sampling)

    @cached_property
    def _draws(self) -> np.random.Generator:
        # Not where nothing is drawn: it imports numpy.random.
        return np.random.default_rng(self.seed)

    def step(self) -> GeneratedToken | None:
        """Return the next word, None at the end."""
        if not self._left:
            return None
        if sentence_ended(self._sentence):
            self._sentence = []
        (names, chance), options = self.predict(), self._options
        temperature = options.sampling.temperature
        allowed = self._repeats.without(chance)
        chosen = choose_word(allowed, temperature, self._draws if temperature else None)
        self._repeats.add(chosen)
        reasons = self.reasons(chosen) if options.reasons else ()
        likely = most_probable(chance, options.runners_up)
        others = [int(word) for word in likely if word != chosen][: options.runners_up - 1]
        candidates = tuple(Candidate(names[word], "", float(chance[word])) for word in (chosen, *others))
        self._sentence.append(names[chosen])
        self.enter(chosen)
        self._left, self._now = self._left - 1, self._now + 1
        return GeneratedToken(names[chosen], "", candidates, len(chance), reasons)

    @abstractmethod
    def predict(self) -> tuple[Sequence[str], Floats | SparseProbabilities]:
        """Return what can follow the words so far, and the probability of each; float64, shape ``(words,)``."""

    @abstractmethod
    def reasons(self, word: int) -> tuple[Reason, ...]:
        """Return why the last prediction gives a word its probability, the largest contribution first."""

    def enter(self, word: int) -> None:  # noqa: B027 - the sentence is enough for most models
        """Take a word for the next one."""

    def _key(self, segment: int, word: str, context: Context) -> ConnectionKey:
        """Return the connection from a kind of context, as it is now, to a word."""
        parts = []
        for view, distance in context.parts:
            value = self._value(view, distance)
            key = BEGINNING if value is None else key_of(view, value)
            parts.append(ContextPart(key, distance, view == ENDING and value is not None))
        keys = [np.array([BOUNDARY if part.key == BEGINNING else part.key], np.int64) for part in parts]
        return ConnectionKey(int(source_key(segment, keys)[0]), word_key(word), segment, 0, tuple(parts))

    def _value(self, view: View, distance: int) -> str | None:
        """Return what a view sees at a distance; None for the place before the sentence."""
        words = tuple(self._sentence[: len(self._sentence) + 1 - distance])
        return value_of(view, words) if words else None

    def _shown(self, context: Context) -> str:
        """Return the tokens of a kind of context, with ``_`` for every token between."""
        shown = ["_"] * max((distance for _, distance in context.parts), default=0)
        for view, distance in context.parts:
            value = self._value(view, distance) or "^"
            named = value if isinstance(view, str) else f"{view_name(view)}={value}"
            shown[-distance] = named if shown[-distance] == "_" else f"{shown[-distance]}&{named}"
        return "after " + (" ".join(shown) or "any word")

    def _nearest(self, context: Context) -> int:
        """Return the place of the nearest word of a kind of context in the whole text."""
        return self._now - min((distance for _, distance in context.parts), default=0)


class RepeatedWords:
    """Find the words that would repeat a sequence of a continuation (n-gram blocking; Paulus et al. 2018).

    Parameters
    ----------
    options : SamplingOptions
        Its `block_ngrams` is the length of a sequence; nothing is found from temperature 1 on.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._length = options.block_ngrams if options.temperature < 1 else 0
        self._words: list[int] = []
        self._followed: dict[tuple[int, ...], list[int]] = {}

    def without(self, chance: Floats | SparseProbabilities) -> Floats | SparseProbabilities:
        """Return probabilities with 0 for the words that would repeat a sequence, unless no other word is left."""
        repeated = self._followed.get(self._last, [])
        if not repeated:
            return chance
        if isinstance(chance, SparseProbabilities):
            left = chance.without(repeated)
            return left if left.total > 0 else chance
        allowed = chance.copy()
        allowed[repeated] = 0.0
        return allowed if allowed.any() else chance

    def add(self, word: int) -> None:
        """Add the number of the next word of the continuation."""
        if self._length and len(self._words) >= self._length - 1:
            self._followed.setdefault(self._last, []).append(word)
        self._words.append(word)

    @property
    def _last(self) -> tuple[int, ...]:
        return tuple(self._words[len(self._words) - self._length + 1 :])


class WordBatch:
    """Prompts continued in turn, a word at a time; a `giaann_dask.models.base.ContinuationBatch`.

    Parameters
    ----------
    opened : WordPredictor
        The commit that predicts.
    batch : BatchOptions, optional
        How many prompts are continued at a time.
    """

    def __init__(self, opened: WordPredictor, batch: BatchOptions | None = None) -> None:
        self._opened, self._slots = opened, (batch or BatchOptions()).slots
        self._texts: dict[int, WordText] = {}
        self._entered = 0

    def __len__(self) -> int:
        """Return the number of prompts in the batch."""
        return len(self._texts)

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return self._slots - len(self._texts)

    def prepare(self, prompt: str, options: GenerationOptions) -> PreparedText:
        """Divide a prompt into words; see `giaann_dask.models.base.ContinuationBatch.prepare`."""
        text = self._opened.start(prompt, options.seeded())
        changed: dict[str, Any] = {"model_options": options.model_options} if options.model_options else {}
        score = partial(self._opened.score, prompt, **changed)
        return PreparedText(text.prompt, partial(self._enter, text), score=score)

    def _enter(self, text: WordText) -> int:
        if not self.free_slots:
            raise OptionError("a prompt enters a full batch", "a free slot", "step until one has finished")
        number = self._entered
        self._texts[number] = text
        self._entered += 1
        self._opened.observer(PromptsAdvanced(entered=1))
        return number

    def step(self) -> list[TokenEvent]:
        """Choose the next word of every prompt; a prompt finishes one step after its last word."""
        events = []
        for number, text in [*self._texts.items()]:
            token = text.step()
            if token is None:
                del self._texts[number]
            self._opened.observer(PromptsAdvanced(left=int(token is None), tokens=int(token is not None)))
            events.append(TokenEvent(number, token, token is None, seed=text.seed))
        return events

    def leave(self, number: int) -> None:
        """Remove a prompt before its end; do nothing if it has left already."""
        if self._texts.pop(number, None) is not None:
            self._opened.observer(PromptsAdvanced(left=1))


def most_probable(chance: Floats | SparseProbabilities, count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the most probable words, best first, equal ones by number.

    Examples
    --------
    >>> most_probable(np.array([0.1, 0.6, 0.3]), 2).tolist()
    [1, 2]
    """
    if isinstance(chance, SparseProbabilities):
        return chance.best(count)
    count = min(count, len(chance))
    likely = np.argpartition(-chance, count - 1)[:count]
    return likely[np.lexsort((likely, -chance[likely]))]


def words_above(chance: Floats | SparseProbabilities, word: int) -> int:
    """Return how many words are more probable than one, or as probable and before it.

    Examples
    --------
    >>> words_above(np.array([0.1, 0.6, 0.1]), 2)
    2
    """
    if isinstance(chance, SparseProbabilities):
        return chance.above(word)
    return int((chance > chance[word]).sum() + (chance[:word] == chance[word]).sum())


def choose_word(chance: Floats | SparseProbabilities, temperature: float, draws: np.random.Generator | None) -> int:
    """Return the number of the most probable word, the first of equals, or of one that is drawn.

    Parameters
    ----------
    chance : ndarray
        Probability of each word, not all 0; float64, shape ``(words,)``.
    temperature : float
        0 takes the most probable word, 1 draws by probability.
    draws : numpy.random.Generator or None
        Source of random numbers; None where the temperature is 0.

    Examples
    --------
    >>> choose_word(np.array([0.1, 0.6, 0.3]), 0.0, None)
    1
    """
    if not temperature:
        return int(most_probable(chance, 1)[0]) if isinstance(chance, SparseProbabilities) else int(np.argmax(chance))
    chance = chance.dense() if isinstance(chance, SparseProbabilities) else chance
    assert draws is not None, "words are drawn with a temperature"
    # In logarithms, so that a low temperature does not make all of them 0, and relative to the largest before the
    # division, so that the lowest leaves the most probable words, whose logarithms are then 0.
    with np.errstate(divide="ignore", over="ignore"):
        scaled = np.log(chance / chance.max()) / temperature
    ladder = np.cumsum(np.exp(scaled))
    return int(np.searchsorted(ladder, draws.random() * ladder[-1], side="right"))


def sentences_of(text: str) -> list[list[str]]:
    r"""Return the sentences of a text, each a list of words, as those of a file with this text.

    Examples
    --------
    >>> sentences_of("The mill stood\nby the river. It\n\nThe baker")
    [['The', 'mill', 'stood', 'by', 'the', 'river', '.'], ['It'], ['The', 'baker']]
    """
    passages = list(text_paragraphs(text, ReadOptions().part_characters))
    return list(split_text(passages).sentences())


def word_places(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each word is in its text, which splitting changes by white space alone."""
    places = []
    end = 0
    for word in words:
        begin = text.index(word, end)
        end = begin + len(word)
        places.append((begin, end))
    return places
