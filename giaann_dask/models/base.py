"""Define the protocols of models and predictors, and the events of continuations.

A `Predictor` is a commit opened for prediction in one process; `ContinuationBatch` advances prompts over it. The models
of this package are in the folders beside this module.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from giaann_dask.dask_types import read_only
from giaann_dask.device import DeviceName
from giaann_dask.errors import GiaannError, ModelError, OptionError, PromptError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import Integers
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions, StateOptions
from giaann_dask.models.own_options import own_options
from giaann_dask.models.results import ConnectionKey, EvaluationReport, GeneratedToken, ScoredWord
from giaann_dask.models.totals import Totals
from giaann_dask.registry import ModelTraits
from giaann_dask.runs.packing import PackedRegionRun, PackedRun
from giaann_dask.runs.pair_tables import PairRegionRun
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.postings import Postings
from giaann_dask.runs.run import RegionRun, Run
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ColumnArray, Compression, ExportContents
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

    from giaann_dask.encoding.sources import SourceOptions
    from giaann_dask.models.generation_options import EvaluationOptions
    from giaann_dask.models.words.score_report import ScoreReport, ScoringOptions
    from giaann_dask.rows.regions import RegionHandles
    from giaann_dask.rows.source import RowStatistics

# Names, and the place among them of every value, -1 for none.
NameTable: TypeAlias = tuple[Sequence[str], npt.NDArray[np.integer[Any]]]


class ConnectionNames(Protocol):
    """Names of what the keys of a network's connections stand for."""

    @property
    def segments(self) -> Sequence[str]:
        """Name of every segment."""

    def source(self, segment: int, key: int) -> str:
        """Return the name of a source, as the target receives it on a segment."""

    def target(self, key: int) -> str:
        """Return the name of a target."""

    def of_arrays(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, NameTable]:
        """Return the names of values of coordinate arrays, by the names of new columns."""


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
        Returns the probability of each of its words, in any thread, with as many candidates as it is called with; only
        of those that end after so many characters as `after` says. Is None itself where words have no probabilities.
    """

    words: tuple[str, ...]
    enter: Callable[[], int]
    with_columns: Callable[[StateOptions], Generator[TokenEvent | None, None, None]] | None = None
    score: Callable[..., tuple[ScoredWord, ...]] | None = None


class ContinuationBatch(Protocol):
    """Prompts that are continued together, a step at a time; none depends on the others."""

    def __len__(self) -> int:
        """Return the number of prompts in the batch."""

    @property
    def free_slots(self) -> int:
        """Number of free slots."""

    def prepare(self, prompt: str, options: GenerationOptions) -> PreparedText:
        """Divide a prompt into tokens, in any thread; does not change the batch.

        Of the options only those count that the batch was not opened with: `tokens`, `runners_up`, `reasons` and
        `sampling`.

        Raises
        ------
        PromptError
            If the prompt cannot be continued.
        """

    def step(self) -> list[TokenEvent]:
        """Do the next step of every prompt; return its events. Prompts that have finished leave."""

    def leave(self, number: int) -> None:
        """Remove a prompt before its end; do nothing if it has left already."""


class Predictor(Protocol):
    """A commit of a network of any profile, opened in this process."""

    @property
    def commit(self) -> str:
        """Identity of the commit."""

    @property
    def profile(self) -> str:
        """Profile of the network."""

    @property
    def subwords(self) -> bool:
        """Whether tokens are subwords."""

    @property
    def has_probabilities(self) -> bool:
        """Whether words have probabilities, by which they can be drawn."""

    @property
    def row_figures(self) -> RowStatistics | None:
        """Rows that were requested of workers so far; None where none are."""

    @property
    def observer(self) -> Observer:
        """Called when prompts enter, advance or leave."""

    def health(self, within_s: float) -> str | None:
        """Return why prompts cannot be continued now, None if they can.

        Parameters
        ----------
        within_s : float
            Seconds for a response of the cluster.
        """

    def lost(self) -> bool:
        """Return whether the cluster that held the rows is lost, so that the network has to be opened again."""

    def release(self) -> None:
        """Let go of memory beyond what is kept between single prompts."""

    def open_batch(self, options: GenerationOptions, batch: BatchOptions | None = None) -> ContinuationBatch:
        """Return an empty batch.

        Raises
        ------
        OptionError
            If the options do not fit the network.
        """


@dataclass(frozen=True, eq=False)
class WorkerOpening:
    """Task that opens a commit on a worker; its arguments stay on the cluster as long as this value exists.

    Attributes
    ----------
    task : callable
        Top-level function that returns the `Predictor`, called with `arguments` in a task.
    arguments : tuple
        Its arguments; futures among them stand for their results.
    health : callable
        Called with seconds; returns why the network's rows are unavailable now, None if they are available.
    lost : callable
        Returns whether the cluster has lost what it kept, so that all has to be opened again.
    where : dict
        Arguments of `Client.submit` that restrict tasks to workers which can open the commit.
    near : callable
        Called with a prompt; returns further ones, by which its task prefers the worker that has most of its rows.
    """

    task: Callable[..., Predictor]
    arguments: tuple[object, ...]
    health: Callable[[float], str | None] = lambda within_s: None
    lost: Callable[[], bool] = lambda: False
    where: dict[str, Any] = field(default_factory=dict)
    near: Callable[[str], dict[str, Any]] = lambda prompt: {}

    @classmethod
    def over(
        cls,
        regions: RegionHandles,
        task: Callable[..., Predictor],
        arguments: tuple[object, ...],
        regions_of: Callable[[str], Iterable[int]] = lambda prompt: (),
    ) -> WorkerOpening:
        """Return the opening by a task of regions on workers, which stay there as long as it exists.

        Parameters
        ----------
        regions : RegionHandles
            The regions.
        task, arguments
            See `WorkerOpening`.
        regions_of : callable, optional
            Called with a prompt; returns the region of each row that it reads, as far as that is known.
        """

        def near(prompt: str) -> dict[str, Any]:
            return regions.near(regions_of(prompt)) if regions.holders else {}

        return cls(task, arguments, regions.health, regions.lost, regions.submit_kwargs, near)


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Options of a model that has none."""


