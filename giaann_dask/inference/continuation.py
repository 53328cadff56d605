"""Define the options of generation and its result: tokens, candidates and reasons, the same for all profiles.

Does not cover: generation itself (`giaann_dask.inference.generation`, `giaann_dask.inference.sessions`,
`giaann_dask.inference.best.handle`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from giaann_dask.device import DeviceName
from giaann_dask.errors import OptionError, PromptError, parameter, require_at_least, require_option
from giaann_dask.inference.profiles import RequestedRules, fitting_rules, require_v1
from giaann_dask.inference.rows.remote import RowOptions
from giaann_dask.inference.state.options import InferenceOptions
from giaann_dask.inference.v1.beam import BeamOptions
from giaann_dask.keywords import names_keywords
from giaann_dask.representations import Summarised, Summary
from giaann_dask.spec import Specification
from giaann_dask.text.detokenizer import detokenize
from giaann_dask.text.strings import text_fault
from giaann_dask.text.tagging import check_tagger

if TYPE_CHECKING:
    from giaann_dask.text.memory_inputs import Source
    from giaann_dask.tracing.index import ConnectionKey
    from giaann_dask.tracing.trace import Trace, TracedToken, Tracer

MOST_SEED = (1 << 63) - 1
# JSON numbers of as many bits are exact in every language.
_DRAWN_BITS = 53


@names_keywords
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampling options of networks whose words have probabilities: profile ``best``.

    Parameters
    ----------
    temperature : float
        0 takes the most probable word; 1 draws by the probabilities; between, the probable ones oftener.
    seed : int, optional
        The same seed draws the same words; by default a random one, which the continuation names.

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

    def __post_init__(self) -> None:
        require_option(0 <= self.temperature <= 10, "temperature", self.temperature, "0 to 10")
        if self.seed is not None and not 0 <= self.seed <= MOST_SEED:
            raise OptionError(
                f"{parameter('seed')} is {self.seed}",
                f"0 to {MOST_SEED}",
                f"set {parameter('seed')} to such a value, or leave it out",
            )

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
        (drawn,) = np.random.SeedSequence(self.seed, spawn_key=(index,)).generate_state(1, np.uint64)
        return replace(self, seed=int(drawn) >> 64 - _DRAWN_BITS)


@names_keywords
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of continuing a prompt.

    Parameters
    ----------
    tokens : int
        Tokens to generate at most.
    inference : InferenceOptions, V2Settings or V2Options
        Rules of inference, which must fit the network; predictions are always fed.
    beam : BeamOptions
        How far is looked ahead before a token is chosen; not at all by default.
    runners_up : int
        Candidates to report per token, the chosen one included.
    reasons : int
        Connections to report per token.
    tagger : str
        How the prompt is tagged.
    device : {"auto", "cpu", "cuda"}
        Device of the activation state.
    rows : RowOptions
        How a worker fetches the network's rows.
    sampling : SamplingOptions
        How words are drawn, of profile ``best``.

    Raises
    ------
    OptionError
        If a number is out of range.

    Examples
    --------
    >>> GenerationOptions(tokens=12, beam=BeamOptions(width=3, depth=6)).beam.searches
    True
    """

    tokens: int = 20
    inference: RequestedRules = field(default_factory=lambda: InferenceOptions(feed="prediction"))
    beam: BeamOptions = field(default_factory=BeamOptions)
    runners_up: int = 5
    reasons: int = 5
    tagger: str = "lexicon"
    device: DeviceName = "auto"
    rows: RowOptions = field(default_factory=RowOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)

    def __post_init__(self) -> None:
        check_tagger(self.tagger)
        require_at_least(1, self, "tokens", "runners_up")
        require_at_least(0, self, "reasons")

    def seeded(self) -> GenerationOptions:
        """Return these options with the seed that counts; see `SamplingOptions.seeded`."""
        return replace(self, sampling=self.sampling.seeded())

    def require_fit(self, specification: Specification) -> None:
        """Raise an `OptionError` if an option is set that a network of this specification does not have."""
        if specification.has_columns:
            if self.sampling.temperature:
                profile = specification.profile
                found = f"{parameter('temperature')} {self.sampling.temperature} for a network of profile {profile}"
                raise OptionError(found, "profile best, which has probabilities", "leave it out")
            rules = fitting_rules(specification, self.inference)
            if self.beam.searches:
                require_v1(rules, "beam search")
        else:
            self.require_words()

    def require_words(self) -> None:
        """Raise an `OptionError` if an option is set that networks of profile ``best`` do not have."""
        if self.beam.searches or self.inference != InferenceOptions(feed="prediction"):
            found = "beam search or rules of inference for a network of profile best"
            raise OptionError(found, "profile v1 or v2", "leave them out")


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
    if (fault := text_fault(prompt)) is not None:
        raise PromptError(f"the prompt holds {fault}", "text in UTF-8", "correct it, or its encoding")


