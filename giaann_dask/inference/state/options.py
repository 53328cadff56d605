"""Define the options of inference that a network does not store: what sections 7 and 8 of the contract leave open.

The rules of profile ``v2`` are in `giaann_dask.inference.v2.options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from giaann_dask.errors import OptionError, parameter, require_one_of, require_option
from giaann_dask.keywords import names_keywords

# Of a key, a value and a time.
ENTRY_BYTES = 16

Timing = Literal["exact", "biased", "none"]
Activations = Literal["boolf", "boolf+c", "intf+c"]
Feed = Literal["target", "prediction"]


@names_keywords
@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
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
    feed: Feed = "target"

    def __post_init__(self) -> None:
        require_one_of("timing", self.timing, get_args(Timing))
        require_one_of("activations", self.activations, get_args(Activations))
        require_one_of("feed", self.feed, get_args(Feed))
        require_option(isinstance(self.sequential, bool), "sequential", self.sequential, "True or False")


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """Options of the size of a sequence's state in this process.

    Parameters
    ----------
    state_bytes : int
        Bytes of the entries of a part, 16 each in profile ``v1``; what passes that goes to workers, divided until no
        part is larger, unless it is one neuron.
    timeout_s : float
        Seconds after which a worker that does not respond is lost; its parts are made again on others.
    columns : int
        Of how many concept columns the activation is asked for at every step of a divided state.

    Raises
    ------
    OptionError
        If there is no room for an entry, no time, or fewer than no columns.
    """

    state_bytes: int = 1 << 30
    timeout_s: float = 60.0
    columns: int = 0

    def __post_init__(self) -> None:
        if self.state_bytes < ENTRY_BYTES:
            raise OptionError(
                f"{parameter('state_bytes')} is {self.state_bytes}", f"{ENTRY_BYTES} or more", "give room for an entry"
            )
        require_option(self.timeout_s > 0, "timeout_s", self.timeout_s, "more than 0")
        require_option(self.columns >= 0, "columns", self.columns, "0 or more")
