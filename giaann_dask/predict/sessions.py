"""Continue many prompts together in this process, with a network of any model, and yield their tokens as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from giaann_dask.errors import PromptError
from giaann_dask.models.base import Predictor, TokenEvent
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import GeneratedToken
from giaann_dask.predict.continuation import Continuation


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


class Sessions(ContinuationStream):
    """Many prompts that are continued together, a step at a time; see `ContinuationStream`.

    Prompts are drawn as slots become free, and each finishes as soon as its own end is reached.

    Parameters
    ----------
    opened : Predictor
        The commit that predicts, of any profile.
    prompts : iterable of str
        Some words each, with at least one noun in a network of columns; may be endless.
    options : GenerationOptions, optional
        How much is generated; without reasons by default, which take longer than the tokens.
    batch : BatchOptions, optional
        How many advance together.

    Raises
    ------
    OptionError
        If the options do not fit the network.
    """

    def __init__(
        self,
        opened: Predictor,
        prompts: Iterable[str],
        *,
        options: GenerationOptions | None = None,
        batch: BatchOptions | None = None,
    ) -> None:
        self._options = options or GenerationOptions(reasons=0)
        self._opened = opened
        self._batch = opened.open_batch(self._options, batch)
        # Indices of the prompts by their numbers in the batch.
        self._index: dict[int, int] = {}
        super().__init__(opened.commit, self._run(iter(prompts)), subwords=opened.subwords)

    def _run(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        try:
            yield from self._advance(prompts)
        finally:
            for number in [*self._index]:
                self._batch.leave(number)

    def _advance(self, prompts: Iterator[str]) -> Generator[TokenEvent, None, None]:
        waiting = enumerate(prompts)
        more = True
        while more or len(self._batch):
            while more and self._batch.free_slots:
                index, prompt = next(waiting, (-1, ""))
                more = index >= 0
                if more:
                    try:
                        text = self._batch.prepare(prompt, self._options)
                    except PromptError as error:
                        yield TokenEvent(index, None, True, error=error)
                    else:
                        self._index[text.enter()], self._words[index] = index, text.words
            for event in self._batch.step():
                index = self._index.pop(event.number) if event.finished else self._index[event.number]
                yield replace(event, number=index)


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
