"""Turn the parts of a generation into completion deltas: text, stop sequences, finish reasons and token details.

Does not cover: their transport (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from giaann_dask.models.base import PromptWords, TokenEvent
from giaann_dask.models.results import Candidate, GeneratedToken, Reason, ScoredWord
from giaann_dask.serving.engine import PromptEvent
from giaann_dask.serving.requests import CompletionRequest
from giaann_dask.text.blocks import noun_text
from giaann_dask.text.detokenizer import Detokenizer, word_text

Finish = Literal["stop", "length"]
# In place of minus infinity, which JSON does not have, where a probability is 0 as a float; OpenAI writes the same.
LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability.

    Attributes
    ----------
    text : str
        The token as it is written.
    offset : int
        Where it begins in the text of the choice, in characters.
    log_probability : float
        Natural logarithm of its probability.
    top : tuple of (str, float)
        The most probable tokens, best first, with their log-probabilities; as many as requested.
    """

    text: str
    offset: int
    log_probability: float
    top: tuple[tuple[str, float], ...]


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
    logprobs : tuple of TokenLogprob
        Log-probabilities of the token, or of the prompt's words, where they are requested.
    begins : bool
        Whether it is the first of its choice: the prompt was read.
    """

    text: str
    token: dict[str, Any] | None = None
    finish: Finish | None = None
    reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    begins: bool = False


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
        Stop sequences, the requested details of tokens, and the form of the response.
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
    logprobs : list of TokenLogprob
        Log-probabilities of all tokens, where they are requested.
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
        self.logprobs: list[TokenLogprob] = []
        self.prompt_tokens = self.generated = 0
        self.finish: Finish | None = None
        self.reason: str | None = None
        self._prompt, self._echo, self._seed, self._subwords = prompt, request.echo, seed, subwords
        self._options, self._chat = request.options, request.chat
        self.detailed = bool(request.options.candidates or request.options.columns or request.options.connections)
        self._finder = StopFinder(request.stops)
        # A message begins without a space.
        self._spaced = request.chat or prompt[-1:].isspace()
        self._writer = Detokenizer(subwords, spaced=self._spaced)
        self._offset = len(prompt) if request.echo else 0

    def add(self, part: PromptEvent) -> CompletionDelta:
        """Return the delta of a part of the generation."""
        delta = self._delta_of(part)
        self.text += delta.text
        self.logprobs.extend(delta.logprobs)
        self.finish, self.reason = delta.finish, delta.reason
        if delta.token is not None:
            self.generated += 1
            if self.detailed:
                self.tokens.append(delta.token)
        return delta

    def _delta_of(self, part: PromptEvent) -> CompletionDelta:
        if isinstance(part, PromptWords):
            return self._begin(part)
        text, token = "", None
        logprobs: tuple[TokenLogprob, ...] = ()
        if part.token is not None:
            token = self._details(part)
            if self._options.logprobs is not None:
                logprobs = (generated_logprob(part.token, self._offset, self._options.logprobs, self._writer.preview),)
            written = self._writer.write(part.token.word, part.token.column)
            self._offset += len(written)
            text = self._finder.feed(written)
            if self._finder.found:
                return CompletionDelta(text, token, "stop", logprobs=logprobs)
        if not part.finished:
            return CompletionDelta(text, token, logprobs=logprobs)
        text += self._finder.feed(self._writer.end()) + self._finder.end()
        return CompletionDelta(text, token, "length" if part.stop is None else "stop", part.stop, logprobs)

    def _begin(self, read: PromptWords) -> CompletionDelta:
        """Return the delta of the prompt, which is the only one where no token is requested."""
        self.prompt_tokens = len(read.words)
        self._writer = Detokenizer(self._subwords, after=read.words, spaced=self._spaced)
        finish: Finish | None = None if self._options.tokens else "length"
        logprobs = prompt_logprobs(self._prompt, read.scores)
        return CompletionDelta(self._prompt if self._echo else "", None, finish, None, logprobs, begins=True)

    def _details(self, event: TokenEvent) -> dict[str, Any]:
        """Return a token, ready for JSON."""
        token = event.token
        assert token is not None
        # Sources are named, not written: they are anywhere in the text.
        reasons = [
            self._with_text(reason_as_dict(reason), self._plain(reason.word, reason.column)) for reason in token.reasons
        ]
        candidates = token.candidates[: self._options.candidates]
        return {
            **self._with_text({"word": token.word, "column": token.column}, self._written(token)),
            "value": token.candidates[0].value,
            "candidate_count": token.candidate_count,
            "candidates": [self._with_text(asdict(each), self._written(each)) for each in candidates],
            "columns": [{**asdict(column), "text": self._column_text(column.concept)} for column in event.columns],
            **({"connections": reasons} if self._options.connections else {}),
        }

    def _with_text(self, named: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the fields of a word with its text and that of its column."""
        return {**named, "text": text, "column_text": self._column_text(named["column"])}

    def _written(self, token: GeneratedToken | Candidate) -> str:
        """Return a token as it is or would be written next, without the space before a word."""
        text = self._writer.preview(token.word, token.column)
        return text if self._subwords else text.removeprefix(" ")

    def _plain(self, word: str, column: str) -> str:
        """Return the text of a word wherever it is."""
        return word if self._subwords else word_text(word, column)

    def _column_text(self, concept: str) -> str:
        """Return the text of the name of a column."""
        return concept if self._subwords else noun_text(concept)

    def as_dict(self, index: int) -> dict[str, Any]:
        """Return the whole choice, ready for JSON."""
        logprobs = self._logprobs(self.logprobs, whole=True)
        values = self._values(logprobs, self.finish, self.reason, self.tokens)
        message = {"role": "assistant", "content": self.text, "refusal": None}
        return {"index": index, **({"message": message} if self._chat else {"text": self.text}), **values}

    def delta_as_dict(self, index: int, delta: CompletionDelta) -> dict[str, Any]:
        """Return a delta, ready for JSON, in the same fields as the whole."""
        tokens = [] if delta.token is None else [delta.token]
        values = self._values(self._logprobs(delta.logprobs), delta.finish, delta.reason, tokens)
        part = {**({"role": "assistant"} if delta.begins else {}), "content": delta.text}
        return {"index": index, **({"delta": part} if self._chat else {"text": delta.text}), **values}

    def _values(
        self, logprobs: dict[str, Any] | None, finish: Finish | None, reason: str | None, tokens: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {"logprobs": logprobs, "finish_reason": finish, "giaann": self._extension(reason, tokens)}

    def _logprobs(self, tokens: Sequence[TokenLogprob], whole: bool = False) -> dict[str, Any] | None:
        if self._options.logprobs is None or not (tokens or whole):
            return None
        return chat_logprobs(tokens) if self._chat else completion_logprobs(tokens)

    def _extension(self, reason: str | None, tokens: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields that OpenAI's API does not have."""
        details: dict[str, Any] = {"stop": reason}
        if self._subwords:
            details["subwords"] = True
        if self._seed is not None:
            details["seed"] = self._seed
        if self.detailed:
            details["tokens"] = tokens
        return details


def reason_as_dict(reason: Reason) -> dict[str, Any]:
    """Return a reason of a token, ready for JSON, with the connection as ``POST /v1/sentences`` takes it."""
    key = reason.connection
    named = {"word": reason.word, "column": reason.column, "strength": reason.strength}
    connection = None if key is None else {**key._asdict(), "context": [list(part) for part in key.context]}
    return {**named, "contribution": reason.contribution, "connection": connection}


def generated_logprob(token: GeneratedToken, offset: int, top: int, write: Callable[[str], str]) -> TokenLogprob:
    """Return the log-probability of a generated token.

    Parameters
    ----------
    token : GeneratedToken
        Of profile ``contexts``, with one candidate more than `top`: a drawn token takes the place of the last.
    offset : int
        Where it begins.
    top : int
        Most probable tokens to report.
    write : callable
        Returns the text that a word adds at this place.
    """
    likely = sorted(token.candidates, key=lambda candidate: -candidate.value)[:top]
    return TokenLogprob(write(token.word), offset, _log(token.candidates[0].value), _written(likely, write))


def prompt_logprobs(prompt: str, scores: Sequence[ScoredWord]) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the words of a prompt, divided so that joined they are the prompt."""
    found = []
    begin = 0
    writer = Detokenizer(False)
    for at, word in enumerate(scores):
        end = word.end if at + 1 < len(scores) else len(prompt)
        token = TokenLogprob(prompt[begin:end], begin, word.log_probability, ())
        # The word itself, known in small letters, is named as it is written, with the same number to the last bit.
        known = prompt[word.begin : word.end].lower()
        written = _written(word.candidates, partial(_write_after, writer, prompt[begin : word.begin]))
        top = [
            (token.text, token.log_probability) if candidate.word == known else each
            for candidate, each in zip(word.candidates, written, strict=True)
        ]
        found.append(replace(token, top=tuple(top)))
        writer.write(prompt[word.begin : word.end])
        begin = end
    return tuple(found)


def completion_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Return the log-probabilities in the form of completions; the token itself is among the most probable ones."""
    listed = list(tokens)
    return {
        "tokens": [token.text for token in listed],
        "token_logprobs": [token.log_probability for token in listed],
        "top_logprobs": [{**dict(token.top), token.text: token.log_probability} for token in listed],
        "text_offset": [token.offset for token in listed],
    }


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Return the log-probabilities in the form of chats."""
    content = [
        {**_named(token.text, token.log_probability), "top_logprobs": [_named(*each) for each in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _named(text: str, log_probability: float) -> dict[str, Any]:
    return {"token": text, "logprob": log_probability, "bytes": list(text.encode("utf-8"))}


def _written(candidates: Iterable[Candidate], write: Callable[[str], str]) -> tuple[tuple[str, float], ...]:
    return tuple((write(candidate.word), _log(candidate.value)) for candidate in candidates)


def _write_after(writer: Detokenizer, space: str, word: str) -> str:
    """Return the text that a word would add in a prompt, which has its own space before the place."""
    text = writer.preview(word)
    return space + text.removeprefix(" ") if text.startswith(" ") else text


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else LEAST
