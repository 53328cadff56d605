"""Define the command ``evaluate``, which also compares a network with n-grams and checks claims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, given_options, options_of, section
from giaann_dask.cli.output import answer, figures, is_verbose
from giaann_dask.cli.progress import event_log, events_option, progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    NETWORK,
    as_files,
    dense_options,
    evaluation_options,
    inference_options,
    inference_rules,
    prepared,
    row_options,
    text_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.network import Network
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.models.generation_options import EvaluationOptions

# Groups of options that networks of other profiles have.
_OTHERS = ("v1_rules", "v2_rules", "rows", "rules")


@click.command(cls=Command)
@NETWORK
@click.argument("inputs", nargs=-1, metavar="[INPUT...]", callback=as_files)
@inference_options
@options_of("rules", "giaann_dask.models.generation_options.PredictionRules", "Inference")
@evaluation_options("max_sequences", "first_sequence", "top_k", "bits_per_byte")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=FILE_PATH,
    metavar="FILE",
    help="Write a page (.html) or a picture (.png, .svg, .pdf) of the accuracy; repeatable.",
)
@section("Comparison with n-grams")(
    "--baseline",
    type=click.Choice(["ngram"]),
    help="Also show a backoff and a Kneser-Ney 5-gram made of the same tokens.",
)
@section("Comparison with n-grams")(
    "--baseline-text",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="The text that a network of profile v1 or v2 was trained on, for --baseline; repeatable.",
)
@section("Claims")("--claims", type=FILE_PATH, help="Check the claims of a file of JSON lines instead of text.")
@section("Claims")("--least-value", type=float, help="Count answers of a lower activation or probability as none.")
@click.option("--ref", "commit", metavar="NAME", help="Evaluate an older commit, tag or branch.")
@row_options
@text_options
@events_option
@dense_options
def evaluate(
    network: Path,
    inputs: tuple[str, ...],
    reports: tuple[Path, ...],
    evaluation: EvaluationOptions,
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Measure how well a network predicts a text, token by token.

    The first tokens of each sentence are given; top-1 is the share of the others that the network
    predicts, in all, by the token's index in its sentence and by its part of speech. Sentences without
    a noun or without delimiters count nowhere.

    A network of profile contexts gives every word a probability, so perplexity and bits per byte come with
    it, and sentences of any kind count.

    With --claims there is no INPUT: each prompt of the file is continued, and its answer is justified, right or wrong
    without support, hallucinated, or none (abstained).
    """
    claims = values["claims"]
    if bool(inputs) == (claims is not None):
        received = f"{'both' if inputs else 'neither'} text {'and' if inputs else 'nor'} --claims"
        raise OptionError(received, "one of them", "name the text to predict, or a file of claims")
    if values["least_value"] is not None and claims is None:
        received = "--least-value without --claims"
        raise OptionError(received, "claims, whose answers abstain", "leave it out")
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.network import Network
    from giaann_dask.diagnostics.evaluation_report import check_report_name, save_report
    from giaann_dask.storage import require_writable

    opened = Network(network, values["commit"])
    asked = {**values, "reports": reports, "evaluation": evaluation, "text": text}
    _check_baseline(opened, inputs, asked)
    for path in reports:
        check_report_name(path, groups=opened.specification.traits.columns)
        require_writable(path)
    if claims is not None:
        _check_claims(opened, asked, where)
        return
    if opened.specification.traits.probabilities:
        _score(opened, inputs, asked, where)
        return
    options = replace(evaluation, inference=inference_rules(values, values["rules"].feed))
    opened.require_fit(options)
    workload = Workload(inputs, text.reading.text_field, options.max_sequences)
    with connect(options=where) as client, progress(workload) as observer:
        logged = event_log(values["events"], observer)
        report = opened.evaluate(inputs, client=client, options=options, text=text, observer=logged)
        compared, compared_lines = _compare(opened, inputs, asked, client)
    counts = {**report.as_dict(), **compared, "reports": [str(save_report(report, path)) for path in reports]}
    shown = report.shown(is_verbose())
    lines = [*figures(shown, *shown), *report.lines(), *compared_lines, *counts["reports"]]
    answer(counts, values["as_json"], [f"network {network}", *lines])


def _score(network: Network, inputs: tuple[str, ...], values: dict[str, Any], where: ClusterOptions) -> None:
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


def _check_claims(network: Network, values: dict[str, Any], where: ClusterOptions) -> None:
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


def _check_baseline(network: Network, inputs: tuple[str, ...], values: dict[str, Any]) -> None:
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


def _compare(
    network: Network, inputs: tuple[str, ...], values: dict[str, Any], client: Client
) -> tuple[dict[str, Any], list[str]]:
    """Score n-grams on the tokens that a network of columns is evaluated on, where an option says so.

    Returns
    -------
    tuple
        Values for JSON, and lines to print; empty without ``--baseline``.
    """
    from giaann_dask.models.words.score_report import ScoringOptions

    if values["baseline"] is None:
        return {}, []
    evaluation, training = values["evaluation"], values["baseline_text"]
    options = ScoringOptions(max_sequences=evaluation.max_sequences, first_sequence=evaluation.first_sequence)
    found = network.compare_ngrams(inputs, training, client=client, options=options, text=values["text"])
    seed = network.specification.seed_tokens
    return {"baseline": found.as_dict(seed)}, found.lines(seed)
