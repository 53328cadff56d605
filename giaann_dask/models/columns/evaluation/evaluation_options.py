"""Validate the options of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from giaann_dask.device import DeviceName
from giaann_dask.errors import OptionError, require_at_least
from giaann_dask.keywords import names_keywords
from giaann_dask.models.generation_options import PredictionRules
from giaann_dask.rows.row_options import RowOptions

MAXIMUM_RANKS = 1000


@names_keywords
@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation.

    Parameters
    ----------
    inference : PredictionRules
        Rules of prediction, by default those of the network's model.
    max_sequences : int, optional
        Sequences to read that pass the length filter.
    first_sequence : int
        First sequence to read, counted from 0.
    device : {"auto", "cpu", "cuda"}
        Device of the activation state.
    rows : RowOptions
        How workers come by the network's rows.
    top_k : tuple of int
        Every k for which it is counted how often one of the k best candidates is right, up to 1,000; 1 is
        always among them. Candidates are ranked by value, then in the order of neurons.
    bits_per_byte : bool
        Whether the probabilities of tokens are summed up, too (`evaluation.code_length`).

    Raises
    ------
    OptionError
        If a k or a limit is out of range.

    Examples
    --------
    >>> EvaluationOptions(top_k=(10, 5)).top_k
    (1, 5, 10)
    """

    inference: PredictionRules = field(default_factory=PredictionRules)
    max_sequences: int | None = None
    first_sequence: int = 0
    device: DeviceName = "auto"
    rows: RowOptions = field(default_factory=RowOptions)
    top_k: tuple[int, ...] = (1,)
    bits_per_byte: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, self, "max_sequences")
        require_at_least(0, self, "first_sequence")
        wrong = [k for k in self.top_k if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MAXIMUM_RANKS]
        if wrong:
            raise OptionError(
                f"top_k has {wrong[0]!r}",
                f"whole numbers from 1 to {MAXIMUM_RANKS}",
                "set top_k to such values",
            )
        object.__setattr__(self, "top_k", tuple(sorted({1, *self.top_k})))
