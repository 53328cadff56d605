"""Compare profiles by the amount of text they were trained on: a table as Markdown and CSV, and a plot.

Each profile is trained on the first sentences of the training text, as many as each of --sizes says, and
evaluated on the other text. The column `counted` says which tokens a row is about: `raw` is every word of
every sentence, `v1` and `v2` are the merged tokens that a network of that profile predicts. Rows of one size
that count alike are about the very same tokens. Each network is compared with n-grams, and v1 and v2 also with the
rules of best, trained on the same tokens. In all of them the first --seed-tokens of a sequence are given.
The weights of best are constants of the profile and are not chosen here. Networks that exist already are
not trained again. Exit codes: 0 done, 2 bad input, 75 try again later.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

import giaann_dask as gd
from giaann_dask.cli.options import cluster_options, common_options, read_numbers
from giaann_dask.cli.progress import progress
from giaann_dask.cli.showing import answer, figures
from giaann_dask.errors import OptionError
from giaann_dask.events import StageAdvanced
from giaann_dask.spec_profiles import Profile
from giaann_dask.storage import bytes_on_disk
from giaann_dask.text.inputs import resolve_inputs
from giaann_dask.workflows.exits import run_script
from giaann_dask.workflows.settings import job_command

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.inference.best.evaluation import Baseline
    from giaann_dask.inference.best.scores import ScoreSummary


@dataclass(frozen=True)
class Row:
    """Accuracy of one profile with one amount of training text.

    `sentences` are those of any length for best, and those that pass the length filter for v1; for v2 there
    are three in a sequence. `connections` are those of the network, or the counts of contexts; figures that
    a row does not have are None. Speed is that of training alone.
    """

    profile: str
    counted: str
    sentences: int
    tokens: int
    top1: float
    perplexity: float | None
    bits_per_byte: float | None
    training_tokens_per_second: float | None
    connections: int | None
    nbytes: int | None


class Cost(NamedTuple):
    """Sentences of a training text, and a row's speed, connections and bytes."""

    sentences: int
    figures: tuple[float | None, int | None, int | None]


@dataclass(frozen=True)
class Arguments:
    """Options of a comparison: text, sizes in sentences, and where everything is written."""

    train: gd.Files
    evaluate: gd.Files
    sizes: tuple[int, ...]
    profiles: tuple[Profile, ...]
    tagger: str
    seed_tokens: int
    output: Path
    where: gd.ClusterOptions


