"""Define a continuation: a prompt with its generated tokens, their candidates and reasons, and their training text.

Does not cover: generation itself (`giaann_dask.predict.generation`, `giaann_dask.predict.sessions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from giaann_dask.errors import OptionError
from giaann_dask.models.results import GeneratedToken
from giaann_dask.representations import Summarised, Summary
from giaann_dask.rows.cache import RowStatistics
from giaann_dask.text.detokenizer import detokenize

if TYPE_CHECKING:
    from giaann_dask.text.memory_inputs import Source
    from giaann_dask.tracing.trace import Trace, TracedToken, Tracer


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
    """

    prompt: tuple[str, ...]
    tokens: tuple[GeneratedToken, ...]
    stop: str | None
    commit: str
    subwords: bool = False
    seed: int | None = None
    network: str = field(default="", compare=False)
    rows: RowStatistics | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """Text of the generated tokens as it follows the prompt; of subwords just their own text."""
        return detokenize(((token.word, token.column) for token in self.tokens), self.subwords, after=self.prompt)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        rows = None if self.rows is None else self.rows.as_dict()
        values = {**asdict(self), "text": self.text, "rows": rows}
        del values["network"]
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
        if not self.network or (self.tokens and not any(token.reasons for token in self.tokens)):
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
    from giaann_dask.tracing.trace import Trace, check_sentences, open_tracer

    check_sentences(sentences)
    tracer = open_tracer(continuation.network, continuation.commit, texts)
    return Trace(tuple(trace_token(token, tracer, sentences) for token in continuation.tokens), continuation.commit)


def trace_token(token: GeneratedToken, tracer: Tracer, sentences: int) -> TracedToken:
    """Return the training sequences that built the connections behind a token; see `Continuation.trace`."""
    from giaann_dask.tracing.trace import TracedToken

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
