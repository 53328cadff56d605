"""Define the options of inference that a network does not store, for the profiles ``v1`` and ``v2``.

Of ``v1`` these are what sections 7 and 8 of the contract leave open. Of ``v2`` they are two dynamics and the rule that
selects a candidate: the constants of sections 7 and 8 of its contract, with the reference's two sets of them, and the
selection rules of its section 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

from giaann_dask.errors import OptionError, require_between, require_one_of, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.models.generation_options import Feed, PredictionRules

Timing = Literal["exact", "biased", "none"]
Activations = Literal["boolf", "boolf+c", "intf+c"]
Settings = Literal["train", "test"]
ColumnTest = Literal["node", "column"]
# Table of what follows each word in all columns, beside the kinds of auxiliary source neurons.
POOLED = "every"


@names_keywords
@dataclass(frozen=True, kw_only=True)
class InferenceOptions(PredictionRules):
    """Rules of inference (contract, section 8). The defaults predict best on text that was not trained on.

    Parameters
    ----------
    timing : {"none", "biased", "exact"}
        ``"exact"``: a connection needs the segment before its own to have been activated exactly
        one time unit ago. ``"biased"``: entries lose value by their distance from the expected
        time. ``"none"``: times are not kept.
    activations : {"boolf", "boolf+c", "intf+c"}
        ``"boolf"``: feature segments are 0 or 1, column segments are sums. ``"boolf+c"``: all
        segments are 0 or 1. ``"intf+c"``: all segments are sums.
    sequential : bool
        Whether a connection needs the segment before its own to be active on the same branch.
    feed : {"target", "prediction"}
        What is the source of the next step in the prediction phase: the sentence's own token or
        the predicted neuron.

    Raises
    ------
    OptionError
        If a value is not one of those listed.

    Examples
    --------
    >>> InferenceOptions(timing="exact", sequential=True).activations
    'boolf'
    """

    # What rules of any profile say of themselves.
    sends_strengths: ClassVar[bool] = False
    auxiliary: ClassVar[tuple[str, ...]] = ()
    cpu_only: ClassVar[bool] = False

    timing: Timing = "none"
    activations: Activations = "boolf"
    sequential: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("timing", self.timing, get_args(Timing))
        require_one_of("activations", self.activations, get_args(Activations))
        require_option(isinstance(self.sequential, bool), "sequential", self.sequential, "True or False")

    @property
    def chosen(self) -> bool:
        """Whether they differ from the defaults, which stand for those of any model."""
        return self != InferenceOptions(feed=self.feed, sources=self.sources)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that prediction reads (`giaann_dask.models.columns.flags.with_tables`)."""
        return (POOLED,) if self.sources == "every" else ()

    def boolean_from(self, columns: int, segments: int) -> int:
        """Return the first segment whose entries are 0 or 1, of a number of column segments and of all segments."""
        return {"boolf": columns, "boolf+c": 0, "intf+c": segments}[self.activations]


