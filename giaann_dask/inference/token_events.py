"""Define the events of continuations and the protocols through which networks of every profile are continued.

`ContinuationBatch` is implemented for networks of columns (`giaann_dask.inference.sessions`) and for profile ``best``
(`giaann_dask.inference.best.handle`); `giaann_dask.inference.registry` opens the network of any profile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from giaann_dask.errors import PromptError
from giaann_dask.events import Observer
from giaann_dask.inference.batch import BatchOptions
from giaann_dask.inference.continuation import Continuation, GeneratedToken, GenerationOptions, ScoredWord
from giaann_dask.inference.state.options import StateOptions


@dataclass(frozen=True, slots=True)
class ActiveColumn:
    """An active concept column.

    Attributes
    ----------
    concept : str
        Its noun.
    activation : float
        Sum of the activation of all entries of its neurons, when the token was chosen.
    """

    concept: str
    activation: float


@dataclass(frozen=True)
class TokenEvent:
    """New token, end or error of one of many continuations.

    Attributes
    ----------
    number : int
        Which prompt, counted from 0.
    token : GeneratedToken or None
        The next token; None where there is none, at the end or because of an error.
    finished : bool
        Whether this is the last piece of the prompt.
    stop : str or None
        Why there are fewer tokens than asked for.
    error : PromptError or None
        Why the prompt cannot be continued at all; the others go on.
    seed : int or None
        What the words of the prompt's continuation are drawn with; None where nothing is drawn.
    columns : tuple of ActiveColumn
        Concept columns after the step, largest activation first; only of `PreparedText.with_columns`.
    """

    number: int
    token: GeneratedToken | None
    finished: bool
    stop: str | None = None
    error: PromptError | None = None
    seed: int | None = None
    columns: tuple[ActiveColumn, ...] = ()


@dataclass(frozen=True)
class PromptWords:
    """Words of a prompt as the network divides it.

    Attributes
    ----------
    words : tuple of str
        Its words as text has them, merged nouns with spaces.
    scores : tuple of ScoredWord
        Their probabilities, where they are requested.
    """

    words: tuple[str, ...]
    scores: tuple[ScoredWord, ...] = ()


@dataclass(frozen=True, eq=False)
class PreparedText:
    """A prompt divided into tokens, ready to enter the batch that prepared it.

    Attributes
    ----------
    words : tuple of str
        Its words as text has them, merged nouns with spaces.
    enter : callable
        Adds it to the batch, in the thread that steps the batch; returns its number in the batch's events, counted
        from 0. Raises `OptionError` if all slots are taken.
    with_columns : callable or None
        Continues it outside the batch, in any thread, and yields events with concept columns, as many as the options
        request; None after each step without an event. Is None itself where a network has no columns.
    score : callable or None
        Returns the probability of each of its words, in any thread, with as many candidates as it is called with. Is
        None itself where words have no probabilities.
    """

    words: tuple[str, ...]
    enter: Callable[[], int]
    with_columns: Callable[[StateOptions], Generator[TokenEvent | None, None, None]] | None = None
    score: Callable[[int], tuple[ScoredWord, ...]] | None = None


class ContinuationBatch(Protocol):
    """Prompts that are continued together, a step at a time; none depends on the others."""

    def __len__(self) -> int:
        """Return the number of prompts in the batch."""
        ...  # pragma: no cover

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        ...  # pragma: no cover

    def prepare(self, prompt: str, options: GenerationOptions) -> PreparedText:
        """Divide a prompt into tokens, in any thread; does not change the batch.

        Of the options only those count that the batch was not opened with: `tokens`, `runners_up`, `reasons` and
        `sampling`.

        Raises
        ------
        PromptError
            If the prompt cannot be continued.
        """
        ...  # pragma: no cover

    def step(self) -> list[TokenEvent]:
        """Do the next step of every prompt; return its events. Prompts that have finished leave."""
        ...  # pragma: no cover

    def leave(self, number: int) -> None:
        """Remove a prompt before its end; do nothing if it has left already."""
        ...  # pragma: no cover


class OpenNetwork(Protocol):
    """A commit of a network of any profile, opened in this process."""

    @property
    def commit(self) -> str:
        """Identity of the commit."""
        ...  # pragma: no cover

    @property
    def profile(self) -> str:
        """Profile of the network."""
        ...  # pragma: no cover

    @property
    def subwords(self) -> bool:
        """Whether tokens are subwords."""
        ...  # pragma: no cover

    @property
    def draws(self) -> bool:
        """Whether words have probabilities, by which they can be drawn."""
        ...  # pragma: no cover

    @property
    def observer(self) -> Observer:
        """Called when prompts enter, advance or leave."""
        ...  # pragma: no cover

    def trouble(self, within_s: float) -> str | None:
        """Return why prompts cannot be continued now, None if they can.

        Parameters
        ----------
        within_s : float
            Seconds for a response of the cluster.
        """
        ...  # pragma: no cover

    def lost(self) -> bool:
        """Return whether the cluster that held the rows is lost, so that the network has to be opened again."""
        ...  # pragma: no cover

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> ContinuationBatch:
        """Return an empty batch.

        Raises
        ------
        OptionError
            If the options do not fit the network.
        """
        ...  # pragma: no cover


@dataclass(frozen=True, eq=False)
class WorkerOpening:
    """Task that opens a commit on a worker; its arguments stay on the cluster as long as this value exists.

    Attributes
    ----------
    task : callable
        Top-level function that returns the `OpenNetwork`, called with `arguments` in a task.
    arguments : tuple
        Its arguments; futures among them stand for their results.
    profile : str
        As of the `OpenNetwork`.
    subwords, draws : bool
        As of the `OpenNetwork`.
    trouble : callable
        Called with seconds; returns why the network's rows are unavailable now, None if they are available.
    lost : callable
        Returns whether the cluster has lost what it kept, so that all has to be opened again.
    """

    task: Callable[..., OpenNetwork]
    arguments: tuple[object, ...]
    profile: str
    subwords: bool
    draws: bool
    trouble: Callable[[float], str | None]
    lost: Callable[[], bool]


class ContinuationStream:
    """Continuations of many prompts; an iterator of `TokenEvent`, and a context manager.

    Parameters
    ----------
    commit : str
        The commit that answers.
    pieces : generator of TokenEvent
        What is new, as it comes.
    subwords : bool
        Whether tokens are subwords.

    Attributes
    ----------
    network : str
        Folder or URL of the network, where it is known.
    """

    def __init__(self, commit: str, pieces: Generator[TokenEvent, None, None], *, subwords: bool = False) -> None:
        self.network = ""
        self._commit, self._pieces, self._subwords = commit, pieces, subwords
        self._words: dict[int, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[TokenEvent]:
        """Return this."""
        return self

    def __next__(self) -> TokenEvent:
        """Return the next piece of any of the prompts."""
        return next(self._pieces)

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End all continuations in progress."""
        self._pieces.close()

    def continuations(self) -> Iterator[Continuation]:
        """Yield whole continuations in the order of the prompts.

        Raises
        ------
        PromptError
            If a prompt cannot be continued.
        """
        tokens: dict[int, list[GeneratedToken]] = {}
        ended: dict[int, TokenEvent] = {}
        following = 0
        for piece in self:
            if piece.error is not None:
                raise piece.error
            if piece.token is not None:
                tokens.setdefault(piece.number, []).append(piece.token)
            if piece.finished:
                ended[piece.number] = piece
            while following in ended:
                last = ended.pop(following)
                words, its = self._words.pop(following), tuple(tokens.pop(following, ()))
                yield Continuation(words, its, last.stop, self._commit, self._subwords, last.seed, self.network)
                following += 1


class PromptSession:
    """One prompt that is continued token by token; an iterator of `GeneratedToken`, and a context manager.

    Attributes
    ----------
    tokens : tuple of GeneratedToken
        What has come so far.
    stop : str or None
        Why there are fewer tokens than asked for, once it has ended.
    seed : int or None
        What its words are drawn with, once the first has come; None where nothing is drawn.
    """

    def __init__(self, pieces: ContinuationStream) -> None:
        self._pieces = pieces
        self.tokens: tuple[GeneratedToken, ...] = ()
        self.stop: str | None = None
        self.seed: int | None = None

    def __iter__(self) -> Iterator[GeneratedToken]:
        """Return this."""
        return self

    def __next__(self) -> GeneratedToken:
        """Return the next token.

        Raises
        ------
        PromptError
            If the prompt cannot be continued.
        """
        piece = next(self._pieces)
        if piece.error is not None:
            raise piece.error
        self.seed = piece.seed
        if piece.token is None:
            self.stop = piece.stop
            raise StopIteration
        self.tokens = (*self.tokens, piece.token)
        return piece.token

    def __enter__(self) -> Self:
        """Return this."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End the continuation."""
        self._pieces.close()
