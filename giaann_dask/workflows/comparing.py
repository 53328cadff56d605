"""Compare profiles by the amount of text they were trained on: a table as Markdown and CSV, and a plot.

Each profile is trained on the first sentences of the training text, as many as each of the sizes says, and
evaluated on the other text. The column `counted` says which tokens a row is about: `raw` is every word of
every sentence, `v1` and `v2` are the merged tokens that a network of that profile predicts. Rows of one size
that count alike are about the very same tokens. Each network is compared with n-grams, and v1 and v2 also with the
rules of contexts, trained on the same tokens. In all of them the first seed tokens of a sequence are given.
The weights of contexts are constants of the profile and are not chosen here. Networks that exist already are
not trained again. Its options are in `giaann_dask.cli.jobs`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import giaann_dask as gd
from giaann_dask.events import Observer, StageAdvanced, ignore
from giaann_dask.registry import Profile
from giaann_dask.representations import format_float
from giaann_dask.storage import bytes_on_disk, require_local, writing
from giaann_dask.workflows.job_options import ComparisonOptions

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.models.words.score_report import Baseline
    from giaann_dask.models.words.scores import ScoreSummary


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """Accuracy of one profile with one amount of training text.

    `sentences` are those of any length for contexts, and those that pass the length filter for v1; for v2 there
    are three in a sequence. `connections` are those of the network, or the counts of contexts; figures that
    a row does not have are None. Speed is that of training alone. All
    predict from left to right.
    """

    profile: str
    counted: str
    sentences: int
    tokens: int
    top1: float
    perplexity: float | None = None
    bits_per_byte: float | None = None
    training_tokens_per_second: float | None = None
    connections: int | None = None
    nbytes: int | None = None


def compare(options: ComparisonOptions, observer: Observer = ignore) -> list[ComparisonRow]:
    """Train and evaluate a network for each size and profile, and return the rows of the table."""
    require_local(options.output)
    with writing(str(options.output)):
        options.output.mkdir(parents=True, exist_ok=True)
    networks = options.networks()
    rows: list[ComparisonRow] = []
    for done, (name, size) in enumerate(networks, 1):
        rows += contexts_rows(options, size) if name == "contexts" else column_rows(options, size, name)
        observer(StageAdvanced("compare", done, len(networks), "networks"))
    return rows


def train(arguments: ComparisonOptions, name: Profile, size: int, client: Client) -> tuple[gd.Network, dict[str, Any]]:
    """Return a network of a profile that was trained on some sentences, and the fields of its rows about training."""
    specification = gd.Specification(profile=name, seed_tokens=arguments.seed_tokens)
    folder, together = arguments.output / f"{name}-{size}", specification.sentences_per_sequence
    options = gd.TrainingOptions(max_sequences=-(-size // together))
    text = gd.TextOptions(tagger=arguments.tagger)
    inputs = gd.Files(arguments.train)
    network = gd.train(inputs, folder, client=client, text=text, options=options, specification=specification)
    done = network.training_report
    return network, {
        "sentences": network.manifest.sequences * together,
        "training_tokens_per_second": done.tokens / max(done.seconds, 1e-9) if done.tokens else None,
        "connections": done.connections,
        "nbytes": bytes_on_disk(folder),
    }


def contexts_rows(arguments: ComparisonOptions, size: int) -> Iterator[ComparisonRow]:
    """Yield the rows of contexts and of the n-grams made of its counts."""
    with gd.connect(options=arguments.where) as client:
        network, trained = train(arguments, "contexts", size, client)
        options = gd.ScoringOptions(baseline="ngram")
        found = network.score(gd.Files(arguments.evaluate), client=client, options=options)
    assert found.baseline is not None
    yield scored("contexts", "raw", found.predicted, trained)
    yield from ngram_rows(found.baseline, "raw", arguments.seed_tokens, trained)


def column_rows(arguments: ComparisonOptions, size: int, name: Profile) -> Iterator[ComparisonRow]:
    """Yield the row of a profile of columns, and those of the others on the same tokens."""
    text = gd.TextOptions(tagger=arguments.tagger)
    with gd.connect(options=arguments.where) as client:
        network, trained = train(arguments, name, size, client)
        found = network.evaluate(gd.Files(arguments.evaluate), client=client, text=text)
        beside = network.compare_ngrams(
            gd.Files(arguments.evaluate), gd.Files(arguments.train), client=client, text=text
        )
    yield ComparisonRow(profile=name, counted=name, tokens=found.prediction_tokens, top1=found.top1, **trained)
    alone = {"sentences": trained["sentences"]}
    assert beside.pooled is not None
    yield scored("contexts", name, beside.pooled.summary(arguments.seed_tokens), alone)
    yield from ngram_rows(beside, name, arguments.seed_tokens, alone)


def ngram_rows(found: Baseline, counted: str, seed_tokens: int, trained: Mapping[str, Any]) -> Iterator[ComparisonRow]:
    """Yield the rows of the n-grams."""
    yield scored("kneser-ney", counted, found.smoothed.summary(seed_tokens), trained)
    backoff = found.as_dict(seed_tokens)["backoff"]
    yield ComparisonRow(profile="backoff", counted=counted, tokens=backoff["tokens"], top1=backoff["top1"], **trained)


def scored(profile: str, counted: str, found: ScoreSummary, trained: Mapping[str, Any]) -> ComparisonRow:
    """Return the row of a model that gives probabilities."""
    figures = {name: getattr(found, name) for name in ("tokens", "top1", "perplexity", "bits_per_byte")}
    return ComparisonRow(profile=profile, counted=counted, **figures, **trained)


def write(rows: list[ComparisonRow], folder: Path) -> str:
    """Write the table as Markdown and CSV and draw it; return the Markdown."""
    fields = list(asdict(rows[0]))
    with (folder / "profiles.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    table = markdown_table(list(map(asdict, rows)))
    (folder / "profiles.md").write_text(table, encoding="utf-8")
    _draw(rows, folder / "profiles.png")
    return table


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Return a table of rows with the same fields, at least one, as Markdown.

    Examples
    --------
    >>> print(markdown_table([{"rule": "a", "top1": 0.25}, {"rule": "b|c", "top1": None}]), end="")
    | rule | top1 |
    |---|---|
    | a | 0.2500 |
    | b\|c |  |
    """
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(map(_shown, row.values())) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if value < 10 else format_float(value)
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def _draw(rows: list[ComparisonRow], path: Path) -> None:
    """Draw top-1 by training size, a line for each profile."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    # One colour for a model, one line style for what is counted.
    styles = dict(zip(dict.fromkeys(row.counted for row in rows), ("-", "--", ":"), strict=False))
    colours = {profile: f"C{at}" for at, profile in enumerate(dict.fromkeys(row.profile for row in rows))}
    for profile, counted in dict.fromkeys((row.profile, row.counted) for row in rows):
        own = [row for row in rows if (row.profile, row.counted) == (profile, counted)]
        own.sort(key=lambda row: row.sentences)
        x, y, label = [row.sentences for row in own], [row.top1 for row in own], f"{profile} on {counted} tokens"
        axes.plot(x, y, marker="o", label=label, color=colours[profile], linestyle=styles[counted])
    axes.set(
        xscale="log", xlabel="sentences trained on", ylabel="top-1", title="Next word, unseen text, from left to right"
    )
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