@dataclass(frozen=True, kw_only=True)
class LifOptions:
    """Leaky integrate-and-fire neurons (contract, section 7). The defaults are the test-set settings.

    Parameters
    ----------
    threshold : float
        Least value of a source that sends, and of a candidate.
    soma_decay, column_decay : float
        Share that the soma loses in every step, and the last column segment whenever the sequence goes
        on to another column; 0 to 1.
    strengths : bool
        Whether a connection sends its trained strength; else it sends 1.
    clear_source : bool
        Whether the last column segment of a source is emptied once it has sent, besides its soma.
    squash : bool
        Whether what a connection sends goes through ``2 * (sigmoid(x / 100) - 0.5)``.
    burst : float
        What the soma of the next source gains.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    threshold: float = 0.008
    soma_decay: float = 0.75
    column_decay: float = 0.75
    strengths: bool = True
    clear_source: bool = False
    squash: bool = True
    burst: float = 1.0

    def __post_init__(self) -> None:
        require_between(0, 1e6, self, "threshold")
        require_between(0, 1, self, "soma_decay", "column_decay")
        require_between(0, 1e6, self, "burst")


@dataclass(frozen=True, kw_only=True)
class LegacyOptions:
    """Neurons without a soma, as profile ``v2`` has them (section 8). The defaults are the test-set settings.

    Parameters
    ----------
    timing : {"exact", "biased", "none"}
        ``"exact"``: a connection to the second feature segment or a later one needs the segment before
        it to be active and to have been reached one token ago. ``"biased"``: an entry counts less by
        its distance from the expected time. ``"none"``: neither.
    decay : float
        What every entry is multiplied by in every step, 0 to 1.
    penalty : float
        What an entry is multiplied by for each unit of time with timing ``"biased"``, 0 to 1.
    strengths : bool
        Whether a connection sends its trained strength times `scale`; else it sends 1 through the squash.
    scale : float
        See `strengths`.
    boolean : bool
        Whether feature segments are 0 or 1 after every step.
    burst : float
        What the strongest branch of the next source gains.
    burst_all : bool
        Whether it gains it on every segment; else on the last one only.

    Raises
    ------
    OptionError
        If a value is out of range.
    """

    timing: Timing = "biased"
    decay: float = 0.95
    penalty: float = 0.9
    strengths: bool = True
    scale: float = 0.5
    boolean: bool = False
    burst: float = 0.5
    burst_all: bool = False

    def __post_init__(self) -> None:
        require_one_of("timing", self.timing, get_args(Timing))
        require_between(0, 1, self, "decay", "penalty")
        require_between(0, 1e6, self, "scale", "burst")


@dataclass(frozen=True, kw_only=True)
class CandidateSelection:
    """Rules by which a mode accepts candidates (contract, sections 7g and 9).

    Parameters
    ----------
    test : {"node", "column"}
        What passes in mode ``"internal"``, where a column goes on. ``"node"``: neurons of the source's
        column and the prime neuron of any other. ``"column"``: neurons of the source's column only, as
        in the published implementation, so that no column can begin at its concept.
    filtered : bool
        Whether candidates are tested before the best is taken; else only the best is, and nothing is
        predicted where it does not pass.
    enforce_delimiter : bool
        Whether in mode ``"delimiter"`` a neuron of the source's own column passes only if its feature
        can be a delimiter. Off, everything passes there.

    Raises
    ------
    OptionError
        If a value is not one of those listed, or `enforce_delimiter` comes with the column test.
    """

    test: ColumnTest = "node"
    filtered: bool = True
    enforce_delimiter: bool = False

    def __post_init__(self) -> None:
        require_one_of("test", self.test, get_args(ColumnTest))
        if self.enforce_delimiter and self.test != "node":
            raise OptionError("enforce_delimiter with the column test", "the node test", "leave one of them out")

    @classmethod
    def reference(cls) -> CandidateSelection:
        """Return the rule of the published implementation, with its defects."""
        return cls(test="column", filtered=False)


@dataclass(frozen=True, kw_only=True)
class V2Options(PredictionRules):
    """Rules of inference of profile ``v2``.

    Parameters
    ----------
    dynamics : LifOptions or LegacyOptions
        How activation spreads; it must be that for which the network was trained.
    selection : CandidateSelection
        Which candidates can be predicted.
    feed : {"target", "prediction"}
        What is the source of the next step in the prediction phase.
    auxiliary : tuple of str
        Kinds of auxiliary source neurons that send with a source: ``"lemma"``, ``"pos"``, ``"spelling"`` and
        ``"neighbours"`` of words, ``"role"``, ``"spelling"`` and ``"neighbours"`` of subwords. None by default.

    Raises
    ------
    OptionError
        If a value is not one of those listed, or auxiliary neurons come with connections that all send 1.
    """

    # Steps are compiled for the CPU alone.
    cpu_only: ClassVar[bool] = True

    dynamics: LifOptions | LegacyOptions = field(default_factory=LifOptions)
    selection: CandidateSelection = field(default_factory=CandidateSelection)
    auxiliary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        from giaann_dask.text.attachments import check_kinds

        object.__setattr__(self, "auxiliary", check_kinds(self.auxiliary))
        if self.auxiliary and not self.dynamics.strengths:
            raise OptionError(
                "auxiliary neurons where connections send 1, whatever their weight",
                "settings test",
                "leave one out",
                names=("settings",),
            )

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that prediction reads, of auxiliary source neurons by their kinds."""
        return (*self.auxiliary, *((POOLED,) if self.sources == "every" else ()))

    @property
    def sends_strengths(self) -> bool:
        """Whether connections send their trained strengths, so that rows are needed with them."""
        return self.dynamics.strengths

    @property
    def lif(self) -> bool:
        """Whether the dynamics need a soma."""
        return isinstance(self.dynamics, LifOptions)


