"""Turn the parts of an engine into completion deltas: text, stop sequences, finish reasons and token details.

Does not cover: their transport (`giaann_dask.serving.completions`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from giaann_dask.serving.engine import Ended, Given, Part, Token
from giaann_dask.serving.requests import CompletionRequest
from giaann_dask.serving.stops import StopFinder
from giaann_dask.text.detokenizer import Detokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """The text and token that a part of an engine adds to a choice.

    Attributes
    ----------
    text : str
        Text that is certain now.
    token : Token or None
        The token that was generated, whether or not its text is certain.
    finish : {"stop", "length"} or None
        Why the choice is finished; nothing comes after such a piece.
    reason : str or None
        Why the network went no further, if that is why.
    """

    text: str
    token: Token | None = None
    finish: Finish | None = None
    reason: str | None = None


class Choice:
    """One prompt's continuation, as it grows.

    Parameters
    ----------
    prompt : str
        As the client gave it.
    request : CompletionRequest
        What is wanted.
    seed : int, optional
        What its words are drawn with.

    Attributes
    ----------
    text : str
        What is certain so far.
    tokens : list of Token
        What was generated, if details of tokens are wanted.
    prompt_tokens, generated : int
        Counts; those of the prompt with nouns merged.
    finish : {"stop", "length"} or None
        Why it is finished.
    reason : str or None
        Why the network went no further.
    """

    def __init__(self, prompt: str, request: CompletionRequest, seed: int | None = None) -> None:
        self.text = ""
        self.tokens: list[Token] = []
        self.prompt_tokens = self.generated = 0
        self.finish: Finish | None = None
        self.reason: str | None = None
        self._prompt, self._echo, self._seed = prompt, request.echo, seed
        self.detailed = request.options.candidates > 0 or request.options.columns > 0
        self._finder = StopFinder(request.stops)
        self._subwords, self._spaced = False, prompt[-1:].isspace()
        self._writer = Detokenizer(False, spaced=self._spaced)

    def add(self, part: Part) -> CompletionDelta:
        """Take a part of the engine's and return what it adds."""
        piece = self._piece(part)
        self.text += piece.text
        self.finish, self.reason = piece.finish, piece.reason
        if piece.token is not None:
            self.generated += 1
            if self.detailed:
                self.tokens.append(piece.token)
        return piece

    def _piece(self, part: Part) -> CompletionDelta:
        match part:
            case Given():
                self.prompt_tokens, self._subwords = len(part.words), part.subwords
                self._writer = Detokenizer(part.subwords, spaced=self._spaced)
                return CompletionDelta(self._prompt if self._echo else "")
            case Ended(reason=reason):
                text = self._finder.feed(self._writer.end()) + self._finder.end()
                return CompletionDelta(text, finish="length" if reason is None else "stop", reason=reason)
            case Token():
                text = self._finder.feed(self._writer.write(part.word))
                return CompletionDelta(text, part, "stop" if self._finder.found else None)

    def as_dict(self, index: int) -> dict[str, Any]:
        """Return the whole choice, ready for JSON."""
        values = choice_fields(index, self.text, self.finish)
        details: dict[str, Any] = {"stop": self.reason} | self._kind()
        if self.detailed:
            details["tokens"] = [asdict(token) for token in self.tokens]
        return {**values, "giaann": details}

    def piece_as_dict(self, index: int, piece: CompletionDelta) -> dict[str, Any]:
        """Return a piece, ready for JSON, in the same fields as the whole."""
        details: dict[str, Any] = {"stop": piece.reason} | self._kind()
        if self.detailed:
            details["tokens"] = [] if piece.token is None else [asdict(piece.token)]
        return {**choice_fields(index, piece.text, piece.finish), "giaann": details}

    def _kind(self) -> dict[str, Any]:
        seed = {} if self._seed is None else {"seed": self._seed}
        return {"subwords": True, **seed} if self._subwords else seed


def choice_fields(index: int, text: str, finish: Finish | None) -> dict[str, Any]:
    """Return the fields of a choice that OpenAI's clients read."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
