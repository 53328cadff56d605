"""Define the commands for everyday use, each a thin layer over `giaann_dask.api`.

Modules that are slow to import are imported when a command runs, so that ``--help`` is quick.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import PLAIN, Group, given_options, options_of, section
from giaann_dask.cli.output import answer, figures, is_json, is_verbose, place_name, say
from giaann_dask.cli.process import stop_on_signals
from giaann_dask.cli.progress import event_log, events_option, progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    INPUTS,
    LOCAL,
    NETWORK,
    WRITTEN_PATH,
    as_files,
    beam_options,
    common_options,
    corpus_text_options,
    dense_options,
    evaluating_options,
    evaluation_options,
    generation_options,
    inference_options,
    inference_rules,
    model_options,
    network_options,
    new_text_options,
    output_options,
    prepared,
    read_fields,
    read_specification,
    reading_options,
    row_options,
    sampling_options,
    specification_options,
    text_options,
    training_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import OptionError, require_option
from giaann_dask.representations import format_seconds
from giaann_dask.workflows.exits import DONE, TRY_AGAIN

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.network import Network
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.cluster.stages import StageTime
    from giaann_dask.models.generation_options import EvaluationOptions, GenerationOptions
    from giaann_dask.training.training_options import TrainingOptions

_MOVED = ("increment_bytes", "column_touches", "shared_touches", "busiest_region_share")
_COMMITTED = ("commit_requests", "commit_bytes")
# Groups of options that networks of other profiles have.
_OTHERS = ("v1_rules", "v2_rules", "shared_rules", "rows", "rules")


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="giaann-dask")
def giaann_dask() -> None:
    """Train and use GIAANN networks: language models that learn by counting.

    Nouns are concept columns; every other word is a feature neuron in the column that it belongs to. Training adds
    strength to the connections between the neurons of a sentence; prediction follows them.

    A first network:

    \b
        giaann-dask train text.txt --network my.network
        giaann-dask evaluate my.network other.txt
        giaann-dask generate my.network "The old miller carried the"
        giaann-dask draw my.network --out picture.svg

    An INPUT is a text file, also compressed, a folder, a glob, CoNLL-U (.conllu), JSON lines
    (.jsonl), a URL, a Hugging Face dataset (hf:NAME), @FILE for a list of inputs, - for plain
    text from standard input or, where noted, an encoded corpus.
    """  # noqa: D301 - click looks for the character, not for its escape


@giaann_dask.command()
@INPUTS
@click.option("--out", required=True, type=WRITTEN_PATH, help="Folder or URL of the new corpus.")
@specification_options
@click.option("--max-sequences", type=int, help="Stop after N sequences that pass the length filter.")
@corpus_text_options
@events_option
@common_options
def encode(
    inputs: tuple[str, ...],
    out: Path,
    max_sequences: int | None,
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Encode text into a corpus that any number of networks can train on.

    The corpus is a Zarr group in an Icechunk repository: column, feature and branch of every token, the dictionaries in
    order of first appearance, and the reasons for skipped sentences. All workers write it.
    """
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.training import encode as encode_text
    from giaann_dask.api.training import require_encodable
    from giaann_dask.spec import Specification

    valid = max_sequences is None or max_sequences >= 1
    require_option(valid, "max_sequences", max_sequences, "1 or more")
    specification = Specification(**read_fields(values))
    require_encodable(specification, out)
    text.require_fit(specification)
    workload = Workload(inputs, text.reading, max_sequences)
    with connect(options=where) as client, progress(workload) as observer:
        corpus = encode_text(
            inputs,
            out,
            client=client,
            specification=specification,
            text=text,
            max_sequences=max_sequences,
            observer=event_log(values["events"], observer),
        )
    counts = {**corpus.describe(), "corpus": str(corpus.path)}
    shown = figures(counts, "sequences", "trained", "no_concept", "no_delimiter", "tokens", "concepts", "features")
    answer(counts, [f"corpus {place_name(corpus.path)}", *shown])


