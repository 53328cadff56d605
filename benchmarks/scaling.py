"""Simulate the training of a text on 1 to 10,000 workers by discrete events, and find where more of them do not help.

The curves of ``docs/explanation/scaling.md``. Needs simpy. For example::

    python benchmarks/scaling.py middlemarch.txt --sizes 1,10,100,1000,10000 --rounds 32 --exchange workers

Rounds, selection, placement, owners of regions, compaction and exchange are those of training; only time is simulated.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from simulation.configuration import TrainingConfiguration
from simulation.curves import ScalingReport, simulate_scaling
from simulation.events import SimulationOptions
from simulation.growth import measure_growth
from simulation.hardware import Hardware, Link, Rates, WorkerKind
from simulation.workloads import SequenceSample

import giaann_dask as gd
from giaann_dask.api.texts import decide_text, read_inputs, sources_of
from giaann_dask.cluster import results
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.text.vocabulary import Vocabulary

_SAMPLE = 10_000
_STYLES = ("-", "--", ":", "-.")


def read_sample(files: list[str], sequences: int) -> SequenceSample:
    """Return the first sequences of some files, encoded in this process."""
    inputs, text = read_inputs(gd.Files(files), None)
    blocks, counted = [], 0
    with gd.connect(workers=0) as client:
        specification, lexicon = decide_text(client, None, inputs, None, text)
        sources = sources_of(specification, text, lexicon)
        stream = EncodingStream(client, Vocabulary(), sources, StreamOptions(words=False))
        for block in stream.blocks(inputs):
            blocks.append(block)
            counted += block.mapping.sequences
            if counted >= sequences:
                break
        encoded = results([block.encoded for block in blocks])
    growth = measure_growth(encoded, specification, sum(block.characters for block in blocks))
    return SequenceSample.of(encoded, growth)


def draw(report: ScalingReport) -> Figure:
    """Draw rate and efficiency by sequences at once, a line for each variant, with the knee of the first."""
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, variant in enumerate(report.variants):
        points = report.of(variant)
        at_once = [point.at_once for point in points]
        look: dict[str, Any] = {"linestyle": _STYLES[number % len(_STYLES)], "marker": "o", "label": variant}
        left.plot(at_once, [point.rate for point in points], **look)
        right.plot(at_once, [point.efficiency for point in points], **look)
    if knee := report.knee(report.variants[0]):
        for axes in (left, right):
            axes.axvline(knee.at_once, linewidth=0.8)
        right.text(knee.at_once, 1.02, f" knee: {knee.cause}", size=8, transform=right.get_xaxis_transform())
    left.set(xscale="log", yscale="log", xlabel="sequences at once", ylabel="sequences per second")
    right.set(xscale="log", xlabel="sequences at once", ylabel="efficiency", ylim=(0, None))
    left.legend(fontsize=8)
    return figure


def _add_fields(parser: argparse.ArgumentParser, kind: type[Any]) -> None:
    """Add an option for each field of numbers and names of a dataclass."""
    for each in fields(kind):
        value = int if each.default is None else type(each.default)
        if value is bool:
            parser.add_argument(f"--{each.name.replace('_', '-')}", action="store_true")
        elif value in (int, float, str):
            parser.add_argument(f"--{each.name.replace('_', '-')}", type=value, default=each.default)


def _made(kind: type[Any], given: argparse.Namespace) -> Any:
    return kind(**{each.name: value for each in fields(kind) if (value := getattr(given, each.name, None)) is not None})


def main() -> None:
    """Simulate, print the curves, and write them as they were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--sizes", default="10,30,100,300,1000,3000,10000", help="numbers of workers")
    parser.add_argument("--compare", action="store_true", help="other selection, placement, accumulation, exchange")
    parser.add_argument("--columns", type=int, help="draw the columns from so many, by Zipf's law")
    parser.add_argument("--sample", type=int, default=_SAMPLE, help="sequences of the sample")
    parser.add_argument("--per-host", type=int, default=8, help="workers of a host")
    parser.add_argument("--memory", type=float, default=16, help="GiB of a worker")
    parser.add_argument("--host-bandwidth", type=float, default=1.25e9, help="bytes/s between hosts of a rack")
    parser.add_argument("--rack-bandwidth", type=float, default=1.25e9, help="bytes/s between racks")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--picture", type=Path, help="file of any format of matplotlib")
    for options_kind in (TrainingConfiguration, SimulationOptions, Rates):
        _add_fields(parser, options_kind)
    parser.set_defaults(rounds=8)
    given = parser.parse_args()
    kind = WorkerKind(name="node", count=1, memory_bytes=int(given.memory * 2**30), per_host=given.per_host)
    links = {"rack": Link(bandwidth=given.host_bandwidth, latency=1e-3)}
    links["site"] = Link(bandwidth=given.rack_bandwidth, latency=2e-3)
    hardware = Hardware(workers=(kind,), links=links, rates=_made(Rates, given))  # type: ignore[arg-type]
    sample = read_sample(given.files, given.sample)
    options: SimulationOptions = _made(SimulationOptions, given)
    sample = sample if given.columns is None else sample.with_columns(given.columns, options.seed)
    sizes = [int(each) for each in given.sizes.split(",")]
    configuration = _made(TrainingConfiguration, given)
    report = simulate_scaling(sample, hardware, configuration, options, sizes, compare=given.compare)
    print(report.text())
    if given.csv:
        given.csv.write_text(report.csv(), encoding="utf-8")
    if given.picture:
        draw(report).savefig(given.picture)


if __name__ == "__main__":
    main()
