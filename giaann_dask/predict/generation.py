"""Continue prompts with a network of any model: one, here or as a task of a cluster, or many together in this process.

A `Continuation` is a prompt with its generated tokens, their candidates and reasons, and their training text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from giaann_dask.cluster import result, task_key
from giaann_dask.errors import OptionError, PromptError, require_option
from giaann_dask.models import model_of
from giaann_dask.models.base import Predictor, TokenEvent, WorkerOpening
from giaann_dask.models.generation_options import BatchOptions, GenerationOptions
from giaann_dask.models.results import GeneratedToken
from giaann_dask.representations import Summarised, Summary
from giaann_dask.rows.source import RowStatistics
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.detokenizer import detokenize

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.text.memory_inputs import Source
    from giaann_dask.tracing import Trace, TracedToken, Tracer


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
    rows : RowStatistics or None
        Rows that were requested of workers, with the bytes that stayed on the worker that predicts and those that moved
        there; None where none were.
    explained : bool
        Whether tokens have their reasons, as far as there are any.
    """

    prompt: tuple[str, ...]
    tokens: tuple[GeneratedToken, ...]
    stop: str | None
    commit: str
    subwords: bool = False
    seed: int | None = None
    network: str = field(default="", compare=False)
    rows: RowStatistics | None = field(default=None, compare=False)
    explained: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Text of the generated tokens as it follows the prompt; of subwords just their own text."""
        return detokenize(((token.word, token.column) for token in self.tokens), self.subwords, after=self.prompt)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        rows = None if self.rows is None else self.rows.as_dict()
        values = {**asdict(self), "text": self.text, "rows": rows}
        del values["network"], values["explained"]
        for token in values["tokens"]:
            for reason in token["reasons"]:
                del reason["connection"]
        there = {"subwords": self.subwords, "seed": self.seed is not None, "rows": rows is not None}
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
        if not self.network or (self.tokens and not self.explained):
            raise OptionError(
                "a continuation without its reasons or its network",
                "one that Network.generate returned with reasons",
                "generate it again with explain",
                names=("explain",),
            )
        return trace_reasons(self, sentences, texts)

    def summary(self) -> Summary:
        """Return the lines that represent the continuation: its text, and the reasons for each token."""
        reasons = [(token.word, token.reasons_line()) for token in self.tokens if token.reasons]
        ended = () if self.stop is None else (("stopped", f"after {len(self.tokens)} tokens: {self.stop}"),)
        drawn = () if self.seed is None else (("seed", str(self.seed)),)
        asked = () if self.rows is None else (("rows asked for", self.rows.line()),)
        prompt = detokenize(((word, "") for word in self.prompt), self.subwords)
        return Summary(
            "Continuation", (("prompt", prompt), ("text", self.text or "(nothing)"), *reasons, *ended, *drawn, *asked)
        )

    def lines(self, explain: bool = False) -> list[str]:
        """Return the continuation as readable lines, with the reasons for each token if requested."""
        shown = [self.text or "(nothing)"]
        if explain:
            for token in self.tokens:
                shown.extend(token.lines())
            if self.rows is not None:
                shown.append(f"(rows asked for: {self.rows.line()})")
        if self.seed is not None:
            shown.append(f"(drawn with --seed {self.seed}, which draws the same again)")
        if self.stop is not None:
            shown.append(f"(stopped after {len(self.tokens)} tokens: {self.stop})")
        if not self.tokens:
            shown.append(
                f"No trained sentence goes on after {self.prompt[-1]!r} as this one does: begin as your text does, "
                "train more of it, or train with profile contexts (train --profile contexts): it continues any prompt."
            )
        return shown


def trace_reasons(continuation: Continuation, sentences: int, texts: Sequence[Source]) -> Trace:
    """Return the training sequences behind a continuation made with reasons, which a token of no activation has not."""
    from giaann_dask.tracing import Trace, open_tracer

    require_option(sentences >= 0, "sentences", sentences, "0 or more")
    tracer = open_tracer(continuation.network, continuation.commit, texts)
    return Trace(tuple(trace_token(token, tracer, sentences) for token in continuation.tokens), continuation.commit)


def trace_token(token: GeneratedToken, tracer: Tracer, sentences: int) -> TracedToken:
    """Return the training sequences that built the connections behind a token; see `Continuation.trace`."""
    from giaann_dask.tracing import TracedToken

    found = tuple(
        tracer.connection(
            reason.connection,
            source=reason.word,
            column=reason.column,
            contribution=reason.contribution,
            sentences=sentences,
        )
        for reason in token.reasons
        if reason.connection is not None
    )
    return TracedToken(token.word, token.column, found)


class Sessions(AbstractContextManager["Sessions"]):
    """Many prompts that are continued together, a step at a time; an iterator of `TokenEvent`, and a context manager.

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
    network : str
        Folder or URL of the network, where it is known.

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
        network: str = "",
    ) -> None:
        self._options, self._opened, self._network = options or GenerationOptions(reasons=0), opened, network
        self._batch = opened.open_batch(self._options, batch)
        # Indices of the prompts by their numbers in the batch, and the words of each.
        self._index: dict[int, int] = {}
        self._words: dict[int, tuple[str, ...]] = {}
        self._pieces = self._run(iter(prompts))

    def __iter__(self) -> Iterator[TokenEvent]:
        """Return this."""
        return self

    def __next__(self) -> TokenEvent:
        """Return the next piece of any of the prompts."""
        return next(self._pieces)

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End all continuations in progress."""
        self._pieces.close()

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

    def continuations(self) -> Iterator[Continuation]:
        """Yield whole continuations in the order of the prompts.

        Raises
        ------
        PromptError
            If a prompt cannot be continued.
        """
        commit, subwords = self._opened.commit, self._opened.subwords
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
                explained = self._options.reasons > 0
                yield Continuation(
                    words, its, last.stop, commit, subwords, last.seed, self._network, explained=explained
                )
                following += 1


class PromptSession(AbstractContextManager["PromptSession"]):
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

    def __init__(self, pieces: Sessions) -> None:
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

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """End the continuation."""
        self._pieces.close()


class PromptOpening:
    """Opening of a persisted commit on workers, kept for later prompts, as it takes longer than a few tokens."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], WorkerOpening] | None = None

    def get(self, client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
        """Return how tasks open the commit for one prompt; see `Model.open_for_prompt_on_workers`."""
        from giaann_dask.cluster.persistence import is_published

        what = (client.id, reader.commit, options.rows, options.reads_strengths, options.inference, options.tagger)
        persisted = is_published(client, str(reader.path))
        if persisted and self._kept is not None and self._kept[0] == what and not self._kept[1].lost():
            return self._kept[1]
        # Let go before the next one is made: it keeps runs on the workers.
        self._kept = None
        model = model_of(reader.manifest().specification)
        opening = model.open_for_prompt_on_workers(client, reader, options)
        if persisted:
            self._kept = what, opening
        return opening


def generate(
    client: Client | None,
    reader: CommitReader,
    prompt: str,
    options: GenerationOptions,
    opening: PromptOpening | None = None,
) -> Continuation:
    """Continue a prompt.

    Parameters
    ----------
    client : Client or None
        Of the cluster that holds the network; without one its rows are read into this process.
    reader : CommitReader
        The commit that predicts.
    prompt : str
        Some words. All of them are given; prediction starts after them.
    options : GenerationOptions
        How much is generated.
    opening : PromptOpening, optional
        That of earlier prompts.

    Raises
    ------
    PromptError
        If the prompt cannot be continued.
    OptionError
        If the options do not fit the network.
    """
    specification = reader.manifest().specification
    model = model_of(specification)
    model.require_fit(specification, options)
    # Drawn here, because a task that is run again has to give the same words.
    options = options.seeded()
    if client is None:
        found = continue_prompt(model.open_for_prompt(reader, options), prompt, options)
    else:
        opened = (opening or PromptOpening()).get(client, reader, options)
        key = task_key("generate", reader.commit, str(reader.path), prompt, options)
        task = (continue_in_task, opened.task, prompt, options, *opened.arguments)
        found = result(client.submit(*task, key=key, **opened.where, **opened.near(prompt)))
    return replace(found, network=str(reader.path))


def continue_in_task(
    opening: Callable[..., Predictor], prompt: str, options: GenerationOptions, *arguments: Any
) -> Continuation:
    """Open a commit and continue a prompt, as a task."""
    return continue_prompt(opening(*arguments), prompt, options)


def continue_prompt(opened: Predictor, prompt: str, options: GenerationOptions) -> Continuation:
    """Continue a prompt as a batch of one, with an opened commit."""
    before = opened.row_figures
    try:
        with Sessions(opened, [prompt], options=options, batch=BatchOptions(slots=1)) as session:
            found = next(session.continuations())
        rows = opened.row_figures
        return found if before is None or rows is None else replace(found, rows=rows - before)
    finally:
        opened.release()