@giaann_dask.command()
@INPUTS
@click.option("--network", required=True, type=WRITTEN_PATH, help="Folder or URL of the network, new or not.")
@click.option("--branch", metavar="NAME", help="Branch of the network to commit to.  [default: main]")
@network_options
@training_options()
@new_text_options
@events_option
@dense_options
def train(
    inputs: tuple[str, ...],
    network: Path,
    branch: str | None,
    training: TrainingOptions,
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> int:
    """Train a network on text or on encoded corpora.

    Text that the network was trained on before is skipped, so run an interrupted command again, and name more text to
    add it. Nothing is counted twice. After Ctrl-C, SIGTERM or SIGHUP, rounds in progress are committed and the exit
    code is 75.
    """
    where = prepared(cluster)
    from giaann_dask.api.cluster import connect
    from giaann_dask.api.training import train as train_network
    from giaann_dask.spec import Specification

    specification = read_specification(network, values)
    text.require_fit(specification or Specification())
    workload = Workload(inputs, text.reading, training.max_sequences)
    with connect(options=where) as client, progress(workload) as observer, stop_on_signals() as stop:
        trained = train_network(
            inputs,
            network,
            client=client,
            specification=specification,
            text=text,
            options=training,
            branch=branch,
            observer=event_log(values["events"], observer),
            stop=stop,
        )
    report = trained.training_report
    seconds = _both_seconds(report.seconds)
    counts = {**report.as_dict(), **seconds, "network": str(network)}
    names: tuple[str, ...] = ("sequences", "trained", "skipped", "connections", "seconds")
    if is_verbose():
        memory = ("packed_bytes", "spilled_bytes") if report.packed_bytes or report.spilled_bytes else ()
        names = (*names[:3], "tokens", *names[3:], "regions", "messages", *_MOVED, *memory, *_COMMITTED, "commit")
    names = (*names, "index_bytes_per_connection") if report.index_bytes else names
    names = (*names, "lock_waits", "lock_seconds") if report.lock_waits else names
    names = (*names, "slow_workers") if report.slow_workers else names
    times = _times(report.stages)
    title = f"network {place_name(network)}" + ("" if report.sequences else " held all of it already")
    answer(counts, [title, *figures({**counts, **times, "seconds": format_seconds(*seconds.values())}, *names, *times)])
    if not report.stopped:
        return DONE
    say("stopped and committed; run the same command again to continue")
    return TRY_AGAIN


def _both_seconds(work: float) -> dict[str, float]:
    """Return the seconds of a report, and those since the command began."""
    return {"seconds": work, "command_seconds": round(time.perf_counter() - click.get_current_context().obj, 3)}


def _times(stages: Mapping[str, StageTime]) -> dict[str, str]:
    """Return how long devices have computed which stages, and with --verbose processors, too."""
    from giaann_dask.cluster.stages import PLACES, time_rows

    return dict(time_rows(stages, PLACES if is_verbose() else ["device"]))


@giaann_dask.command()
@NETWORK
@click.argument("inputs", nargs=-1, metavar="[INPUT...]", callback=as_files)
@inference_options
@options_of("rules", "giaann_dask.models.generation_options.PredictionRules", "Inference", only=("feed",))
@evaluation_options("protocol", "max_sequences", "first_sequence", "top_k", "bits_per_byte")
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
    help="Also evaluate a backoff and a Kneser-Ney 5-gram on the same tokens.",
)
@section("Comparison with n-grams")(
    "--baseline-text",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="Training text of a network of profile v1 or v2, for --baseline; repeatable.",
)
@section("Claims")("--claims", type=FILE_PATH, help="Check the claims of a JSON lines file instead of text.")
@section("Claims")("--least-value", type=float, help="Count answers of a lower activation or probability as missing.")
@click.option("--ref", "commit", metavar="NAME", help="Evaluate an older commit, tag or branch.")
@model_options
@row_options
@text_options
@events_option
@evaluating_options
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

    The first tokens of each sentence are given; top-1 is the share of the others that the network predicts, in total,
    by the token's index in its sentence and by its part of speech. Sentences without a noun or without delimiters are
    not counted. The columns of a token depend on the words before it alone (--protocol left-to-right), or on its whole
    sentence (published).

    A network of profile contexts gives every word a probability, so perplexity and bits per byte are reported, too, and
    all sentences count.

    With --claims there is no INPUT: each prompt of the file is continued, and its answer is justified, correct without
    support, a supported falsehood, hallucinated, or missing (abstained).
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
    rules = inference_rules(values, values["rules"].feed)
    options = replace(evaluation, inference=rules, model_options=values["model_options"])
    opened.require_fit(options)
    workload = Workload(inputs, text.reading, options.max_sequences)
    with connect(options=where) as client, progress(workload) as observer:
        logged = event_log(values["events"], observer)
        report = opened.evaluate(inputs, client=client, options=options, text=text, observer=logged)
        compared, compared_lines = _compare(opened, inputs, asked, client)
    files = [str(save_report(report, path, notes=compared_lines)) for path in reports]
    seconds = _both_seconds(report.seconds)
    counts = {**report.as_dict(), **seconds, **compared, "reports": files}
    shown = report.shown(is_verbose()) | {"seconds": format_seconds(*seconds.values())}
    lines = [*figures(shown, *shown), *report.lines(), *compared_lines, *counts["reports"]]
    answer(counts, [f"network {place_name(network)}", *lines])


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
    options = ScoringOptions(**limits, baseline=values["baseline"], model_options=values["model_options"])
    workload = Workload(inputs, text.reading, options.max_sequences)
    with connect(options=where) as client, progress(workload) as observer:
        logged = event_log(values["events"], observer)
        report = network.score(inputs, client=client, options=options, text=text, observer=logged)
    seconds, files = _both_seconds(report.seconds), [str(save_report(report, path)) for path in values["reports"]]
    counts = {**report.as_dict(), **seconds, "reports": files}
    shown = report.shown(is_verbose()) | {"seconds": format_seconds(*seconds.values())}
    lines = [*figures(shown, *shown), *report.lines(), *counts["reports"]]
    answer(counts, [f"network {place_name(network.path)}", *lines])


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
        model_options=values["model_options"],
    )
    network.require_fit(options)
    with connect(options=where) as client, waiting("evaluate"):
        found = network.check_claims(claims, client=client, least_value=values["least_value"], options=options)
    shown = found.shown()
    answer(found.as_dict(), [f"network {place_name(network.path)}", *figures(shown, *shown), *found.lines()])


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
    options = ScoringOptions.limits_of(evaluation)
    found = network.compare_ngrams(inputs, training, client=client, options=options, text=values["text"])
    seed = network.specification.seed_tokens
    return {"baseline": found.as_dict(seed)}, found.lines(seed)


