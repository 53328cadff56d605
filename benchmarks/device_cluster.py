"""Compare a cluster with GPUs with one of the processor: the same bytes, the same figures, and how long each takes.

``PYTHONPATH=. python benchmarks/device_cluster.py BOOK...`` prints one JSON object a line: exports of the first text in
both profiles and by each protocol, training from a corpus of all texts by numbers of workers and by each protocol, an
evaluation of the last text, and what the workers spill. `benchmarks/results` has those of a card. The first turn on a
cluster includes what its processes compile.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from device import tell
from distributed import Client, get_worker

import giaann_dask as gd
from giaann_dask.cluster import result, results, roles_of, wait_all

# Of each array that a worker has to spill.
_ARRAY_BYTES = 1 << 26


def cluster(device: Any, workers: int, protocol: Any = "tcp", memory_limit: str | None = None) -> Client:
    """Start workers of the processor, and with a device those of GPUs beside them."""
    options = gd.ClusterOptions(workers=workers, device=device, protocol=protocol, memory_limit=memory_limit)
    return gd.connect(options=options)


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


def compare_exports(place: Path, arguments: argparse.Namespace) -> None:
    """Train the first text in both profiles with the device by each protocol, and compare digests and exports."""
    text = arguments.texts[0]
    for profile in ("v1", "v2"):
        with cluster("cpu", 2) as client:
            here, _ = trained(text, place / profile / "cpu", client, "cpu", 1, profile)
        expected = exported(here, place / f"{profile}-cpu-files")
        for protocol in arguments.protocols:
            with cluster(arguments.device, 2, protocol) as client:
                there, found = trained(text, place / profile / protocol, client, arguments.device, 1, profile)
                kind = type(client.cluster).__name__
            tell(
                arguments.results,
                "exports",
                profile=profile,
                protocol=protocol,
                cluster=kind,
                same_digest=here.digest() == there.digest(),
                same_export=exported(there, place / f"{profile}-{protocol}-files") == expected,
                **found,
            )


def corpus_of(place: Path, arguments: argparse.Namespace) -> Path:
    """Return a corpus of all texts, which is encoded if it is not there."""
    corpus = place / "corpus"
    if not corpus.exists():
        with cluster("cpu", max(arguments.workers)) as client:
            gd.encode(arguments.texts, corpus, client=client, progress=False)
    return corpus


def network_of(place: Path, arguments: argparse.Namespace) -> gd.Network:
    """Return a network of the corpus, which is trained by the processor if it is not there."""
    path = place / "network"
    if path.exists():
        return gd.open(path)
    corpus = corpus_of(place, arguments)
    with cluster("cpu", max(arguments.workers)) as client:
        return gd.train(corpus, path, client=client, options=gd.TrainingOptions(device="cpu"), progress=False)


def compare_training(place: Path, arguments: argparse.Namespace) -> None:
    """Train from a corpus by numbers of workers, and beside a device and with ``auto`` by the most and by one.

    The last lines say how long ``auto`` took, as a multiple of the processor alone, without the first turn.
    """
    digest, corpus, most = network_of(place, arguments).digest(), corpus_of(place, arguments), max(arguments.workers)
    ways = [(device, most, each) for each in arguments.protocols for device in ("cpu", arguments.device, "auto")]
    ways += [(arguments.device, 1, "tcp"), *(("cpu", each, "tcp") for each in arguments.workers)]
    taken = {}
    for number, (device, workers, protocol) in enumerate(dict.fromkeys(ways)):
        with cluster(device, workers, protocol) as client:
            network, found = trained(corpus, place / f"trained-{number}", client, device, arguments.turns)
            devices = len(roles_of(client).devices)
        same = network.digest() == digest
        taken[device, workers, protocol] = median(found["seconds"][1:] or found["seconds"])
        named = {"device": device, "workers": workers, "protocol": protocol, "devices": devices}
        tell(arguments.results, "training", **named, same_digest=same, **found)
    for protocol in arguments.protocols:
        ratio = round(taken["auto", most, protocol] / taken["cpu", most, protocol], 3)
        tell(arguments.results, "auto", stage="training", protocol=protocol, of_cpu=ratio)


def compare_evaluation(place: Path, arguments: argparse.Namespace) -> None:
    """Predict the last text by workers of the processor, beside a device and with ``auto``; say how ``auto`` compares.

    Each cluster has new processes, so all but the first with a device take its kernel from disk.
    """
    network, first, taken = network_of(place, arguments), dict[str, Any](), {}
    for device in dict.fromkeys(("cpu", arguments.device, "auto")):
        with cluster(device, max(arguments.workers)) as client:
            seconds = []
            for _ in range(arguments.turns):
                options = gd.EvaluationOptions(device=device)
                report = network.evaluate(arguments.texts[-1], client=client, options=options, progress=False)
                seconds.append(round(report.seconds, 3))
        reported = report.as_dict()
        found = {name: value for name, value in reported.items() if name not in ("stages", "rows", "seconds")}
        first = first or found
        taken[device] = median(seconds[1:] or seconds)
        tell(
            arguments.results,
            "evaluation",
            device=device,
            seconds=seconds,
            tokens=report.prediction_tokens,
            same=found == first,
            stages=reported["stages"],
        )
    tell(arguments.results, "auto", stage="evaluation", of_cpu=round(taken["auto"] / taken["cpu"], 3))


def compare_spilling(_: Path, arguments: argparse.Namespace) -> None:
    """Let a worker of each kind keep as many results as its whole memory, and compare what comes back of the store."""
    count = arguments.memory // _ARRAY_BYTES
    with cluster(arguments.device, 1, memory_limit=str(arguments.memory)) as client:
        roles = roles_of(client)
        for role, where in (("processor", roles.storing()), ("device", roles.on_device())):
            if role == "device" and not roles.devices:
                continue
            made = [client.submit(array_of, number, key=f"{role}-{number}", **where) for number in range(count)]
            wait_all(made)
            store, spilled = result(client.submit(store_of_worker, pure=False, **where))
            sums = results([client.submit(np.sum, each, pure=False, **where) for each in made])
            expected = [number * (_ARRAY_BYTES // 8) for number in range(count)]
            tell(arguments.results, "spilling", role=role, store=store, bytes=spilled, same=sums == expected)
            del made


def array_of(number: int) -> np.ndarray[Any, Any]:
    """Return an array of a number, as a task."""
    return np.full(_ARRAY_BYTES // 8, number, np.int64)


def store_of_worker() -> tuple[str, int]:
    """Return the kind of the store of this worker's results and the bytes that it has on disk, as a task."""
    data = get_worker().data
    return type(data).__name__, int(data.spilled_total.disk)


PARTS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    "exports": compare_exports,
    "training": compare_training,
    "evaluation": compare_evaluation,
    "spilling": compare_spilling,
}


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, nargs="+", default=[14, 4, 1], help="of the processor")
    parser.add_argument("--protocols", nargs="*", default=["tcp", "ucx"])
    parser.add_argument("--turns", type=int, default=3, help="on each cluster")
    parser.add_argument("--memory", type=int, default=6 << 30, help="limit of a worker that has to spill, in bytes")
    parser.add_argument("--results", type=Path, help="file that the lines are appended to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts:
            PARTS[part](Path(folder), arguments)


if __name__ == "__main__":
    main()
