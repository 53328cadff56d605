"""Represent log-probabilities of tokens in the two forms of OpenAI's API: of completions and of chats.

Tokens are as they are written, with the space before them where there is one, so that joined they are the text.
Does not cover: the probabilities themselves (`giaann_dask.models.contexts.word_scores`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from giaann_dask.models.results import Candidate, GeneratedToken, ScoredWord
from giaann_dask.text.detokenizer import Detokenizer

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