@giaann_dask.command()
@NETWORK
@click.argument("prompt")
@generation_options("max_tokens", "tagger")
@click.option("--explain", is_flag=True, help="Show other candidates and the decisive connections.")
@beam_options
@inference_options
@model_options
@click.option("--ref", "commit", metavar="NAME", help="Use an older commit, tag or branch.")
@row_options
@sampling_options
@dense_options
def generate(
    network: Path, prompt: str, explain: bool, generation: GenerationOptions, cluster: ClusterOptions, **values: Any
) -> None:
    """Generate the continuation of a PROMPT.

    All words of the prompt are used as seed. Ties between equally active neurons are broken by name, with flags of
    history by the order of column and feature. With --beam-width and --beam-depth, beam search chooses each token.
    """
    from giaann_dask.api.network import Network

    rules = inference_rules(values, "prediction")
    options = replace(generation, inference=rules, model_options=values["model_options"])
    options = options if explain else replace(options, reasons=0)
    opened = Network(network, values["commit"])
    opened.require_fit(options)
    where = prepared(cluster, LOCAL)
    with waiting("generate"), _row_client(where, options) as client:
        continuation = opened.generate(prompt, client=client, options=options)
    lines = continuation.lines(explain)
    if not continuation.tokens and not is_json():
        similar = opened.similar_words(prompt)
        lines += [f"{word!r} is not known; similar words are: {', '.join(near)}" for word, near in similar]
    answer(continuation.as_dict(), lines)


@giaann_dask.command()
@NETWORK
@click.argument("prompt")
@generation_options("max_tokens", "tagger", "reasons", defaults={"max_tokens": 5})
@options_of("shown", "giaann_dask.api.network.Network.trace", PLAIN, only=("sentences",))
@click.option(
    "--text",
    "texts",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="Read the sentences from here, if they were moved: files, folders or encoded corpora; repeatable.",
)
@inference_options
@model_options
@click.option("--ref", "commit", metavar="NAME", help="Use an older commit, tag or branch.")
@row_options
@common_options
def trace(network: Path, prompt: str, texts: tuple[str, ...], **values: Any) -> None:
    """Continue a PROMPT, and show the training sentences behind each token.

    For each token these are the sentences that built the decisive connections, with their place in the text and their
    share of the connection's strength. The network needs an index (train --trace). Text is read where training read it,
    and shown only if it is unchanged.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.network import Network

    rules = inference_rules(values, "prediction")
    options = replace(values["generation"], inference=rules, model_options=values["model_options"])
    require_option(options.reasons >= 1, "reasons", options.reasons, "1 or more")
    opened = Network(network, values["commit"])
    opened.require_fit(options)
    with waiting("trace"), _row_client(where, options) as client:
        found = opened.trace(prompt, client=client, options=options, texts=texts, **values["shown"])
    answer(found.as_dict(), found.lines() or ["(no token)"])


@contextmanager
def _row_client(where: ClusterOptions, options: GenerationOptions) -> Iterator[Client | None]:
    """Yield the client of a cluster whose workers are asked for rows, None where this process reads them itself."""
    if not where.distributes and options.rows.mode != "remote":
        yield None
        return
    from giaann_dask.api.cluster import connect

    with connect(options=where) as client:
        yield client


@giaann_dask.group(cls=Group)
def tokenizer() -> None:
    """Make tokenizers, which divide text into subwords."""


@tokenizer.command("train")
@INPUTS
@section(PLAIN)("--max-subwords", "size", type=int, default=16384, show_default=True, help="Subwords at most.")
@click.option("--out", required=True, type=FILE_PATH, help="The .json file to write.")
@reading_options
@output_options
def train_tokenizer(inputs: tuple[str, ...], size: int, out: Path, **values: Any) -> None:
    """Learn a byte-level BPE from text, in this process.

    The file is one of the package tokenizers; give it to train or encode as --tokenizer FILE.
    """
    from giaann_dask.encoding.lexicon import learn_tokenizer, save_tokenizer

    with waiting("learn"):
        learnt = learn_tokenizer(inputs, size, values["reading"])
    save_tokenizer(learnt, out)
    counts = {"tokenizer": str(out), **learnt.describe()}
    answer(counts, [str(out), *figures(counts, "subwords", "identity")])