@dataclass(frozen=True)
class Candidate:
    """A neuron that could have been predicted.

    Attributes
    ----------
    word, column : str
        Its word, and the concept of its column; of profile ``best`` an empty string.
    value : float
        Its activation; of profile ``best`` its probability.
    """

    word: str
    column: str
    value: float


@dataclass(frozen=True, slots=True)
class ScoredWord:
    """A word of a given text with its probability after the words before it.

    Attributes
    ----------
    begin, end : int
        Where it is in the text, in characters.
    log_probability : float
        Natural logarithm of its probability.
    most_probable : bool
        Whether no other word was more probable.
    candidates : tuple of Candidate
        The most probable words at its place, best first; as many as requested.
    """

    begin: int
    end: int
    log_probability: float
    most_probable: bool
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Reason:
    """A connection that raised the chosen neuron.

    Attributes
    ----------
    word, column : str
        Its source neuron. Of profile ``best``, its context, and an empty string.
    position : int
        Index of the source in the prompt and its continuation; the nearest where there are several.
    segment, branch : int
        Where it ends; of profile ``best`` the kind of context, -1 for what was read lately.
    strength, contribution : float
        Its trained strength, and by how much it raised the neuron: of profile ``best`` a count, and the
        natural logarithm of the factor.
    connection : ConnectionKey or None
        The connection in the network, by which it is traced; None for what the text itself contributed.
    """

    word: str
    column: str
    position: int
    segment: int
    branch: int
    strength: float
    contribution: float
    connection: ConnectionKey | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class GeneratedToken:
    """A generated token with its runners-up and reasons.

    Attributes
    ----------
    word, column : str
        The word, and the concept of its column.
    candidates : tuple of Candidate
        The chosen one, then the others, best first; a chosen one that beam search preferred to them
        replaces the last of them.
    candidate_count : int
        How many there were.
    reasons : tuple of Reason
        Largest contribution first.
    """

    word: str
    column: str
    candidates: tuple[Candidate, ...]
    candidate_count: int
    reasons: tuple[Reason, ...]

    def trace(self, tracer: Tracer, sentences: int) -> TracedToken:
        """Return the training sequences that built the connections behind it; see `Continuation.trace`."""
        from giaann_dask.tracing.trace import TracedToken

        found = tuple(
            tracer.connection(
                reason.connection,
                source=reason.word,
                column=reason.column,
                contribution=reason.contribution,
                sentences=sentences,
            )
            for reason in self.reasons
            if reason.connection is not None
        )
        return TracedToken(self.word, self.column, found)

    def lines(self) -> list[str]:
        """Return the token, its runners-up and its reasons for a person."""
        if not self.column:
            return self._counted_lines()
        best = ", ".join(f"{c.word} [{c.column}] {c.value:.4g}" for c in self.candidates)
        shown = [f"{self.word} [{self.column}]", f"  of {self.candidate_count} candidates: {best}"]
        shown.extend(
            f"  from {r.word} [{r.column}] at {r.position}: segment {r.segment}, branch {r.branch}, "
            f"strength {r.strength:.4g}, raised it by {r.contribution:.4g}"
            for r in self.reasons
        )
        return shown

    def reasons_line(self) -> str:
        """Return what raised the token, largest contribution first, as one line."""
        if self.column:
            return ", ".join(f"{r.word} [{r.column}] {r.contribution:.3g}" for r in self.reasons)
        return ", ".join(f"{r.word} seen {r.strength:,.0f} times" for r in self.reasons)

    def _counted_lines(self) -> list[str]:
        """Return the same where values are probabilities and there are no columns."""
        best = ", ".join(f"{c.word} {c.value:.4f}" for c in self.candidates)
        shown = [self.word, f"  of {self.candidate_count} words: {best}"]
        shown.extend(
            f"  {r.word}: seen {r.strength:,.0f} times, made it {math.exp(r.contribution):,.3g} times as probable"
            for r in self.reasons
        )
        return shown


