"""Define the commands of arithmetic with networks: ``add``, ``forget``, ``diff`` and ``digest``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from giaann_dask.cli.options import (
    INPUTS,
    LOCAL,
    NETWORK,
    NETWORK_PATH,
    cluster_options,
    common_options,
    output_options,
    read_text_options,
    text_options,
)
from giaann_dask.cli.progress import Workload, progress, waiting
from giaann_dask.cli.showing import answer, figures
from giaann_dask.cli.spelling import Command


@click.command(cls=Command)
@click.argument("networks", nargs=-1, required=True, type=NETWORK_PATH)
@click.option("--out", required=True, type=NETWORK_PATH, help="Folder or URL of the sum, a new network.")
@click.option(
    "--overlap",
    type=click.Choice(["refuse", "once"]),
    default="refuse",
    show_default=True,
    help="Of text that two NETWORKS hold: refuse, or leave out a network all of whose text others hold.",
)
@common_options
def add(networks: tuple[Path, ...], out: Path, overlap: Literal["refuse", "once"], **values: Any) -> None:
    """Add NETWORKS that were trained apart into a new one.

    The sum equals one training on all their text, to the byte of what is exported. They need the same
    specification, with canonical flags (train --flags canonical) or of profile best.
    """
    from giaann_dask.api.algebra import add as add_networks
    from giaann_dask.cluster import connect

    with connect(options=cluster_options(values, LOCAL)) as client, progress() as observer:
        made = add_networks(networks, out, client=client, overlap=overlap, observer=observer)
    counts = {"sequences": made.manifest.sequences, "connections": made.manifest.connections, "commit": made.commit}
    answer({"network": str(out), **counts}, values["as_json"], [f"network {out}", *figures(counts, *counts)])


@click.command(cls=Command)
@NETWORK
@INPUTS
@click.option(
    "--renumber", is_flag=True, help="Leave out names that no remaining text has, and number the others anew."
)
@click.option("--purge", is_flag=True, help="Remove all earlier commits, which still hold the text, with their files.")
@click.option("--certificate", type=click.Path(path_type=Path), metavar="FILE", help="Write what was removed as JSON.")
@text_options
@common_options
def forget(
    network: Path, inputs: tuple[str, ...], renumber: bool, purge: bool, certificate: Path | None, **values: Any
) -> None:
    """Subtract the text of INPUTS from a network, exactly.

    The network then equals one that was trained without them, to the byte of what is exported. INPUTS are named as
    for train: the text itself is needed. The network needs canonical flags (train --flags canonical) or profile best.
    """
    where = cluster_options(values, LOCAL)
    from giaann_dask.api.algebra import forget as forget_inputs
    from giaann_dask.cluster import connect
    from giaann_dask.storage import require_writable, write_file

    if certificate is not None:
        require_writable(certificate)
    text = read_text_options(values)
    workload = Workload(inputs, values["text_field"], None)
    with connect(options=where) as client, progress(workload) as observer:
        report = forget_inputs(
            network, inputs, client=client, text=text, renumber=renumber, purge=purge, observer=observer
        )
    counts = report.as_dict()
    if certificate is not None:
        write_file(certificate, json.dumps(counts, indent=1) + "\n", "the certificate")
    shown = ("sequences", "tokens", "connections_before", "connections", "purged_commits", "commit", "digest")
    answer(counts, values["as_json"], [f"network {network}", *figures(counts, *shown)])


@click.command(cls=Command)
@click.argument("old")
@click.argument("new")
@click.option(
    "--largest", type=int, default=10, show_default=True, metavar="N", help="Name N connections of each kind."
)
@common_options
def diff(old: str, new: str, largest: int, **values: Any) -> None:
    """Compare networks OLD and NEW, or two commits of one as NETWORK@COMMIT.

    Names are compared, so that the networks may have other dictionaries and regions.
    """
    from giaann_dask.api.algebra import diff as compare
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect

    opened = [Network(path, commit or None) for path, _, commit in (each.partition("@") for each in (old, new))]
    with connect(options=cluster_options(values, LOCAL)) as client, progress() as observer:
        found = compare(*opened, client=client, largest=largest, observer=observer)
    counts = found.as_dict()
    lines = [
        *(
            f"{what}: {', '.join(f'{n:,} {kind}' for kind, n in counts[what].items())}"
            for what in ("columns", "features")
        ),
        f"connections: {', '.join(f'{n:,} {kind}' for kind, n in found.connections.items())}",
        *(
            f"{each.kind:8} {each.change:+,.2f}  {each.source} -> {each.target}  segment {each.segment}, "
            f"branch {each.branch}"
            for each in found.largest
        ),
    ]
    answer(counts, values["as_json"], lines)


@click.command(cls=Command)
@NETWORK
@click.option("--ref", "--commit", "commit", metavar="NAME", help="Of an older commit, tag or branch.")
@output_options
def digest(network: Path, commit: str | None, **values: Any) -> None:
    """Print the SHA-256 of what an export of a network contains.

    Networks with the same digest have the same connections, dictionaries and counts.
    """
    from giaann_dask.api.network import Network

    opened = Network(network, commit)
    with waiting("read all connections"):
        found = {"digest": opened.digest(), "commit": opened.commit}
    answer(found, values["as_json"], [found["digest"]])