def train(arguments: Arguments, name: Profile, size: int, client: Client) -> tuple[gd.Network, Cost]:
    """Return a network of a profile that was trained on some sentences, and what it took."""
    specification = gd.Specification(profile=name, seed_tokens=arguments.seed_tokens)
    folder, together = arguments.output / f"{name}-{size}", specification.sentences_per_sequence
    options = gd.TrainingOptions(maximum_sequences=-(-size // together))
    text = gd.TextOptions(tagger=arguments.tagger)
    network = gd.train(arguments.train, folder, client=client, text=text, options=options, specification=specification)
    done = network.training_report
    speed = done.tokens / max(done.seconds, 1e-9) if done.tokens else None
    size = network.manifest.sequences * together
    return network, Cost(size, (speed, done.connections, bytes_on_disk(folder)))


def best_profile(arguments: Arguments, size: int) -> Iterator[Row]:
    """Yield the rows of best and of the n-grams made of its counts."""
    with gd.connect(options=arguments.where) as client:
        network, cost = train(arguments, "best", size, client)
        options = gd.ScoringOptions(baseline="ngram")
        found = network.score(arguments.evaluate, client=client, options=options)
    assert found.baseline is not None
    yield scored("best", "raw", cost, found.predicted)
    yield from ngram_rows(found.baseline, "raw", cost, arguments.seed_tokens)


def column_profile(arguments: Arguments, size: int, name: Profile) -> Iterator[Row]:
    """Yield the row of a profile of columns, and those of the others on the same tokens."""
    text = gd.TextOptions(tagger=arguments.tagger)
    with gd.connect(options=arguments.where) as client:
        network, cost = train(arguments, name, size, client)
        found = network.evaluate(arguments.evaluate, client=client, text=text)
        beside = network.compare_ngrams(arguments.evaluate, arguments.train, client=client, text=text)
    yield Row(name, name, cost.sentences, found.prediction_tokens, found.top1, None, None, *cost.figures)
    alone = Cost(cost.sentences, (None, None, None))
    assert beside.pooled is not None
    yield scored("best", name, alone, beside.pooled.summary(arguments.seed_tokens))
    yield from ngram_rows(beside, name, alone, arguments.seed_tokens)


def ngram_rows(found: Baseline, counted: str, cost: Cost, seed_tokens: int) -> Iterator[Row]:
    """Yield the rows of the n-grams."""
    yield scored("kneser-ney", counted, cost, found.smoothed.summary(seed_tokens))
    backoff = found.as_dict(seed_tokens)["backoff"]
    yield Row("backoff", counted, cost.sentences, backoff["tokens"], backoff["top1"], None, None, *cost.figures)


def scored(name: str, counted: str, cost: Cost, found: ScoreSummary) -> Row:
    """Return the row of a model that gives probabilities."""
    figures = found.tokens, found.top1, found.perplexity, found.bits_per_byte
    return Row(name, counted, cost.sentences, *figures, *cost.figures)


# Another profile needs no more than a function here.
PROFILES: dict[str, Callable[[Arguments, int], Iterator[Row]]] = {
    "best": best_profile,
    "v1": lambda arguments, size: column_profile(arguments, size, "v1"),
    "v2": lambda arguments, size: column_profile(arguments, size, "v2"),
}


def write(rows: list[Row], folder: Path) -> str:
    """Write the table as Markdown and CSV and draw it; return the Markdown."""
    fields = list(asdict(rows[0]))
    with (folder / "profiles.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(map(asdict, rows))
    lines = ["| " + " | ".join(fields) + " |", "|---" * len(fields) + "|"]
    lines += ["| " + " | ".join(map(_shown, asdict(row).values())) + " |" for row in rows]
    table = "\n".join(lines) + "\n"
    (folder / "profiles.md").write_text(table, encoding="utf-8")
    _draw(rows, folder / "profiles.png")
    return table


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if value < 10 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _draw(rows: list[Row], path: Path) -> None:
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
    axes.set(xscale="log", xlabel="sentences trained on", ylabel="top-1", title="Next word, unseen text")
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


@job_command("compare-profiles")
@click.option("--train", multiple=True, required=True, metavar="INPUT", help="Text to train on; repeatable.")
@click.option("--evaluate", multiple=True, required=True, metavar="INPUT", help="Text to evaluate on; repeatable.")
@click.option("--sizes", default="1000,100000000", show_default=True, metavar="N,...", help="Sentences to train on.")
@click.option("--profiles", default=",".join(sorted(PROFILES)), show_default=True, metavar="NAME,...")
@click.option("--tagger", default="gold", show_default=True, metavar="lexicon|spacy:MODEL|gold", help="For v1 and v2.")
@click.option("--seed-tokens", default=8, show_default=True, help="Tokens of each sentence that are not predicted.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder for networks, tables and plot.")
@common_options
def compare_profiles(output: Path, **values: Any) -> None:
    """Compare profiles by the amount of text they were trained on: a table and a plot."""
    profiles = tuple(values["profiles"].split(","))
    unknown = [name for name in profiles if name not in PROFILES]
    if unknown:
        raise OptionError(f"the profile {unknown[0]!r}", f"{', '.join(PROFILES)}", "choose another")
    arguments = Arguments(
        train=gd.Files(values["train"]),
        evaluate=gd.Files(values["evaluate"]),
        tagger=values["tagger"],
        seed_tokens=values["seed_tokens"],
        sizes=read_numbers("sizes", values["sizes"]),
        profiles=cast(tuple[Profile, ...], profiles),
        output=output,
        where=cluster_options(values, default=1),
    )
    resolve_inputs([*arguments.train, *arguments.evaluate])
    if values["dry_run"]:
        found = {"output": str(output), "networks": [f"{name}-{size}" for size in arguments.sizes for name in profiles]}
        answer(found, values["as_json"], figures(found, *found))
        return
    output.mkdir(parents=True, exist_ok=True)
    runs = [(PROFILES[name], size) for size in arguments.sizes for name in profiles]
    rows: list[Row] = []
    with progress() as observer:
        for done, (profile, size) in enumerate(runs, 1):
            rows += profile(arguments, size)
            observer(StageAdvanced("compare", done, len(runs), "networks"))
    table = write(rows, output)
    answer({"rows": [asdict(row) for row in rows]}, values["as_json"], [table.rstrip("\n")])


if __name__ == "__main__":
    sys.exit(run_script(compare_profiles))
