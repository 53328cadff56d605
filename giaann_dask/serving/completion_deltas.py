"""Turn the parts of a generation into completion deltas: text, stop sequences, finish reasons and token details.

Does not cover: their transport (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from giaann_dask.inference.token_events import PreparedText, TokenEvent
from giaann_dask.serving.engine import Part
from giaann_dask.serving.requests import CompletionRequest
from giaann_dask.text.detokenizer import Detokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """The text and token that a part of a generation adds to a choice.

    Attributes
    ----------
    text : str
        Text that is certain now.
    token : dict or None
        The token that was generated, ready for JSON, whether or not its text is certain.
    finish : {"stop", "length"} or None
        Why the choice is finished; nothing follows such a delta.
    reason : str or None
        Why the network stopped before the requested number of tokens, if that is why.
    """

    text: str
    token: dict[str, Any] | None = None
    finish: Finish | None = None
    reason: str | None = None


class StopFinder:
    """Pass text on until a stop sequence begins.

    Parameters
    ----------
    stops : sequence of str
        None of them empty.

    Attributes
    ----------
    found : bool
        Whether a stop sequence was found; no text is passed on after it.

    Examples
    --------
    >>> finder = StopFinder(["the end"])
    >>> finder.feed("to the"), finder.feed(" hill and the"), finder.feed(" end."), finder.found
    ('to ', 'the hill and ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._withheld = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Return the text, including withheld text, that certainly comes before every stop sequence."""
        if self.found:
            return ""
        whole = self._withheld + text
        # The one that is complete first, so that it does not matter how the text is divided.
        matches = [(start + len(stop), start) for stop in self._stops if (start := whole.find(stop)) >= 0]
        if matches:
            self.found, self._withheld = True, ""
            return whole[: min(matches)[1]]
        keep = max((_beginning(whole, stop) for stop in self._stops), default=0)
        self._withheld = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def end(self) -> str:
        """Return the withheld text at the end."""
        withheld, self._withheld = self._withheld, ""
        return withheld


def _beginning(text: str, stop: str) -> int:
    """Return the length of the longest proper beginning of a stop sequence that a text ends with."""
    lengths = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


class Choice:
    """Growing continuation of one prompt.

    Parameters
    ----------
    prompt : str
        As received.
    request : CompletionRequest
        Stop sequences and the requested details of tokens.
    seed : int, optional
        Seed of sampling.
    subwords : bool
        Whether tokens are subwords, which contain their own spaces.

    Attributes
    ----------
    text : str
        Text that is certain so far.
    tokens : list of dict
        Generated tokens, ready for JSON, if details of tokens are requested.
    prompt_tokens, generated : int
        Counts; those of the prompt with nouns merged.
    finish : {"stop", "length"} or None
        Why it is finished.
    reason : str or None
        Why the network stopped before the requested number of tokens.
    """

    def __init__(
        self, prompt: str, request: CompletionRequest, seed: int | None = None, *, subwords: bool = False
    ) -> None:
        self.text = ""
        self.tokens: list[dict[str, Any]] = []
        self.prompt_tokens = self.generated = 0
        self.finish: Finish | None = None
        self.reason: str | None = None
        self._prompt, self._echo, self._seed, self._subwords = prompt, request.echo, seed, subwords
        self._candidates = request.options.candidates
        self.detailed = request.options.candidates > 0 or request.options.columns > 0
        self._finder = StopFinder(request.stops)
        self._writer = Detokenizer(subwords, spaced=prompt[-1:].isspace())

    def add(self, part: Part) -> CompletionDelta:
        """Return the delta of a part of the generation."""
        delta = self._delta_of(part)
        self.text += delta.text
        self.finish, self.reason = delta.finish, delta.reason
        if delta.token is not None:
            self.generated += 1
            if self.detailed:
                self.tokens.append(delta.token)
        return delta

    def _delta_of(self, part: Part) -> CompletionDelta:
        if isinstance(part, PreparedText):
            self.prompt_tokens = len(part.words)
            return CompletionDelta(self._prompt if self._echo else "")
        text, token = "", None
        if part.token is not None:
            text, token = self._finder.feed(self._writer.write(part.token.word)), self._details(part)
            if self._finder.found:
                return CompletionDelta(text, token, "stop")
        if not part.finished:
            return CompletionDelta(text, token)
        text += self._finder.feed(self._writer.end()) + self._finder.end()
        return CompletionDelta(text, token, "length" if part.stop is None else "stop", part.stop)

    def _details(self, event: TokenEvent) -> dict[str, Any]:
        """Return a token, ready for JSON."""
        token = event.token
        assert token is not None
        return {
            "word": token.word,
            "column": token.column,
            "value": token.candidates[0].value,
            "candidate_count": token.candidate_count,
            "candidates": [asdict(candidate) for candidate in token.candidates[: self._candidates]],
            "columns": [asdict(column) for column in event.columns],
        }

    def as_dict(self, index: int) -> dict[str, Any]:
        """Return the whole choice, ready for JSON."""
        values = choice_fields(index, self.text, self.finish)
        details: dict[str, Any] = {"stop": self.reason} | self._kind()
        if self.detailed:
            details["tokens"] = self.tokens
        return {**values, "giaann": details}

    def delta_as_dict(self, index: int, delta: CompletionDelta) -> dict[str, Any]:
        """Return a delta, ready for JSON, in the same fields as the whole."""
        details: dict[str, Any] = {"stop": delta.reason} | self._kind()
        if self.detailed:
            details["tokens"] = [] if delta.token is None else [delta.token]
        return {**choice_fields(index, delta.text, delta.finish), "giaann": details}

    def _kind(self) -> dict[str, Any]:
        seed = {} if self._seed is None else {"seed": self._seed}
        return {"subwords": True, **seed} if self._subwords else seed


def choice_fields(index: int, text: str, finish: Finish | None) -> dict[str, Any]:
    """Return the fields of a choice that OpenAI's clients read."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