class UsedNames(NamedTuple):
    """Names that the counts of a run use.

    Attributes
    ----------
    columns : ndarray
        Numbers of concepts, ascending; int64, empty in models of words.
    features : ndarray
        Numbers of features, or keys of words in models of words, ascending; int64.
    """

    columns: Integers
    features: Integers


class DerivedTables(Protocol):
    """Rules of tables that need all counts: collected from each region for all others, then joined by region.

    A region stands for its group here (`Placement.groups_of`), whose regions have rows in common.
    """

    def collect(self, regions: Sequence[Callable[[], Iterable[Run]]], placement: Placement) -> Any:
        """Return what the counts of a region say, for this region and others (a task).

        Parameters
        ----------
        regions : sequence of callable
            Of the group; each returns the counts of a region in blocks of rows, and may be called several times.
        placement : Placement
            Where counts belong.
        """

    def join(self, region: int, parts: Sequence[Any], own: Any) -> tuple[PackedRun, Integers] | None:
        """Return the table of a region with figures of it (a task); None where counts contradict each other.

        Parameters
        ----------
        region : int
            Which.
        parts : sequence
            What was collected of all regions.
        own : object
            What was collected of this region.
        """


class ErrorMask(Protocol):
    """Marker of the tokens that a commit does not predict, which error-driven training counts."""

    def __init__(self, client: Client, reader: CommitReader) -> None:
        """Open the commit on a cluster."""

    def submit(self, block: Future, vocabulary: Vocabulary) -> Future:
        """Submit the task that marks the tokens of a block to train (`EncodedBlock.train_mask`).

        Parameters
        ----------
        block : Future
            An `EncodedBlock`.
        vocabulary : Vocabulary
            Dictionaries as of the end of the block.
        """


@dataclass(frozen=True, eq=False)
class EvaluatedText:
    """Text, and the commit and the cluster that it is evaluated with.

    Attributes
    ----------
    client : Client
        Where tasks run.
    reader : CommitReader
        The commit.
    inputs : sequence of str or MemoryInput
        Text, as for training.
    sources : SourceOptions
        How it is read; of models of columns, the filter drops short sentences.
    observer : callable
        Called with every event.
    """

    client: Client
    reader: CommitReader
    inputs: Sequence[Source]
    sources: SourceOptions
    observer: Observer = ignore


class ExportFormat(Protocol):
    """Writer of a commit to one file of a format that not every model has."""

    def __call__(self, reader: CommitReader, path: Path, observer: Observer, compression: Compression) -> None:
        """Write the file, which is there only when it is complete.

        Parameters
        ----------
        reader : CommitReader
            The commit.
        path : Path
            The file.
        observer : callable
            Notified of progress.
        compression : {"default", "none"}
            Of formats that are compressed.
        """


Pairs: TypeAlias = Iterable[tuple[str, Any]]
# Methods that say what an export has.
_EXPORTS = ("export_contents", "coordinates", "segment_names")


