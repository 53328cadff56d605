"""Define the options of predicting with a model: how much is generated, how it is chosen, and where it is computed.

Rules that are particular to a model are classes of their own, derived from `PredictionRules`;
a model checks the options that it is given (`giaann_dask.models.base.Model.require_fit`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from giaann_dask.device import DeviceName
from giaann_dask.errors import (
    OptionError,
    PromptError,
    require_at_least,
    require_between,
    require_one_of,
    require_option,
)
from giaann_dask.keywords import names_keywords
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.text.read_options import check_tagger

Feed = Literal["target", "prediction"]
EvaluationProtocol = Literal["left-to-right", "published"]
Sources = Literal["own", "every"]
MOST_SEED = (1 << 63) - 1
# JSON numbers of as many bits are exact in every language.
_DRAWN_BITS = 53
Score = Literal["activation", "connection", "both"]
Preference = Literal["active", "connected", "shared"]
MAXIMUM_WIDTH = 100
MAXIMUM_DEPTH = 20
# Tokens of a continuation, for which arrays are made at its begin.
MAXIMUM_GENERATED = 1_000_000
# Of a key, a value and a time.
ENTRY_BYTES = 16
MAXIMUM_RANKS = 1000


@names_keywords
@dataclass(frozen=True, kw_only=True)
class PredictionRules:
    """Rules of prediction: those of a network's own model, or of one model where a class is derived from it.

    Parameters
    ----------
    feed : {"target", "prediction"}
        Source of the next step in the prediction phase: the sentence's token (target) or the predicted one
        (prediction).
    sources : {"own", "every"}
        Source of a step of profiles ``v1`` and ``v2`` from left to right: the last word in its own column, or also in
        every column that has it, weighted by the strengths of its connections there. The protocol ``published`` and
        beam search have own ones.

    Raises
    ------
    OptionError
        If a value is not one of those listed.
    """

    feed: Feed = "target"
    sources: Sources = "own"

    def __post_init__(self) -> None:
        require_one_of("feed", self.feed, get_args(Feed))
        require_one_of("sources", self.sources, get_args(Sources))

    @property
    def chosen(self) -> bool:
        """Whether rules of a certain model are asked for."""
        return type(self) is not PredictionRules


@names_keywords
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampling options of networks whose words have probabilities: profile ``contexts``.

    Parameters
    ----------
    temperature : float
        0 takes the most probable word, 1 samples by the probabilities; values between favour probable words.
    seed : int, optional
        Seed of the sampling, for reproducible words; by default a random one, which the continuation reports.
    block_ngrams : int
        Words of the shortest sequence that a continuation does not repeat (n-gram blocking; Paulus et al. 2018), with a
        temperature below 1; 0 allows repetition.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> SamplingOptions(temperature=0.7, seed=1).temperature
    0.7
    """

    temperature: float = 0.0
    seed: int | None = None
    block_ngrams: int = 4

    def __post_init__(self) -> None:
        require_between(0, 10, self, "temperature")
        require_at_least(0, self, "block_ngrams")
        require_option(self.seed is None or 0 <= self.seed <= MOST_SEED, "seed", self.seed, f"0 to {MOST_SEED}")

    def seeded(self) -> SamplingOptions:
        """Return these options with the seed that counts.

        That is a random one where none is given, and none where nothing is drawn.

        Examples
        --------
        >>> SamplingOptions(temperature=1.0, seed=7).seeded().seed, SamplingOptions(seed=7).seeded().seed
        (7, None)
        >>> SamplingOptions(temperature=1.0).seeded().seed == SamplingOptions(temperature=1.0).seeded().seed
        False
        """
        if not self.temperature:
            return replace(self, seed=None)
        return self if self.seed is not None else replace(self, seed=secrets.randbits(_DRAWN_BITS))

    def for_choice(self, index: int) -> SamplingOptions:
        """Return the options of one of several continuations: the first has this seed, each other one of its own.

        Parameters
        ----------
        index : int
            Which of them, counted from 0.

        Examples
        --------
        >>> options = SamplingOptions(temperature=1.0, seed=7)
        >>> [options.for_choice(index).seed for index in (0, 1, 1)]
        [7, 1973877946906281, 1973877946906281]
        """
        if index == 0 or self.seed is None:
            return self
        import numpy as np

        (drawn,) = np.random.SeedSequence(self.seed, spawn_key=(index,)).generate_state(1, np.uint64)
        return replace(self, seed=int(drawn) >> 64 - _DRAWN_BITS)


