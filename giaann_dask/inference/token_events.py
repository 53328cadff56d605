"""Continuations of many prompts as they come: pieces, and what makes whole continuations of them.

Covers: what sessions of all profiles have in common. Does not cover: how tokens are come by (`sessions` for
networks of columns, `best.generation`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from giaann_dask.errors import PromptError
from giaann_dask.inference.continuation import Continuation, GeneratedToken


@dataclass(frozen=True)
class TokenEvent:
    """What is new of one of many continuations.

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
    """

    number: int
    token: GeneratedToken | None
    finished: bool
    stop: str | None = None
    error: PromptError | None = None
    seed: int | None = None


class ContinuationStream:
    """Many prompts that are continued; an iterator of `TokenEvent`, and a context manager.

    Parameters
    ----------
    commit : str
        The commit that answers.
    pieces : generator of TokenEvent
        What is new, as it comes.
    subwords : bool
        Whether tokens are subwords.
    """

    def __init__(self, commit: str, pieces: Generator[TokenEvent, None, None], *, subwords: bool = False) -> None:
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
        """End all that is under way; nothing comes after that."""
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
                yield Continuation(words, its, last.stop, self._commit, self._subwords, last.seed)
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
