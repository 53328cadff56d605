"""Compare profiles by the amount of text they were trained on: a table as Markdown and CSV, and a plot.

Each profile is trained on the first sentences of the training text, as many as each of --sizes says, and
evaluated on the other text. Profile best and the n-grams count the same tokens and are scored alike; the
weights of best are constants of the profile and are not chosen here. Exit codes: 0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What one profile reaches with one amount of text.

    `seconds` is training alone; `connections` are those of the network, or the counts of contexts;
    figures that a profile does not have are None.
    """

    profile: str
    sentences: int
    tokens: int
    top1: float
    perplexity: float | None
    bits_per_byte: float | None
    training_tokens_per_second: float
    connections: int
    nbytes: int


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", required=True, metavar="INPUT", help="text to train on")
    parser.add_argument("--evaluate", nargs="+", required=True, metavar="INPUT", help="text to evaluate on")
    parser.add_argument("--sizes", nargs="+", type=int, default=[1000, 100_000_000], help="sentences to train on")
    parser.add_argument("--profiles", nargs="+", choices=sorted(PROFILES), default=sorted(PROFILES))
    parser.add_argument("--tokens", choices=["raw", "merged"], default="merged", help="what best and n-grams count")
    parser.add_argument("--tagger", default="gold", help="lexicon, spacy:MODEL or gold")
    parser.add_argument("--seed-tokens", type=int, default=8, help="tokens of each sentence that are not predicted")
    parser.add_argument("--workers", type=int, default=1, help="worker processes, for profiles that use them")
    parser.add_argument("--output", type=Path, required=True, help="folder for networks, tables and the plot")
    return parser.parse_args(given)


def count_profile(arguments: argparse.Namespace, size: int) -> Iterator[Row]:
    """Yield the rows of best and of the n-grams, which share their counts."""
    from giaann_dask.inference.ngram import backoff_matches, kneser_ney
    from giaann_dask.inference.pooled_reading import read_documents
    from giaann_dask.inference.pooled_scores import BEST, PooledModel
    from giaann_dask.inference.pooled_tables import build_tables
    from giaann_dask.network.context_counts import count_contexts
    from giaann_dask.network.contexts import TokenStream

    reading = {"tokens": arguments.tokens, "tagger": arguments.tagger}
    documents, left = [], size
    for document in read_documents(arguments.train, **reading):
        documents.append(document[:left])
        left -= len(documents[-1])
        if not left:
            break
    begun = time.perf_counter()
    stream = TokenStream.from_documents(documents)
    counts = count_contexts(stream)
    speed = len(stream) / (time.perf_counter() - begun)
    tables = build_tables([counts.run], counts.words)
    unseen = TokenStream.from_documents(read_documents(arguments.evaluate, **reading))
    cost = (speed, len(counts.run), counts.nbytes)
    for name, model in (("best", PooledModel(tables, BEST)), ("kneser-ney", kneser_ney(tables))):
        found = model.score(unseen).summary(arguments.seed_tokens)
        yield Row(name, size - left, found.tokens, found.top1, found.perplexity, found.bits_per_byte, *cost)
    predicted = unseen.place >= arguments.seed_tokens
    top1 = float(backoff_matches(tables, unseen)[predicted].mean())
    yield Row("backoff", size - left, int(predicted.sum()), top1, None, None, *cost)


def v1_profile(arguments: argparse.Namespace, size: int) -> Iterator[Row]:
    """Yield the row of profile v1, which reads sentences of more tokens than it is given, and not all of them."""
    import giaann_dask as gd
    from giaann_dask.storage import bytes_on_disk

    text, folder = gd.TextOptions(tagger=arguments.tagger), arguments.output / f"v1-{size}"
    specification = gd.Specification(seed_tokens=arguments.seed_tokens)
    with gd.connect(None, workers=arguments.workers) as client:
        options = gd.TrainingOptions(maximum_sequences=size)
        network, done = gd.train(
            arguments.train, folder, client=client, text=text, options=options, specification=specification
        )
        found = network.evaluate(arguments.evaluate, client=client, text=text)
    speed = done.tokens / max(done.seconds, 1e-9)
    tokens, size = found.prediction_tokens, done.sequences
    yield Row("v1", size, tokens, found.top1, None, None, speed, done.connections, bytes_on_disk(folder))


# Another profile needs no more than a function here.
PROFILES: dict[str, Callable[[argparse.Namespace, int], Iterator[Row]]] = {
    "best": count_profile,
    "v1": v1_profile,
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
    for profile in dict.fromkeys(row.profile for row in rows):
        own = sorted((row for row in rows if row.profile == profile), key=lambda row: row.sentences)
        axes.plot([row.sentences for row in own], [row.top1 for row in own], marker="o", label=profile)
    axes.set(xscale="log", xlabel="sentences trained on", ylabel="top-1", title="Next word, unseen text")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def main(given: list[str] | None = None) -> int:
    """Run the comparison with every known failure as one line."""
    arguments = parse(given)
    from giaann_dask.errors import GiaannError

    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        profiles = [PROFILES[name] for name in arguments.profiles]
        rows = [row for size in arguments.sizes for profile in profiles for row in profile(arguments, size)]
        print(write(rows, arguments.output), end="")
    except GiaannError as error:
        print(f"compare_profiles: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