@names_keywords
@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Options of beam search (see `giaann_dask.models.columns.beam`).

    Parameters
    ----------
    width : int
        Number of paths that are kept, and of candidates that continue each, 1 to 100; 1 is plain generation.
    depth : int
        Tokens of a path, 1 to 20.
    score : {"activation", "connection", "both"}
        Score of a path, summed over its tokens: their values as candidates, the strengths of the connections between
        neighbours, or both. Strengths are often much larger than values.
    prefer : tuple of {"active", "connected", "shared"}
        What makes columns better whose best candidates begin or continue paths: many active candidates, strong
        connections from the source, features that the source's column shares. Without any, candidates of all columns
        are ranked by their values.

    Raises
    ------
    OptionError
        If a value is out of range.

    Examples
    --------
    >>> BeamOptions(width=3, depth=6).searches
    True
    """

    width: int = 1
    depth: int = 1
    score: Score = "activation"
    prefer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for each in self.prefer:
            require_one_of("prefer", each, get_args(Preference))
        object.__setattr__(self, "prefer", tuple(self.prefer))
        require_between(1, MAXIMUM_WIDTH, self, "width")
        require_between(1, MAXIMUM_DEPTH, self, "depth")
        require_one_of("score", self.score, get_args(Score))

    @property
    def searches(self) -> bool:
        """Whether this can differ from plain generation."""
        return bool(self.prefer) or (self.width > 1 and (self.depth > 1 or self.score != "activation"))

    @property
    def weighs(self) -> bool:
        """Whether trained strengths are read."""
        return self.searches and (self.score != "activation" or "connected" in self.prefer)


@names_keywords
@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """Options of the whole activation of a prompt, which profile ``v2`` and requests for concept columns compute.

    Parameters
    ----------
    state_bytes : int
        Bytes of the activation of a prompt, 16 for each entry in profile ``v1``; a prompt that exceeds them ends with
        an error.
    columns : int
        Number of concept columns whose activation is reported at every step.

    Raises
    ------
    OptionError
        If there is no room for an entry, or `columns` is negative.
    """

    state_bytes: int = 1 << 30
    columns: int = 0

    def __post_init__(self) -> None:
        require_at_least(ENTRY_BYTES, self, "state_bytes")
        require_at_least(0, self, "columns")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Options of a batch: how many sequences advance together.

    Parameters
    ----------
    slots : int
        Sequences in the batch at most; the others wait.
    held_bytes : int
        Bytes of cached rows beyond which those that no sequence in the batch needs are evicted.
    ahead : bool
        Do all steps of a sequence in one call where its own tokens are fed.
    state : StateOptions
        Limit of the activation of each sequence of profile ``v2``.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    slots: int = 256
    held_bytes: int = 256 << 20
    ahead: bool = True
    state: StateOptions = field(default_factory=StateOptions)

    def __post_init__(self) -> None:
        require_at_least(1, self, "slots")
        require_at_least(0, self, "held_bytes")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of continuing a prompt.

    Parameters
    ----------
    max_tokens : int
        Tokens to generate at most, up to a million.
    inference : PredictionRules
        Rules of prediction, by default those of the network's model; predictions are always fed.
    beam : BeamOptions
        Options of beam search before a token is chosen; none by default.
    runners_up : int
        Candidates to report per token, the chosen one included.
    reasons : int
        Connections to report per token.
    tagger : str
        Tagger of the prompt: ``lexicon`` or ``spacy:MODEL``.
    device : {"auto", "cpu", "cuda"}
        Device of the activation state.
    rows : RowOptions
        How a worker fetches the network's rows.
    sampling : SamplingOptions
        How words are sampled, in profile ``contexts``.
    model_options : mapping of str to Any, or pairs of these
        Options of a model of another package that only its predictions read, instead of those of the network.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> GenerationOptions(max_tokens=12, beam=BeamOptions(width=3, depth=6)).beam.searches
    True
    """

    max_tokens: int = 20
    inference: PredictionRules = field(default_factory=lambda: PredictionRules(feed="prediction"))
    beam: BeamOptions = field(default_factory=BeamOptions)
    runners_up: int = 5
    reasons: int = 5
    tagger: str = "lexicon"
    device: DeviceName = "auto"
    rows: RowOptions = field(default_factory=RowOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    model_options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_tagger(self.tagger)
        object.__setattr__(self, "model_options", option_pairs(self.model_options))
        require_at_least(1, self, "max_tokens", "runners_up")
        require_option(
            self.max_tokens <= MAXIMUM_GENERATED, "max_tokens", self.max_tokens, f"at most {MAXIMUM_GENERATED}"
        )
        require_at_least(0, self, "reasons")

    @property
    def reads_strengths(self) -> bool:
        """Whether trained strengths are read, for reasons or for the scores of paths."""
        return self.reasons > 0 or self.beam.weighs

    def seeded(self) -> GenerationOptions:
        """Return these options with the seed that counts; see `SamplingOptions.seeded`."""
        return replace(self, sampling=self.sampling.seeded())


def option_pairs(options: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return options of a model as pairs in the order of their names.

    Raises
    ------
    OptionError
        If they are no names with values.
    """
    try:
        return tuple(sorted(dict(options).items(), key=lambda pair: pair[0]))
    except (TypeError, ValueError) as error:
        raise OptionError(f"model_options is {options!r}", "names with values", "give a dictionary") from error


def require_prompt(prompt: object) -> None:
    """Raise a `PromptError` where a prompt is no text: no string, or one that UTF-8 cannot hold.

    Examples
    --------
    >>> require_prompt("The old miller")
    >>> require_prompt(b"The old miller")
    Traceback (most recent call last):
    giaann_dask.errors.PromptError: the prompt is of type bytes; expected text
    """
    if not isinstance(prompt, str):
        raise PromptError(f"the prompt is of type {type(prompt).__name__}", "text")
    from giaann_dask.representations import text_fault

    if (fault := text_fault(prompt)) is not None:
        raise PromptError(f"the prompt holds {fault}", "text in UTF-8", "correct it, or its encoding")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation.

    Parameters
    ----------
    inference : PredictionRules
        Rules of prediction, by default those of the network's model.
    protocol : {"left-to-right", "published"}
        What the columns of profiles ``v1`` and ``v2`` depend on: left-to-right, the words before each token, so that
        its prediction is that of `giaann_dask.api.network.Network.generate` after them; or published, the whole
        sentence, as in the published implementation, so that each word is in the column of the noun that follows it.
        Other profiles predict left to right in both.
    max_sequences : int, optional
        Sequences to read that pass the length filter.
    first_sequence : int
        First sequence to read, counted from 0.
    device : {"auto", "cpu", "cuda"}
        Device of the activation state.
    rows : RowOptions
        How workers get the network's rows.
    top_k : tuple of int
        Values of k, up to 1,000: top-k is the share of steps at which one of the k best candidates is correct; 1 is
        always included. Candidates are ranked by value, then in the order of neurons.
    bits_per_byte : bool
        Whether bits per byte are also computed from the probabilities of tokens.
    model_options : mapping of str to Any, or pairs of these
        See `GenerationOptions`.

    Raises
    ------
    OptionError
        If a k or a limit is out of range.

    Examples
    --------
    >>> EvaluationOptions(top_k=(10, 5)).top_k
    (1, 5, 10)
    """

    inference: PredictionRules = field(default_factory=PredictionRules)
    protocol: EvaluationProtocol = "left-to-right"
    max_sequences: int | None = None
    first_sequence: int = 0
    device: DeviceName = "auto"
    rows: RowOptions = field(default_factory=RowOptions)
    top_k: tuple[int, ...] = (1,)
    bits_per_byte: bool = False
    model_options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_options", option_pairs(self.model_options))
        require_one_of("protocol", self.protocol, get_args(EvaluationProtocol))
        require_at_least(1, self, "max_sequences")
        require_at_least(0, self, "first_sequence")
        wrong = [k for k in self.top_k if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAXIMUM_RANKS]
        if wrong:
            raise OptionError(
                f"top_k has {wrong[0]!r}",
                f"whole numbers from 1 to {MAXIMUM_RANKS}",
                "set top_k to such values",
            )
        object.__setattr__(self, "top_k", tuple(sorted({1, *self.top_k})))