def _is_ours(cls: type) -> bool:
    """Return whether a class is of this package, or a builtin."""
    return cls.__module__.partition(".")[0] in (__name__.partition(".")[0], "abc", "builtins")


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of another package's model: it cannot write to what it is given, and its errors name the model.

    Raises
    ------
    ModelError
        Instead of an error that is none of this package.
    """

    def given(value: Any) -> Any:
        if isinstance(value, FunctionType):
            return lambda *arguments: read_only(value(*arguments))
        return read_only(value)

    @functools.wraps(method)
    def call(self: Model, *arguments: Any, **keywords: Any) -> Any:
        try:
            return method(self, *map(given, arguments), **keywords)
        except (GiaannError, MemoryError):
            raise
        except Exception as error:
            cls = type(self)
            raise ModelError.of(f"the model {cls.__module__}.{cls.__qualname__}", method.__name__, error) from error

    return call


class Model(ABC):
    """Rules that count text and predict from the counts; has no state.

    Attributes
    ----------
    traits : ModelTraits
        What it reads and offers.
    options : type
        Frozen dataclass of its own options, which checks their values; models of this package have theirs in
        `Specification`.
    sums_pairs : bool
        Whether increments are pairs of tokens, which a device can sum.
    counts_dense : bool
        Whether a sequence can be counted in a dense tensor of its columns and features, as published.
    error_mask : type or None
        Class that marks what a commit misses; None for a model that is trained on all tokens.
    implied_segment : int
        Segment of counts that the others imply; -1 for none. They are counted by comparisons, and never named.
    base : str
        Of a model of columns of another package, the profile whose rules it changes, ``"v1"`` or ``"v2"``.
    defaults : mapping of str to Any
        Of such a model, values of fields of `Specification` that differ from those of its base.
    """

    traits: ClassVar[ModelTraits] = ModelTraits()
    options: ClassVar[type] = NoOptions
    sums_pairs: ClassVar[bool] = False
    counts_dense: ClassVar[bool] = False
    error_mask: ClassVar[type[ErrorMask] | None] = None
    implied_segment: ClassVar[int] = -1
    base: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if not _is_ours(cls):
            for name, value in list(vars(cls).items()):
                if isinstance(value, FunctionType) and not name.startswith("_"):
                    setattr(cls, name, guarded(value))

    def require_trainable(self, specification: Specification) -> None:  # noqa: B027 - most models need no check
        """Raise a `SpecificationError` where a network of a specification cannot be trained by adding up."""

    def options_of(self, specification: Specification) -> Any:
        """Return the model's own options of a network, an instance of `options`."""
        return own_options(specification, self.options)

    def changed_options(
        self, specification: Specification, given: Mapping[str, Any] | Iterable[tuple[str, Any]]
    ) -> Any:
        """Return the model's own options of a network, with some that only predictions read changed.

        Raises
        ------
        OptionError
            If the model has none, or they change what is counted.
        SpecificationError
            If the model has no such options, or not such values.
        """
        changes = dict(given)
        if not changes:
            return self.options_of(specification)
        if not specification.package:
            received = f"model_options {changes} for a network of the model {specification.profile}"
            raise OptionError(received, "a model of another package", "leave model_options out")
        wanted = replace(specification, model_options={**dict(specification.model_options), **changes})
        options = self.options_of(wanted)
        if not self.counts_alike(specification, wanted):
            expected = "options that only predictions read"
            raise OptionError(f"model_options {changes} change what is counted", expected, "train a new network")
        return options

    def weights(self, distances: Integers, specification: Specification) -> npt.NDArray[np.floating[Any]]:
        """Return what a pair of tokens adds by their distance; of models of columns, by default as their `base` does.

        Parameters
        ----------
        distances : ndarray
            Distances in tokens, int64; 1 for adjacent ones.
        specification : Specification
            Of the network.
        """
        return specification.weights(distances)

    def counts_alike(self, one: Specification, other: Specification) -> bool:
        """Return whether text is counted alike with the model's options of two specifications."""
        return dict(one.model_options) == dict(other.model_options)

    @property
    def own_exports(self) -> bool:
        """Whether exports of a model of another package need it: it has its own arrays, names or contents."""
        classes = [each for each in type(self).__mro__ if not _is_ours(each)]
        return any(name in vars(each) for each in classes for name in _EXPORTS)

    @abstractmethod
    def count(
        self, blocks: Sequence[EncodedBlock], specification: Specification, placement: Placement
    ) -> Mapping[int, RegionRun | PairRegionRun]:
        """Return the increments of a batch of sequences by region.

        Parameters
        ----------
        blocks : sequence of EncodedBlock
            Sequences; those of another status than ``CANDIDATE`` are left out.
        specification : Specification
            Of the network.
        placement : Placement
            Assigns keys to regions.

        Returns
        -------
        mapping of int to RegionRun or PairRegionRun
            Sums of integers, so that batches can be added up in any order; regions that are not touched are absent.
            With ``specification.trace``, also where the keys occur (`giaann_dask.runs.postings`).
        """

    def count_dense(
        self,
        blocks: Sequence[EncodedBlock],
        specification: Specification,
        placement: Placement,
        device: DeviceName = "cpu",
    ) -> Mapping[int, RegionRun]:
        """Return the increments of one sequence, as `count` does, from a dense tensor; needs `counts_dense`."""
        raise NotImplementedError

    def derived(self, specification: Specification) -> DerivedTables | None:
        """Return how a commit derives tables from all counts, None where none are stored."""
        return None

    @abstractmethod
    def names(self, specification: Specification, vocabulary: Vocabulary) -> ConnectionNames:
        """Return the names of what keys stand for."""

    @abstractmethod
    def coordinates(self, specification: Specification) -> dict[str, ColumnArray]:
        """Return how the coordinate arrays of an export are made of a run, by their names."""

    @abstractmethod
    def export_contents(self, reader: CommitReader) -> ExportContents:
        """Return the arrays and dictionaries of an export of a commit."""

    def export_formats(self) -> Mapping[str, ExportFormat]:
        """Return what else a commit can be exported to, by the end of the file's name; nothing by default."""
        return {}

    @abstractmethod
    def find_used(self, run: RegionRun | PackedRegionRun) -> UsedNames:
        """Return the names that the counts of a run use."""

    def compile_steps(self, specification: Specification) -> None:  # noqa: B027 - most are compiled when they are called
        """Compile what predictions call as far as its types are known without a network; nothing by default."""

    def may_prune(self, run: Run) -> npt.NDArray[np.bool_]:
        """Return which connections pruning may leave out; bool, shape ``(connections,)``."""
        return np.ones(len(run), np.bool_)

    def kept_by_pruning(self, run: Run, minimum: int, elsewhere: Integers | None = None) -> npt.NDArray[np.bool_]:
        """Return which connections of rows are kept by pruning below a strength; bool.

        Parameters
        ----------
        run : Run
            The rows.
        minimum : int
            The strength, in units.
        elsewhere : ndarray, optional
            Source neurons of which other parts of their rows keep connections, int64; none by default.
        """
        kept: npt.NDArray[np.bool_] = (run.strength >= minimum) | ~self.may_prune(run)
        return kept

    @abstractmethod
    def shares(
        self, postings: Callable[[int], Postings], connection: ConnectionKey, specification: Specification
    ) -> tuple[Integers, Integers]:
        """Return which sequences of a range built a connection.

        Parameters
        ----------
        postings : callable
            Returns the places of a key in these sequences, in their order. It is called with every key whose places
            are needed, even if another one has none.
        connection : ConnectionKey
            As a `Reason` names it.
        specification : Specification
            Of the network.

        Returns
        -------
        sequence, amount : ndarray
            Numbers of sequences, ascending, and what each added; int64, of one shape.
        """

    def totals(self, specification: Specification) -> Totals | None:
        """Return what the counts of text imply for totals, None where bundles of islands cannot be checked by them."""
        return None

    def clear_tables(
        self, client: Client, path: str, kept: Collection[str], gone: Collection[str]
    ) -> list[dict[str, Any]]:
        """Remove tables of commits of a network from the caches of the cluster's machines.

        Parameters
        ----------
        client : Client
            Whose workers have the caches.
        path : str
            Of the network.
        kept, gone : collection of str
            Commits whose tables stay, and those that must have none.

        Returns
        -------
        list of dict
            Where tables were removed: ``host``, ``folder``, and of how many commits.
        """
        return []

    @abstractmethod
    def evaluate(self, text: EvaluatedText, options: EvaluationOptions) -> EvaluationReport:
        """Predict the tokens of a text on the workers of a cluster, and return how often that is right."""

    def score(self, text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
        """Return how probable a text is.

        Raises
        ------
        OptionError
            If words have no probabilities.
        """
        profile = text.reader.manifest().specification.profile
        received = f"probabilities of words from a network of profile {profile}"
        raise OptionError(received, "a model with probabilities, such as contexts", "use evaluate")

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

    def open_for_prompt(self, reader: CommitReader, options: GenerationOptions) -> Predictor:
        """Open a commit for one prompt in this process, with as little read as possible; by default as for many."""
        return self.open(reader, options=options)

    @abstractmethod
    def open_for_prompt_on_workers(
        self, client: Client, reader: CommitReader, options: GenerationOptions
    ) -> WorkerOpening:
        """Return how a task opens a commit for one prompt; errors are those of `open_on_workers`."""
