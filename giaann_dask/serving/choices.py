"""From parts of an engine to pieces of a choice's text.

Covers: spaces between words, the prompt's echo, stop sequences, why a choice finished, and what is
told of each token. Does not cover: their transport (`completions`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from giaann_dask.serving.engine import Ended, Given, Part, Token
from giaann_dask.serving.requests import CompletionRequest
from giaann_dask.serving.stops import StopFinder

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a part adds to a choice.

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

    def __init__(self, prompt: str, request: CompletionRequest) -> None:
        self.text = ""
        self.tokens: list[Token] = []
        self.prompt_tokens = self.generated = 0
        self.finish: Finish | None = None
        self.reason: str | None = None
        self._prompt, self._echo = prompt, request.echo
        self.detailed = request.options.candidates > 0 or request.options.columns > 0
        self._finder = StopFinder(request.stops)
        self._space = "" if prompt[-1:].isspace() else " "

    def add(self, part: Part) -> Piece:
        """Take a part of the engine's and return what it adds."""
        piece = self._piece(part)
        self.text += piece.text
        self.finish, self.reason = piece.finish, piece.reason
        if piece.token is not None:
            self.generated += 1
            if self.detailed:
                self.tokens.append(piece.token)
        return piece

    def _piece(self, part: Part) -> Piece:
        match part:
            case Given():
                self.prompt_tokens = len(part.words)
                return Piece(self._prompt if self._echo else "")
            case Ended(reason=reason):
                return Piece(self._finder.end(), finish="length" if reason is None else "stop", reason=reason)
            case Token():
                space, self._space = self._space, " "
                text = self._finder.feed(space + part.word.replace("_", " "))
                return Piece(text, part, "stop" if self._finder.found else None)

    def as_dict(self, index: int) -> dict[str, Any]:
        """Return the whole choice, ready for JSON."""
        values = choice_fields(index, self.text, self.finish)
        details: dict[str, Any] = {"stop": self.reason}
        if self.detailed:
            details["tokens"] = [asdict(token) for token in self.tokens]
        return {**values, "giaann": details}

    def piece_as_dict(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a piece, ready for JSON, in the same fields as the whole."""
        details: dict[str, Any] = {"stop": piece.reason}
        if self.detailed:
            details["tokens"] = [] if piece.token is None else [asdict(piece.token)]
        return {**choice_fields(index, piece.text, piece.finish), "giaann": details}


def choice_fields(index: int, text: str, finish: Finish | None) -> dict[str, Any]:
    """Return the fields of a choice that OpenAI's clients read."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