@names_keywords
@dataclass(frozen=True, kw_only=True)
class V2Settings(PredictionRules):
    """A choice of rules of profile ``v2`` that fits networks with a soma and without one.

    Parameters
    ----------
    settings : {"train", "test"}
        Which of the reference's two sets of constants: for training text (train), or for other text (test).
    strict_reference : bool
        Whether to select exactly as the published implementation, including its bugs.
    enforce_delimiter : bool
        Whether a column continues only with delimiters after a delimiter.
    feed : {"target", "prediction"}
        As in `V2Options`.
    auxiliary : tuple of str
        Kinds of auxiliary neurons that send signals with a source, too: those with the same lemma, pos (part of
        speech), role (of a subword), a similar spelling or similar neighbours. None by default.

    Raises
    ------
    OptionError
        If a value is not one of those listed, or both a defect and its mending are asked for.

    Examples
    --------
    >>> V2Settings(auxiliary=("pos", "spelling")).settings
    'test'
    """

    settings: Settings = "test"
    strict_reference: bool = False
    enforce_delimiter: bool = False
    auxiliary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options(lif=True)

    def options(self, *, lif: bool) -> V2Options:
        """Return the rules for a network that was trained with a soma or without one."""
        found = settings(
            self.settings,
            lif=lif,
            feed=self.feed,
            strict_reference=self.strict_reference,
            enforce_delimiter=self.enforce_delimiter,
        )
        return replace(found, auxiliary=self.auxiliary, sources=self.sources)


def settings(
    name: Settings,
    *,
    lif: bool = True,
    feed: Feed = "target",
    strict_reference: bool = False,
    enforce_delimiter: bool = False,
) -> V2Options:
    """Return one of the reference's two sets of constants.

    Parameters
    ----------
    name : {"train", "test"}
        Those that the reference takes for text that was trained on, and for other text.
    lif : bool
        Whether the network was trained with a soma.
    feed : {"target", "prediction"}
        As in `V2Options`.
    strict_reference : bool
        Whether the reference's defects of selection are kept.
    enforce_delimiter : bool
        As in `CandidateSelection`.

    Raises
    ------
    OptionError
        If a value is not one of those listed, or both a defect and its mending are asked for.

    Examples
    --------
    >>> settings("train").dynamics.threshold
    0.004
    >>> settings("test", lif=False).dynamics.timing
    'biased'
    """
    require_one_of("settings", name, get_args(Settings))
    if strict_reference and enforce_delimiter:
        raise OptionError(
            "enforce_delimiter with strict_reference",
            "at most one of them",
            "leave one of them out",
        )
    selection = CandidateSelection(enforce_delimiter=enforce_delimiter)
    if strict_reference:
        selection = CandidateSelection.reference()
    dynamics: LifOptions | LegacyOptions = LifOptions() if lif else LegacyOptions()
    if name == "train" and lif:
        dynamics = LifOptions(threshold=0.004, soma_decay=1.0, column_decay=1.0, strengths=False, clear_source=True)
    elif name == "train":
        dynamics = LegacyOptions(timing="exact", strengths=False, boolean=True, burst=1.0, burst_all=True)
    return V2Options(dynamics=dynamics, selection=selection, feed=feed)
