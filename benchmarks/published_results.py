"""Measure what the publication reports: time, disk and memory of a training, and accuracy by size of text.

``PYTHONPATH=. python benchmarks/published_results.py training TEXT...`` trains so many sequences of files of real text
in each profile, from raw text, on workers of this machine. ``accuracy HELD_OUT TEXT...`` trains the texts, their first
half, quarter and so on, evaluates each on the same text by the published protocol, and predicts the largest size by a
curve through the others.
Both print one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from distributed import Client

import giaann_dask as gd
from giaann_dask.storage import bytes_on_disk


def peak_bytes(client: Client) -> int:
    """Return the largest memory of each process so far, added up."""
    workers: dict[str, int] = client.run(_peak)
    return sum(workers.values()) + _peak()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def training(arguments: argparse.Namespace) -> None:
    """Train so many sequences; each training has workers of its own, so that the memory is its own."""
    for profile in arguments.profiles:
        for sequences in arguments.sequences:
            with (
                tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
                gd.connect(workers=arguments.workers, device="cpu") as client,
            ):
                place, began = Path(folder) / "network", time.perf_counter()
                network = gd.train(
                    arguments.texts, place, client=client, profile=profile, max_sequences=sequences, progress=False
                )
                seconds, report = time.perf_counter() - began, network.training_report
                assert report is not None
                print(
                    json.dumps(
                        {
                            "profile": profile,
                            "sequences": report.sequences,
                            "trained": report.trained,
                            "tokens": report.tokens,
                            "connections": report.connections,
                            "columns": network.manifest.concepts,
                            "seconds": round(seconds, 1),
                            "disk_gb": round(bytes_on_disk(place) / 1e9, 3),
                            "memory_gb": round(peak_bytes(client) / 1e9, 2),
                        }
                    ),
                    flush=True,
                )


def accuracy(arguments: argparse.Namespace) -> None:
    """Evaluate each profile on the same text by size of what was trained."""
    whole = "".join(Path(each).read_text(encoding="utf-8") for each in arguments.texts)
    for profile in arguments.profiles:
        sizes, shares = [], []
        with tempfile.TemporaryDirectory() as folder, gd.connect(workers=arguments.workers, device="cpu") as client:
            for halvings in range(arguments.halvings, -1, -1):
                text = Path(folder) / f"{halvings}.txt"
                text.write_text(whole[: len(whole) >> halvings], encoding="utf-8")
                network = gd.train(
                    text, Path(folder) / f"{profile}-{halvings}", client=client, profile=profile, progress=False
                )
                report = network.evaluate(
                    arguments.held_out,
                    client=client,
                    max_sequences=arguments.sequences,
                    protocol="published",
                    progress=False,
                )
                sizes.append(sum(network.manifest.by_status))
                shares.append(report.top1)
                print(
                    json.dumps({"profile": profile, "sequences": sizes[-1], "top1": round(report.top1, 5)}), flush=True
                )
        predicted, exponent = predict_last(np.array(sizes, np.float64), np.array(shares))
        print(
            json.dumps(
                {
                    "profile": profile,
                    "predicted": round(predicted, 5),
                    "found": round(shares[-1], 5),
                    "exponent": exponent,
                }
            ),
            flush=True,
        )


def predict_last(sizes: np.ndarray, shares: np.ndarray) -> tuple[float, float]:
    """Return the last share as a curve through the others has it, and the exponent c of the curve.

    It is ``a - b * size ** -c``, by least squares, with c in steps of a hundredth; 0 stands for a logarithm.
    """
    best = (np.inf, 0.0, 0.0)
    for exponent in np.arange(0.0, 1.01, 0.01):
        scale = np.log(sizes) if exponent == 0 else -(sizes**-exponent)
        terms = np.stack([np.ones_like(scale), scale], axis=1)
        factors, *_ = np.linalg.lstsq(terms[:-1], shares[:-1], rcond=None)
        error = float(((terms[:-1] @ factors - shares[:-1]) ** 2).sum())
        best = min(best, (error, float(terms[-1] @ factors), round(float(exponent), 2)))
    return best[1], best[2]


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("training")
    first.add_argument("texts", nargs="+", type=Path)
    first.add_argument("--sequences", type=int, nargs="+", default=[200_000, 1_000_000])
    first.add_argument("--folder", help="where networks are made")
    first.set_defaults(function=training)
    second = commands.add_parser("accuracy")
    second.add_argument("held_out")
    second.add_argument("texts", nargs="+")
    second.add_argument("--sequences", type=int, default=1500, help="of the held-out text")
    second.add_argument("--halvings", type=int, default=6)
    second.set_defaults(function=accuracy)
    for each in (first, second):
        each.add_argument("--profiles", nargs="+", default=["v1", "v2", "contexts"])
        each.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
