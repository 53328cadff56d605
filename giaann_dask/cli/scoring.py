"""Evaluate a network of profile ``contexts``, compare a network of any profile with n-grams, and check claims.

These are parts of the command ``evaluate`` (`commands`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.cli.click_ext import given_options
from giaann_dask.cli.event_files import event_log
from giaann_dask.cli.logs import is_verbose
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import Workload, progress, waiting
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.network import Network
    from giaann_dask.cluster import ClusterOptions

# Groups of options that networks of other profiles have.
_OTHERS = ("v1_rules", "v2_rules", "rows", "rules")


def score(network: Network, inputs: tuple[str, ...], values: dict[str, Any], where: ClusterOptions) -> None:
    """Score a text with a network of profile ``contexts`` and print the answer.

    Raises
    ------
    OptionError
        If an option that belongs to other profiles is set.
    """
    from giaann_dask.api.cluster import connect
    from giaann_dask.diagnostics.evaluation_report import save_report
    from giaann_dask.models.words.score_report import ScoringOptions

    for name in given_options(*_OTHERS):
        received = f"{name} for a network of profile {network.specification.profile}"
        raise OptionError(received, "profile v1 or v2", "leave it out", names=(name,))
    evaluation, text = values["evaluation"], values["text"]
    limits = {name: getattr(evaluation, name) for name in ("max_sequences", "first_sequence", "top_k")}
    options = ScoringOptions(**limits, baseline=values["baseline"])
    workload = Workload(inputs, text.reading.text_field, options.max_sequences)
    with connect(options=where) as client, progress(workload) as observer:
        logged = event_log(values["events"], observer)
        report = network.score(inputs, client=client, options=options, text=text, observer=logged)
    counts = {**report.as_dict(), "reports": [str(save_report(report, path)) for path in values["reports"]]}
    shown = report.shown(is_verbose())
    lines = [*figures(shown, *shown), *report.lines(), *counts["reports"]]
    answer(counts, values["as_json"], [f"network {network.path}", *lines])


def check_claims(network: Network, values: dict[str, Any], where: ClusterOptions) -> None:
    """Let a network of any profile answer claims, and print the outcomes.

    Raises
    ------
    GiaannError
        If the claims cannot be read, or the options do not fit the network.
    """
    from giaann_dask.api.cluster import connect
    from giaann_dask.cli.shared_options import inference_rules
    from giaann_dask.models.generation_options import GenerationOptions
    from giaann_dask.predict.claims import as_claims

    others = [name for name in ("baseline", "reports", "events") if values[name]]
    for name in [each for each in given_options("rules", "evaluation") if each != "device"] + others:
        raise OptionError(f"{name} with --claims", "text to predict", "leave one of them out", names=(name,))
    evaluation, claims = values["evaluation"], as_claims(values["claims"])
    options = GenerationOptions(
        inference=inference_rules(values, "prediction"),
        tagger=values["text"].tagger or GenerationOptions.tagger,
        rows=evaluation.rows,
        device=evaluation.device,
    )
    network.require_fit(options)
    with connect(options=where) as client, waiting("evaluate"):
        found = network.check_claims(claims, client=client, least_value=values["least_value"], options=options)
    shown = found.shown()
    answer(found.as_dict(), values["as_json"], [f"network {network.path}", *figures(shown, *shown), *found.lines()])


class Compared(NamedTuple):
    """Accuracy of n-grams: values for JSON, and lines to print; empty without ``--baseline``."""

    counts: dict[str, Any]
    lines: list[str]


def check_baseline(network: Network, inputs: tuple[str, ...], values: dict[str, Any]) -> None:
    """Raise an `OptionError` when the text for n-grams is missing, not needed or can be read only once."""
    from giaann_dask.text.inputs import require_rereadable

    given = bool(values["baseline_text"])
    wanted = values["baseline"] is not None and not network.specification.traits.probabilities
    if given != wanted:
        raise OptionError(
            f"--baseline-text is {'given' if given else 'not given'}",
            "the text that a network of profile v1 or v2 was trained on, with --baseline",
            "name it; a network of profile contexts holds all counts that it takes",
        )
    if wanted:
        require_rereadable([*inputs, *values["baseline_text"]], "a comparison with n-grams")


def compare(network: Network, inputs: tuple[str, ...], values: dict[str, Any], client: Client) -> Compared:
    """Score n-grams on the tokens that a network of columns is evaluated on, where an option says so."""
    from giaann_dask.models.words.score_report import ScoringOptions

    if values["baseline"] is None:
        return Compared({}, [])
    evaluation, training = values["evaluation"], values["baseline_text"]
    options = ScoringOptions(max_sequences=evaluation.max_sequences, first_sequence=evaluation.first_sequence)
    found = network.compare_ngrams(inputs, training, client=client, options=options, text=values["text"])
    seed = network.specification.seed_tokens
    return Compared({"baseline": found.as_dict(seed)}, found.lines(seed))
