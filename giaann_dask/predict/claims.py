"""Check claims: what a network answers, by whether that is true and whether the text that it was trained on says so.

A claim is a prompt with its true answers and those that the training text supports, so that memory, knowledge and
invention are told apart, and not answering is no error. Any model that continues prompts can be checked
(`giaann_dask.models.base.Predictor`). Does not cover: finding out what a text supports; claims say it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from giaann_dask.errors import InputFormatError, InputMissingError, OptionError
from giaann_dask.keywords import names_keywords
from giaann_dask.local_files import read_utf8
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.results import GeneratedToken
from giaann_dask.representations import Summarised, Summary

Outcome = Literal["justified", "correct_ungrounded", "grounded_falsehood", "hallucinated", "abstained"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

# Words, and whatever else is no space, one by one.
_PIECE = re.compile(r"[^\W_]+|[^\w\s]")


@names_keywords
@dataclass(frozen=True, kw_only=True)
class Claim:
    """A prompt with the answers that are true, and those that the training text supports.

    Parameters
    ----------
    prompt : str
        Text up to the answer.
    true : tuple of str
        Right answers, whether or not the text has them. An answer is one or more words; case does not matter.
    supported : tuple of str
        Answers that the text gives, right or not; none where the text does not hold the claim.
    category : str
        Group in the report. By default ``"supported"`` where the text supports a true answer, ``"contradicted"`` where
        it supports others alone, and ``"absent"`` where it supports none.

    Raises
    ------
    OptionError
        If there is no prompt or no true answer, or an answer has no word.

    Examples
    --------
    >>> Claim(prompt="The sky is", true=("blue",), supported=("green",)).category
    'contradicted'
    """

    prompt: str
    true: tuple[str, ...]
    supported: tuple[str, ...] = ()
    category: str = ""

    def __post_init__(self) -> None:
        for name in ("true", "supported"):
            answers = getattr(self, name)
            listed = answers if isinstance(answers, list | tuple) else [answers]
            if listed is not answers or not all(isinstance(each, str) and pieces(each) for each in listed):
                raise OptionError(f"the {name} answers of a claim are {answers!r}", "a list of words", "write a list")
            object.__setattr__(self, name, tuple(answers))
        if not (isinstance(self.prompt, str) and self.prompt.strip() and self.true):
            received = f"a claim with the prompt {self.prompt!r} and the true answers {self.true}"
            raise OptionError(received, "a prompt and an answer", "add what is missing")
        both = {tuple(pieces(each)) for each in self.true} & {tuple(pieces(each)) for each in self.supported}
        found = "supported" if both else "contradicted" if self.supported else "absent"
        object.__setattr__(self, "category", self.category or found)

    def outcome(self, answer: Sequence[str]) -> Outcome:
        """Return the outcome of an answer, as `pieces` of text that begins with it; none at all abstains.

        Examples
        --------
        >>> claim = Claim(prompt="The sky is", true=("blue", "grey"), supported=("green", "blue"))
        >>> [claim.outcome(words) for words in (["blue", "."], ["grey"], ["green"], ["red"], [])]
        ['justified', 'correct_ungrounded', 'grounded_falsehood', 'hallucinated', 'abstained']
        """
        if not answer:
            return "abstained"
        right, grounded = (
            any(list(answer[: len(words)]) == words for words in map(pieces, those))
            for those in (self.true, self.supported)
        )
        if right:
            return "justified" if grounded else "correct_ungrounded"
        return "grounded_falsehood" if grounded else "hallucinated"


@dataclass(frozen=True, repr=False)
class ClaimReport(Summarised):
    """Outcomes of the answers to claims.

    Attributes
    ----------
    claims : int
        How many were asked.
    outcomes : dict of str to int
        How many answers are ``justified`` (true and supported), ``correct_ungrounded`` (true alone),
        ``grounded_falsehood`` (supported alone) or ``hallucinated`` (neither), and how often there was none.
    categories : dict of str to dict
        The same by category.
    grounded_accuracy : float
        Share of justified answers in all claims.
    answered : float
        Share of claims with an answer.
    justified_of_answered : float
        Share of justified answers in all answers; 0 without any.
    majority_accuracy : float
        Grounded accuracy of the commonest true answer, of equal ones the first by name, given to every claim.
    refused : int
        Prompts among the abstained ones that the network cannot begin to continue, such as those without a noun.
    commit : str
        The commit that answered.
    answers : tuple of str
        The answers, in the order of the claims; empty where there was none.
    """

    claims: int
    outcomes: dict[str, int]
    categories: dict[str, dict[str, int]]
    grounded_accuracy: float
    answered: float
    justified_of_answered: float
    majority_accuracy: float
    refused: int
    commit: str
    answers: tuple[str, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """Return the figures that a command prints, in order."""
        names = ("claims", "grounded_accuracy", "answered", "justified_of_answered", "majority_accuracy", "outcomes")
        return {name: getattr(self, name) for name in names}

    def lines(self) -> list[str]:
        """Return the outcomes by category, for a person."""
        return [f"{name}: {line}" for name, line in self._by_category().items()]

    def summary(self) -> Summary:
        """Return the lines that represent the report."""
        shares = (self.grounded_accuracy, self.answered, self.justified_of_answered)
        names = ("grounded accuracy", "answered", "justified of these")
        rows = [(name, f"{share:.4f}") for name, share in zip(names, shares, strict=True)]
        return Summary("Claims", (("claims", str(self.claims)), *rows, *self._by_category().items()))

    def _by_category(self) -> dict[str, str]:
        """Return the outcomes of each category as a line."""
        return {
            name: ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in those.items() if count)
            for name, those in self.categories.items()
        }


def pieces(text: str) -> list[str]:
    """Return the words and other characters of a text by which answers are compared, in lower case.

    Examples
    --------
    >>> pieces("The well-known stone_mill.")
    ['the', 'well', '-', 'known', 'stone', 'mill', '.']
    """
    return _PIECE.findall(text.casefold())


def as_claims(claims: str | Path | Iterable[Claim | Mapping[str, Any]]) -> list[Claim]:
    """Return claims that are given as such, as mappings of their fields, or by a file of JSON lines.

    Raises
    ------
    InputMissingError, InputEncodingError, InputFormatError
        If a file cannot be read, or a line is no claim.
    OptionError
        If a claim is wrong, or there is none.
    """
    if isinstance(claims, str | Path):
        found = _read_claims(Path(claims))
    else:
        found = [each if isinstance(each, Claim) else Claim(**each) for each in claims]
    if not found:
        raise OptionError("no claims", "one or more", "write each as a line of JSON")
    return found


def _read_claims(path: Path) -> list[Claim]:
    """Return the claims of a file of JSON lines."""
    try:
        lines = read_utf8(path).splitlines()
    except OSError as error:
        received = f"the claims {path} cannot be read ({error.strerror})"
        raise InputMissingError(received, "a file of JSON lines", "check its name") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Claim(**json.loads(line)))
        except (TypeError, ValueError) as error:
            expected = 'an object such as {"prompt": "The sky is", "true": ["blue"], "supported": []}'
            raise InputFormatError(
                f"line {number} of {path} is not a claim: {error}", expected, "correct it"
            ) from error
    return found


def tokens_of_answers(claims: Sequence[Claim], subwords: bool) -> int:
    """Return how many tokens show any of the answers whole: its words, of subwords its bytes, and what ends it."""
    answers = [answer for claim in claims for answer in (*claim.true, *claim.supported)]
    if subwords:
        return 1 + max(len(f" {answer}".encode()) for answer in answers)
    return max(len(pieces(answer)) for answer in answers)


def report_claims(
    claims: Sequence[Claim],
    events: Iterable[TokenEvent],
    *,
    least_value: float | None = None,
    subwords: bool = False,
    commit: str = "",
) -> ClaimReport:
    """Return the report of the continuations of the prompts of claims.

    Parameters
    ----------
    claims : sequence of Claim
        At least one.
    events : iterable of TokenEvent
        Continuations of their prompts, in any order of the prompts.
    least_value : float, optional
        An answer whose first token has a lower value abstains; none does by default.
    subwords : bool
        Whether tokens are subwords.
    commit : str
        The commit that answers.
    """
    tokens: list[list[GeneratedToken]] = [[] for _ in claims]
    refused = 0
    for event in events:
        refused += event.error is not None
        if event.token is not None:
            tokens[event.number].append(event.token)
    answers = [_answer(found, least_value, subwords) for found in tokens]
    outcomes = [claim.outcome(pieces(answer)) for claim, answer in zip(claims, answers, strict=True)]
    groups: dict[str, dict[str, int]] = {}
    for claim, outcome in zip(claims, outcomes, strict=True):
        groups.setdefault(claim.category, dict.fromkeys(OUTCOMES, 0))[outcome] += 1
    counts: dict[str, int] = {name: outcomes.count(name) for name in OUTCOMES}
    answered = len(claims) - counts["abstained"]
    return ClaimReport(
        claims=len(claims),
        outcomes=counts,
        categories=groups,
        grounded_accuracy=counts["justified"] / len(claims),
        answered=answered / len(claims),
        justified_of_answered=counts["justified"] / max(1, answered),
        majority_accuracy=_majority(claims),
        refused=refused,
        commit=commit,
        answers=tuple(answers),
    )


def _answer(tokens: Sequence[GeneratedToken], least_value: float | None, subwords: bool) -> str:
    """Return the text of an answer, empty where it abstains."""
    if not tokens or (least_value is not None and tokens[0].candidates[0].value < least_value):
        return ""
    return ("" if subwords else " ").join(token.word for token in tokens).strip()


def _majority(claims: Sequence[Claim]) -> float:
    """Return the grounded accuracy of the commonest true answer."""
    common = Counter(" ".join(pieces(answer)) for claim in claims for answer in claim.true)
    answer = min(common, key=lambda name: (-common[name], name))
    return sum(claim.outcome(answer.split()) == "justified" for claim in claims) / len(claims)
