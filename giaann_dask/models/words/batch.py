"""Continue many prompts with a model of words, each a word at a time."""

from __future__ import annotations

from functools import partial
from typing import Generic, Protocol, TypeVar

from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, PromptsAdvanced
from giaann_dask.models.base import PreparedText, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import GeneratedToken, ScoredWord


class WordContinuation(Protocol):
    """Continuation of one text.

    Attributes
    ----------
    prompt : tuple of str
        The words of the prompt.
    seed : int or None
        Seed that words are drawn with; None where nothing is drawn.
    """

    prompt: tuple[str, ...]
    seed: int | None


TextT = TypeVar("TextT", bound=WordContinuation)


class WordPredictor(Protocol[TextT]):
    """A commit of a model of words, opened to continue and score texts."""

    @property
    def observer(self) -> Observer:
        """Called when prompts enter, advance or leave."""

    def start(self, prompt: str, options: GenerationOptions) -> TextT:
        """Return the continuation of a prompt.

        Raises
        ------
        PromptError
            If the prompt has no word, or is no text.
        """

    def advance(self, text: TextT) -> GeneratedToken | None:
        """Return the next word of a continuation, None at its end."""

    def score(self, text: str, candidates: int = 0, after: int = 0) -> tuple[ScoredWord, ...]:
        """Return the probability of each word of a text that ends after so many characters."""


class WordBatch(Generic[TextT]):
    """Prompts continued in turn, a word at a time; a `giaann_dask.models.base.ContinuationBatch`.

    Parameters
    ----------
    opened : WordPredictor
        The commit that predicts.
    batch : BatchOptions, optional
        How many prompts are continued at a time.
    """

    def __init__(self, opened: WordPredictor[TextT], batch: BatchOptions | None = None) -> None:
        self._opened, self._slots = opened, (batch or BatchOptions()).slots
        self._texts: dict[int, TextT] = {}
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
        score = partial(self._opened.score, prompt)
        return PreparedText(text.prompt, partial(self._enter, text), score=score)

    def _enter(self, text: TextT) -> int:
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
            token = self._opened.advance(text)
            if token is None:
                del self._texts[number]
            self._opened.observer(PromptsAdvanced(left=int(token is None), tokens=int(token is not None)))
            events.append(TokenEvent(number, token, token is None, seed=text.seed))
        return events

    def leave(self, number: int) -> None:
        """Remove a prompt before its end; do nothing if it has left already."""
        if self._texts.pop(number, None) is not None:
            self._opened.observer(PromptsAdvanced(left=1))
