"""Define the protocols of models and predictors, and the events of continuations.

A `Predictor` is a commit opened for prediction in one process; `ContinuationBatch` advances prompts over it. The models
of this package are in the folders beside this module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from giaann_dask.errors import PromptError
from giaann_dask.events import Observer, ignore
from giaann_dask.models.options import BatchOptions, GenerationOptions, StateOptions
from giaann_dask.models.results import GeneratedToken, ScoredWord
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ExportContents

if TYPE_CHECKING:
    from distributed import Client


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


class OpenedCommit(Protocol):
    """Identity and capabilities of a commit that is opened for prediction."""

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
    def has_probabilities(self) -> bool:
        """Whether words have probabilities, by which they can be drawn."""
        ...  # pragma: no cover


class Predictor(OpenedCommit, Protocol):
    """A commit of a network of any profile, opened in this process."""

    @property
    def observer(self) -> Observer:
        """Called when prompts enter, advance or leave."""
        ...  # pragma: no cover

    def health(self, within_s: float) -> str | None:
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

    def release(self) -> None:
        """Let go of memory beyond what is kept between single prompts."""
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
        Top-level function that returns the `Predictor`, called with `arguments` in a task.
    arguments : tuple
        Its arguments; futures among them stand for their results.
    profile : str
        As of the `Predictor`.
    subwords, has_probabilities : bool
        As of the `Predictor`.
    health : callable
        Called with seconds; returns why the network's rows are unavailable now, None if they are available.
    lost : callable
        Returns whether the cluster has lost what it kept, so that all has to be opened again.
    where : dict
        Arguments of `Client.submit` that restrict tasks to workers which can open the commit.
    """

    task: Callable[..., Predictor]
    arguments: tuple[object, ...]
    profile: str
    subwords: bool
    has_probabilities: bool
    health: Callable[[float], str | None] = lambda within_s: None
    lost: Callable[[], bool] = lambda: False
    where: dict[str, Any] = field(default_factory=dict)


class Model(ABC):
    """Rules that count text and predict from the counts; has no state."""

    @abstractmethod
    def require_fit(self, specification: Specification, options: GenerationOptions) -> None:
        """Raise an `OptionError` where a network of a specification cannot continue prompts with these options."""

    @abstractmethod
    def open(
        self,
        reader: CommitReader,
        *,
        client: Client | None = None,
        options: GenerationOptions,
        observer: Observer = ignore,
    ) -> Predictor:
        """Open a commit for many prompts in this process.

        Parameters
        ----------
        reader : CommitReader
            The commit.
        client : Client, optional
            Of the cluster that holds its regions; without one they are read into this process.
        options : GenerationOptions
            How rows are fetched from the cluster, and whether reasons are reported.
        observer : callable, optional
            Called when prompts enter, advance or leave.

        Raises
        ------
        ClusterError
            If the cluster does not respond in time.
        """

    @abstractmethod
    def open_on_workers(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """Return how tasks open a commit for many prompts; what they need is kept on the cluster.

        Raises
        ------
        ClusterError
            If the cluster does not respond in time.
        OptionError
            If the options do not fit the network.
        """

    @abstractmethod
    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> Predictor:
        """Open a commit for one prompt in this process, with as little read as possible."""

    @abstractmethod
    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """Return how a task opens a commit for one prompt; errors are those of `open_on_workers`."""

    @abstractmethod
    def export_contents(self, reader: CommitReader) -> ExportContents:
        """Return the arrays and dictionaries of an export of a commit."""