@dataclass(frozen=True, repr=False)
class Continuation(Summarised):
    """A prompt and its continuation.

    Attributes
    ----------
    prompt : tuple of str
        Words of the prompt as text has them, merged nouns with spaces.
    tokens : tuple of GeneratedToken
        What was generated.
    stop : str or None
        Why there are fewer tokens than asked for.
    commit : str
        The commit that predicted.
    subwords : bool
        Whether tokens are subwords.
    seed : int or None
        What the words were drawn with, given or random; None where nothing was drawn.
    network : str
        Folder or URL of the network; empty where that is not known.
    """

    prompt: tuple[str, ...]
    tokens: tuple[GeneratedToken, ...]
    stop: str | None
    commit: str
    subwords: bool = False
    seed: int | None = None
    network: str = field(default="", compare=False)

    @property
    def text(self) -> str:
        """The generated words, separated by spaces, merged nouns taken apart; of subwords just their own text."""
        return detokenize(((token.word, token.column) for token in self.tokens), self.subwords)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        values = {**asdict(self), "text": self.text}
        del values["network"]
        for token in values["tokens"]:
            for reason in token["reasons"]:
                del reason["connection"]
        there = {"subwords": self.subwords, "seed": self.seed is not None}
        return {name: item for name, item in values.items() if there.get(name, True)}

    def trace(self, *, sentences: int = 3, texts: Sequence[Source] = ()) -> Trace:
        """Return the training sequences that built the connections behind each token.

        Parameters
        ----------
        sentences : int
            Sequences to show for each connection, those with the largest shares; how many there are is reported
            in any case.
        texts : sequence of str or MemoryInput
            Files, encoded corpora or texts in which the training text is looked for before the places that it was read
            from, as `giaann_dask.api.texts.as_sources` returns them.

        Returns
        -------
        Trace
            Of the connections that the continuation names as reasons.

        Raises
        ------
        OptionError
            If the network was trained without an index, or the continuation names no reasons.
        """
        if not self.network or (self.tokens and not any(token.reasons for token in self.tokens)):
            raise OptionError(
                "a continuation without its reasons or its network",
                "one that Network.generate returned with reasons",
                f"generate it again with {parameter('explain')}",
            )
        return trace_reasons(self, sentences, texts)

    def summary(self) -> Summary:
        """Return the lines that represent the continuation: its text, and the reasons for each token."""
        reasons = [(token.word, token.reasons_line()) for token in self.tokens if token.reasons]
        ended = () if self.stop is None else (("stopped", f"after {len(self.tokens)} tokens: {self.stop}"),)
        drawn = () if self.seed is None else (("seed", str(self.seed)),)
        prompt = detokenize(((word, "") for word in self.prompt), self.subwords)
        return Summary(
            "Continuation", (("prompt", prompt), ("text", self.text or "(nothing)"), *reasons, *ended, *drawn)
        )

    def lines(self, explain: bool = False) -> list[str]:
        """Return the continuation as readable lines, with the reasons for each token if requested."""
        shown = [self.text or "(nothing)"]
        if explain:
            for token in self.tokens:
                shown.extend(token.lines())
        if self.seed is not None:
            shown.append(f"(drawn with --seed {self.seed}, which draws the same again)")
        if self.stop is not None:
            shown.append(f"(stopped after {len(self.tokens)} tokens: {self.stop})")
        if not self.tokens:
            shown.append(
                f"No trained sentence goes on after {self.prompt[-1]!r} as this one does: begin as your text does, "
                "train more of it, or train it with profile best (train --profile best), which can continue any prompt."
            )
        return shown


def trace_reasons(continuation: Continuation, sentences: int, texts: Sequence[Source]) -> Trace:
    """Return the training sequences behind a continuation made with reasons, which a token of no activation has not."""
    from giaann_dask.tracing.trace import Trace, check_sentences, open_tracer

    check_sentences(sentences)
    tracer = open_tracer(continuation.network, continuation.commit, texts)
    return Trace(tuple(token.trace(tracer, sentences) for token in continuation.tokens), continuation.commit)
