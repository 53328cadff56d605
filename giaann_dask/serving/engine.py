"""What the HTTP layer knows of inference: one small interface.

Covers: the protocol `Engine` and the values that pass it. Does not cover: who continues prompts
(`network_engine`), how many at once (`line`), and in which form they are answered (`completions`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Protocol

from giaann_dask.inference.continuation import Candidate, SamplingOptions


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """How much of a continuation is wanted.

    Parameters
    ----------
    tokens : int
        Tokens to generate at most.
    candidates : int
        Candidates to report with every token, the chosen one included; 0 reports none.
    columns : int
        Concept columns to report with every token; 0 reports none.
    sampling : SamplingOptions
        How words are drawn by an engine that does so.
    """

    tokens: int = 16
    candidates: int = 0
    columns: int = 0
    sampling: SamplingOptions = field(default_factory=SamplingOptions)


@dataclass(frozen=True, slots=True)
class ActiveColumn:
    """A concept column that lit up.

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
    """The prompt was read.

    Attributes
    ----------
    words : tuple of str
        Its tokens, nouns merged.
    subwords : bool
        Whether tokens are subwords, which hold their own spaces.
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
        Best first, as many as were asked for.
    columns : tuple of ActiveColumn
        Largest activation first; empty also where an engine does not know the whole state.
    """

    word: str
    column: str
    value: float
    candidate_count: int
    candidates: tuple[Candidate, ...] = ()
    columns: tuple[ActiveColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The continuation has ended.

    Attributes
    ----------
    reason : str or None
        Why there are fewer tokens than asked for; None when all are there.
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
        """Identity of the commit that answers."""
        ...  # pragma: no cover

    @property
    def draws(self) -> bool:
        """Whether words can be drawn by their probability, which only profile ``best`` has."""
        ...  # pragma: no cover

    def trouble(self) -> str | None:
        """Return what keeps prompts from being continued now, None when nothing does; takes some seconds at most.

        Without anything that only those with a key may know.
        """
        ...  # pragma: no cover

    def lost(self) -> bool:
        """Return whether no prompt will ever be continued again, so that the network has to be opened anew."""
        ...  # pragma: no cover

    def complete(self, prompt: str, options: CompletionOptions) -> Generator[Part | None, None, None]:
        """Continue a prompt.

        Parameters
        ----------
        prompt : str
            Some words, with at least one noun.
        options : CompletionOptions
            How much is wanted.

        Yields
        ------
        Given, Token, Ended or None
            `Given` once, then every `Token` as soon as it is known, at last `Ended`. None, at any
            time, when there is nothing to report yet: whoever asks may stop there. Between two of
            them there is one step of inference, not more. Closing the generator ends the
            generation and frees what it holds.

        Raises
        ------
        PromptError
            If the prompt cannot be divided into concept columns; before `Given`.
        ClusterError
            If the network's rows cannot be had any more.
        """
        ...  # pragma: no cover
