"""Define the base class of the rules of prediction; each model derives those of its own.

It imports nothing that computes, as command lines read the defaults of rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from giaann_dask.errors import require_one_of
from giaann_dask.keywords import names_keywords

Feed = Literal["target", "prediction"]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class PredictionRules:
    """Rules of prediction: those of a network's own model, or of one model where a class is derived from it.

    Parameters
    ----------
    feed : {"target", "prediction"}
        What is the source of the next step in the prediction phase: the sentence's own token or what was predicted.

    Raises
    ------
    OptionError
        If a value is not one of those listed.
    """

    feed: Feed = "target"

    def __post_init__(self) -> None:
        require_one_of("feed", self.feed, get_args(Feed))

    @property
    def chosen(self) -> bool:
        """Whether rules of a certain model are asked for."""
        return type(self) is not PredictionRules
