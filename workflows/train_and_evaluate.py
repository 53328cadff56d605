"""Train a network on some text, evaluate it on other text, and say how it went.

Run by cron, systemd or by hand; run again after an interruption, it goes on where the last commit
was, and when there is nothing new it only evaluates. Exit codes: 0 done, 2 bad input, 3 top-1 below
--least-top1, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

CHECK_FAILED = 3


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="+", required=True, metavar="INPUT", help="text to train on")
    parser.add_argument("--evaluate", nargs="+", required=True, metavar="INPUT", help="text to evaluate on")
    parser.add_argument("--network", type=Path, required=True, help="folder of the network, new or existing")
    parser.add_argument("--tagger", default="lexicon", help="lexicon, spacy:MODEL or gold")
    parser.add_argument("--max-sequences", type=int, help="train no more than this many sentences")
    parser.add_argument("--evaluate-sequences", type=int, help="evaluate no more than this many sentences")
    parser.add_argument("--least-top1", type=float, default=0.0, help="leave with exit code 3 below this")
    parser.add_argument("--report", type=Path, help="JSON file to write the figures to")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--scheduler", help="address of a running Dask scheduler")
    where.add_argument("--workers", type=int, help="worker processes to start on this machine")
    return parser.parse_args()


def work(arguments: argparse.Namespace) -> int:
    """Train, evaluate and report; return the exit code."""
    import giaann_dask as gd

    text = gd.TextOptions(tagger=arguments.tagger)
    with gd.connect(arguments.scheduler, workers=arguments.workers) as client:
        network, training = gd.train(
            arguments.train,
            arguments.network,
            client=client,
            text=text,
            options=gd.TrainingOptions(maximum_sequences=arguments.max_sequences),
        )
        evaluation = network.evaluate(
            arguments.evaluate,
            client=client,
            text=text,
            options=gd.EvaluationOptions(maximum_sequences=arguments.evaluate_sequences),
        )
    figures = {"training": training.as_dict(), "evaluation": evaluation.as_dict()}
    if arguments.report:
        arguments.report.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    print(network, evaluation, sep="\n\n")
    return CHECK_FAILED if evaluation.top1 < arguments.least_top1 else 0


def main() -> int:
    """Run the workflow with every known failure as one line."""
    arguments = parse()
    from giaann_dask.errors import GiaannError

    try:
        return work(arguments)
    except GiaannError as error:
        print(f"train_and_evaluate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_and_evaluate: interrupted; run it again to go on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
