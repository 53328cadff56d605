"""Compare a cluster with GPUs with one of the processor: the same bytes, the same figures, and how long each takes.

``PYTHONPATH=. python benchmarks/device_cluster.py BOOK...`` prints one JSON object a line: exports of the first text in
both profiles and by each protocol, training from a corpus of all texts by numbers of workers, and an evaluation of the
last text. `benchmarks/results` has those of a card. The first turn on a cluster includes what its processes compile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from distributed import Client

import giaann_dask as gd


def told(result: str, **values: Any) -> None:
    """Print a result."""
    print(json.dumps({"result": result, **values}), flush=True)


def cluster(device: Any, workers: int, protocol: Any = "tcp") -> Client:
    """Start workers of the processor, and with a device those of GPUs beside them."""
    return gd.connect(options=gd.ClusterOptions(workers=workers, device=device, protocol=protocol))


def trained(
    source: Path, place: Path, client: Client, device: Any, turns: int, profile: str | None = None
) -> tuple[gd.Network, dict[str, Any]]:
    """Train some times on one cluster; return the last network, and seconds by turn with the stages of the last."""
    seconds = []
    for turn in range(turns):
        began = time.perf_counter()
        options = gd.TrainingOptions(device=device)
        network = gd.train(source, place / str(turn), client=client, profile=profile, options=options, progress=False)
        seconds.append(round(time.perf_counter() - began, 3))
    report = network.training_report
    stages = {} if report is None else {name: each._asdict() for name, each in report.stages.items()}
    return network, {"seconds": seconds, "stages": stages, "connections": network.manifest.connections}


def exported(network: gd.Network, place: Path) -> dict[str, bytes]:
    """Return the files of an uncompressed export."""
    place.mkdir()
    network.export(place / "network.npz", compression="none")
    return {file.name: file.read_bytes() for file in sorted(place.iterdir())}


def compare_exports(text: Path, place: Path, arguments: argparse.Namespace) -> None:
    """Train a text in both profiles with the device by each protocol, and compare digests and exports."""
    for profile in ("v1", "v2"):
        with cluster("cpu", 2) as client:
            here, _ = trained(text, place / profile / "cpu", client, "cpu", 1, profile)
        expected = exported(here, place / f"{profile}-cpu-files")
        for protocol in arguments.protocols:
            with cluster(arguments.device, 2, protocol) as client:
                there, found = trained(text, place / profile / protocol, client, arguments.device, 1, profile)
                kind = type(client.cluster).__name__
            told(
                "exports",
                profile=profile,
                protocol=protocol,
                cluster=kind,
                same_digest=here.digest() == there.digest(),
                same_export=exported(there, place / f"{profile}-{protocol}-files") == expected,
                **found,
            )


def compare_training(texts: list[Path], place: Path, arguments: argparse.Namespace) -> gd.Network:
    """Train from a corpus by numbers of workers, and beside a device and with ``auto`` by the largest."""
    most = max(arguments.workers)
    with cluster("cpu", most) as client:
        gd.encode(texts, place / "corpus", client=client, progress=False)
    ways = [("cpu", most), (arguments.device, most), ("auto", most), *(("cpu", each) for each in arguments.workers)]
    first: gd.Network | None = None
    for device, workers in dict.fromkeys(ways):
        with cluster(device, workers) as client:
            network, found = trained(place / "corpus", place / f"{device}-{workers}", client, device, arguments.turns)
        first = first or network
        same = network.digest() == first.digest()
        told("training", device=device, workers=workers, same_digest=same, **found)
    assert first is not None
    return first


def compare_evaluation(network: gd.Network, text: Path, arguments: argparse.Namespace) -> None:
    """Predict a text by workers of the processor, beside a device and with ``auto``."""
    first: dict[str, Any] | None = None
    for device in dict.fromkeys(("cpu", arguments.device, "auto")):
        with cluster(device, max(arguments.workers)) as client:
            seconds = []
            for _ in range(arguments.turns):
                options = gd.EvaluationOptions(device=device)
                report = network.evaluate(text, client=client, options=options, progress=False)
                seconds.append(round(report.seconds, 3))
        reported = report.as_dict()
        found = {name: value for name, value in reported.items() if name not in ("stages", "rows", "seconds")}
        first = first or found
        told(
            "evaluation",
            device=device,
            seconds=seconds,
            tokens=report.prediction_tokens,
            same=found == first,
            stages=reported["stages"],
        )


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, nargs="+", default=[14, 4, 1], help="of the processor")
    parser.add_argument("--protocols", nargs="*", default=["tcp", "ucx"])
    parser.add_argument("--turns", type=int, default=3, help="on each cluster")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        compare_exports(arguments.texts[0], place, arguments)
        network = compare_training(arguments.texts, place, arguments)
        compare_evaluation(network, arguments.texts[-1], arguments)


if __name__ == "__main__":
    main()
