"""Define the options of inference that a network does not store: what sections 7 and 8 of the contract leave open.

The rules of profile ``v2`` are in `giaann_dask.models.columns.v2.v2_options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from giaann_dask.errors import require_one_of, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.models.generation_options import PredictionRules

Timing = Literal["exact", "biased", "none"]
Activations = Literal["boolf", "boolf+c", "intf+c"]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class InferenceOptions(PredictionRules):
    """Rules of inference (contract, section 8). The defaults predict best on text that was not trained on.

    Parameters
    ----------
    timing : {"none", "biased", "exact"}
        ``"exact"``: a connection needs the segment before its own to have been activated exactly
        one time unit ago. ``"biased"``: entries lose value by their distance from the expected
        time. ``"none"``: times are not kept.
    activations : {"boolf", "boolf+c", "intf+c"}
        ``"boolf"``: feature segments are 0 or 1, column segments are sums. ``"boolf+c"``: all
        segments are 0 or 1. ``"intf+c"``: all segments are sums.
    sequential : bool
        Whether a connection needs the segment before its own to be active on the same branch.
    feed : {"target", "prediction"}
        What is the source of the next step in the prediction phase: the sentence's own token or
        the predicted neuron.

    Raises
    ------
    OptionError
        If a value is not one of those listed.

    Examples
    --------
    >>> InferenceOptions(timing="exact", sequential=True).activations
    'boolf'
    """

    # What rules of any profile say of themselves.
    sends_strengths: ClassVar[bool] = False
    auxiliary: ClassVar[tuple[str, ...]] = ()
    cpu_only: ClassVar[bool] = False

    timing: Timing = "none"
    activations: Activations = "boolf"
    sequential: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("timing", self.timing, get_args(Timing))
        require_one_of("activations", self.activations, get_args(Activations))
        require_option(isinstance(self.sequential, bool), "sequential", self.sequential, "True or False")

    @property
    def chosen(self) -> bool:
        """Whether they differ from the defaults, which stand for those of any model."""
        return self != InferenceOptions(feed=self.feed)

    def boolean_from(self, columns: int, segments: int) -> int:
        """Return the first segment whose entries are 0 or 1, of a number of column segments and of all segments."""
        return {"boolf": columns, "boolf+c": 0, "intf+c": segments}[self.activations]
