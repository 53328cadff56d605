"""Measure a network by the share of its connections that pruning keeps: bytes, accuracy and processor time, as a table.

    python benchmarks/pruning.py NETWORK TEXT [--shares 0.5 0.25 ...] [--sequences 300] [--json FILE]

Each share is a network of its own, which predicts the text in a process of its own without workers. The time is that of
the processor for the whole command ``evaluate``, opening included; of profile contexts the tables are built by a
command before. Where connections have equal strengths, less is kept than asked for, and equal results are left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from algebra import measure
from rich.console import Console
from rich.table import Table

from giaann_dask.api.network import Network

COLUMNS = ("asked", "kept", "below", "MiB", "top-1", "top-5", "perplexity", "processor s")


def measure_share(path: Path, whole: Network, text: str, sequences: int, asked: float) -> dict[str, Any]:
    """Return the figures of a network."""
    network = Network(path)
    arguments = (
        "evaluate",
        path,
        text,
        "--top-k",
        "1,5",
        "--max-sequences",
        sequences,
        "--workers",
        0,
        "--protocol",
        "published",
    )
    command = [sys.executable, "-m", "giaann_dask", *map(str, arguments), "--json"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    # The second process finds the tables of profile contexts.
    used = measure(*arguments)
    return {
        "asked": asked,
        "kept": round(network.manifest.connections / whole.manifest.connections, 3),
        "below": network.pruned_below or 0,
        "MiB": round(sum(run.nbytes for run in network.manifest.runs) / (1 << 20), 1),
        "top-1": round(report["top1"], 4),
        "top-5": round(report["top_k"]["5"], 4),
        "perplexity": round(report["perplexity"], 1) if "perplexity" in report else "",
        "processor s": used.cpu_seconds,
    }


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path)
    parser.add_argument("text")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.75, 0.5, 0.25, 0.1, 0.05, 0.02])
    parser.add_argument("--sequences", type=int, default=300, help="sequences of the text that are predicted")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    whole, below = Network(arguments.network), set[float]()
    found = [measure_share(arguments.network, whole, arguments.text, arguments.sequences, 1.0)]
    with tempfile.TemporaryDirectory() as folder:
        for share in arguments.shares:
            pruned = Path(folder) / str(share)
            measure("prune", arguments.network, "--keep", share, "--out", pruned)
            figures = measure_share(pruned, whole, arguments.text, arguments.sequences, share)
            if figures["below"] not in below:
                found.append(figures)
            below.add(figures["below"])
    table = Table(*COLUMNS, title=str(arguments.network))
    for row in found:
        table.add_row(*(str(row[name]) for name in COLUMNS))
    Console(width=120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
