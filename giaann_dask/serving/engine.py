"""Define the interface between the HTTP layer and inference: the protocol `Engine` and its values.

Implementations: `giaann_dask.serving.network_engine` and `giaann_dask.serving.word_engine`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

from giaann_dask.inference.continuation import Candidate, SamplingOptions


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Requested extent of a continuation.

    Parameters
    ----------
    tokens : int
        Tokens to generate at most.
    candidates : int
        Candidates to report with every token, the chosen one included; 0 reports none.
    columns : int
        Concept columns to report with every token; 0 reports none.
    sampling : SamplingOptions
        How words are drawn by an engine that samples.
    """

    tokens: int = 16
    candidates: int = 0
    columns: int = 0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)


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


@dataclass(frozen=True, slots=True)
class Given:
    """The words of a prompt that has been read.

    Attributes
    ----------
    words : tuple of str
        Its tokens, nouns merged.
    subwords : bool
        Whether tokens are subwords, which contain their own spaces.
    """

    words: tuple[str, ...]
    subwords: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token.

    Attributes
    ----------
    word, column : str
        The word, and the concept of its column.
    value : float
        Its activation among the candidates.
    candidate_count : int
        How many candidates there were.
    candidates : tuple of Candidate
        Best first, as many as were requested.
    columns : tuple of ActiveColumn
        Largest activation first; empty also where an engine does not have the whole state.
    """

    word: str
    column: str
    value: float
    candidate_count: int
    candidates: tuple[Candidate, ...] = ()
    columns: tuple[ActiveColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a continuation.

    Attributes
    ----------
    reason : str or None
        Why there are fewer tokens than requested; None if there are not.
    """

    reason: str | None


Part = Given | Token | Ended


class Engine(Protocol):
    """Continues prompts from one commit of a network; used from several threads at once."""

    @property
    def name(self) -> str:
        """Name of the network."""
        ...  # pragma: no cover

    @property
    def commit(self) -> str:
        """Identity of the commit that predicts."""
        ...  # pragma: no cover

    @property
    def draws(self) -> bool:
        """Whether words can be drawn by their probability, which only profile ``best`` has."""
        ...  # pragma: no cover

    def trouble(self) -> str | None:
        """Return why prompts cannot be continued now, None if they can; takes some seconds at most.

        The reason is shown without authentication, and so contains nothing confidential.
        """
        ...  # pragma: no cover

    def lost(self) -> bool:
        """Return whether the engine has failed permanently, so that the network has to be opened again."""
        ...  # pragma: no cover

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt.

        Parameters
        ----------
        prompt : str
            Some words, with at least one noun.
        options : CompletionOptions
            How much is requested.

        Yields
        ------
        Given, Token, Ended or None
            `Given` once, then every `Token` as soon as it is predicted, at last `Ended`. None, at any
            time, if there is nothing to report yet, so that the caller can stop there. Between two of
            them there is one step of inference, not more. Closing the generator ends the
            generation and frees its resources.

        Raises
        ------
        PromptError
            If the prompt cannot be divided into concept columns; before `Given`.
        ClusterError
            If the network's rows cannot be fetched any more.
        """
        ...  # pragma: no cover
