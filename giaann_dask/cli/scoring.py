"""``evaluate`` for a network of profile ``best``: probabilities of words instead of rules of inference.

Covers: which options of the command have a meaning there, and its answer. Does not cover: the command
itself (`commands`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from giaann_dask.cli.options import read_text_options
from giaann_dask.cli.showing import answer, figures, progress
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from giaann_dask.api import Network
    from giaann_dask.cluster import ClusterOptions

# Options of other profiles, with the values that they have where they are left out.
_OTHERS = {
    **{"timing": "none", "activations": "boolf", "sequential": True, "feed": "target", "settings": None},
    **{"strict_reference": False, "enforce_delimiter": False, "top_k": "1", "rows": "auto", "row_memory": None},
    "reports": (),
}


def score(network: Network, inputs: tuple[str, ...], values: dict[str, Any], where: ClusterOptions) -> None:
    """Score a text with a network of profile ``best`` and print the answer.

    Raises
    ------
    OptionError
        If an option that belongs to other profiles is set.
    """
    from giaann_dask.api import ScoringOptions, connect

    for name, usual in _OTHERS.items():
        if values[name] != usual:
            raise OptionError(
                f"{name.replace('_', '-')} for a network of profile best", "profile v1 or v2", "leave it out"
            )
    names = ("maximum_sequences", "first_sequence", "baseline")
    options = ScoringOptions(**dict(zip(names, (values[n] for n in ("max_sequences", *names[1:])), strict=True)))
    with connect(options=where) as client, progress() as observer:
        text = read_text_options(values)
        report = network.score(inputs, client=client, options=options, text=text, observer=observer)
    counts = report.as_dict()
    shown = figures(
        counts,
        *("sequences", "prediction_tokens", "prediction_matches", "top1", "perplexity", "bits_per_byte"),
        *("every_token", "seconds", "tokens_per_second"),
    )
    answer(counts, values["as_json"], [f"network {Path(network.path)}", *shown, *report.lines()])
