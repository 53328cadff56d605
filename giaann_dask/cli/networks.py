"""Define the commands about stored networks: their history, sizes, digest, export, runs, and runs kept in memory."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from giaann_dask.cli.click_ext import PLAIN, Command, options_of
from giaann_dask.cli.output import answer, figures, place_name
from giaann_dask.cli.progress import progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    LOCAL,
    NETWORK,
    NETWORK_PATH,
    common_options,
    output_options,
    prepared,
    require_cluster,
    running_options,
)

if TYPE_CHECKING:
    from giaann_dask.cluster import ClusterOptions


_COMMITS_SHOWN = 20
_REF = click.option("--ref", default=None, metavar="NAME", help="Commit, tag or branch.  [default: the last commit]")
_DELETE = click.option("--delete", is_flag=True, help="Remove the name; the commit is kept as long as others need it.")


@click.command(cls=Command)
@NETWORK
@_REF
@output_options
def log(network: Path, ref: str | None) -> None:
    """Show the commits of a network with their tags and branches, the last one first."""
    from giaann_dask.store.network_store import NetworkStore

    store = NetworkStore(network)
    names = defaultdict(list)
    for each in store.references():
        names[each.commit].append(each.name if each.kind == "branch" else f"tag {each.name}")
    found = [
        {
            "commit": each.identity,
            "written_at": each.written_at.isoformat(timespec="seconds"),
            "message": each.message,
            "names": names[each.identity],
        }
        for each in store.log(ref)
    ]
    lines = [
        f"{each['commit']}  {each['written_at']}  {each['message']}"
        + (f"  ({', '.join(each['names'])})" if each["names"] else "")
        for each in found
    ]
    answer({"commits": found}, lines)


@click.command(cls=Command)
@NETWORK
@click.argument("name", required=False)
@_REF
@_DELETE
@output_options
def tag(network: Path, name: str | None, ref: str | None, delete: bool) -> None:
    """Name a commit by a tag NAME, or list the tags.

    Every command with --ref accepts a tag. A tagged commit is kept when earlier commits are deleted.
    """
    _refer("tag", network, name, ref, delete=delete)


@click.command(cls=Command)
@NETWORK
@click.argument("name", required=False)
@_REF
@_DELETE
@output_options
def branch(network: Path, name: str | None, ref: str | None, delete: bool) -> None:
    """Create a branch NAME at a commit, or list the branches.

    train --branch NAME commits to it and does not change main.
    """
    _refer("branch", network, name, ref, delete=delete)


@click.command(cls=Command)
@NETWORK
@click.argument("ref")
@output_options
def checkout(network: Path, ref: str) -> None:
    """Make commit, tag or branch REF the last commit of main.

    The previous last commit gets a tag, so it is kept.
    """
    from giaann_dask.store.network_store import NetworkStore

    store = NetworkStore(network)
    with store.lock():
        former = store.reset(ref)
    found = {"commit": store.head(), "former": former}
    said = f"the former one is tagged {former}" if former else "it was the last one already"
    answer(found, [f"commit  {found['commit']}", said])


def _refer(kind: Literal["tag", "branch"], network: Path, name: str | None, ref: str | None, *, delete: bool) -> None:
    """Add or remove a name of a network, or list all names of a kind."""
    from giaann_dask.store.network_store import NetworkStore

    store = NetworkStore(network)
    if name is not None:
        with store.lock():
            if delete:
                store.remove_reference(kind, name)
            else:
                store.add_reference(kind, name, ref or store.head())
    elif delete:
        raise click.UsageError("Missing argument 'NAME'.")
    found = {each.name: each.commit for each in store.references() if each.kind == kind}
    answer({"names": found}, [f"{commit}  {each}" for each, commit in found.items()])


@click.command(cls=Command)
@NETWORK
@click.option("--ref", "commit", metavar="NAME", help="Show an older commit, tag or branch.")
@click.option("--parts", is_flag=True, help="Also list the trained parts of text, with their identities.")
@output_options
def inspect(network: Path, commit: str | None, parts: bool) -> None:
    """Show the sizes of a network and its commits, the last one first."""
    from giaann_dask.api.network import Network

    with waiting("inspect"):
        opened = Network(network, commit)
        history, described = opened.commits(), opened.describe()
        texts = opened.text_parts() if parts else []
    counts = {**described, "history": [{"commit": name, "message": message} for name, message in history]}
    if parts:
        counts["parts"] = [each._asdict() for each in texts]
    names = (
        "commit",
        "concepts",
        "features",
        "neurons",
        "connections",
        "sequences",
        "trained",
        "skipped",
        "tokens",
        "regions",
        "runs",
    )
    shown = figures(
        counts,
        *names,
        *(() if counts["exact"] else ("exact",)),
        *(("pruned_below",) if "pruned_below" in counts else ()),
        "bytes_on_disk",
        "bytes_in_memory",
        *(("index",) if "index" in counts else ()),
        "commits",
        "specification",
        *(("tokenizer",) if "tokenizer" in counts else ()),
    )
    shown += [f"commit {name}  {message}" for name, message in history[:_COMMITS_SHOWN]]
    if len(history) > _COMMITS_SHOWN:
        shown.append(f"and {len(history) - _COMMITS_SHOWN:,} older ones, which --json names too")
    for part in texts:
        counted = f"{part.sequences:,} sequences" + ("" if part.complete else ", not all")
        shown.append(f"part {part.identity}  {counted}" + (f"  {part.place}" if part.place else ""))
    answer(counts, [f"network {place_name(network)}", *shown])


@click.command(cls=Command)
@NETWORK
@click.option("--out", required=True, type=FILE_PATH, help="File .npz, .parquet or .arpa[.gz], or folder .zarr.")
@options_of("written", "giaann_dask.store.export.write_export", PLAIN, only=("compression",))
@click.option("--ref", "commit", metavar="NAME", help="Export an older commit, tag or branch.")
@output_options
def export(network: Path, out: Path, written: dict[str, Any], commit: str | None) -> None:
    """Write all connections as coordinate arrays, or an n-gram model.

    The suffix of --out is the format. The dictionaries (.json) and the neurons' own strengths (such as .neurons.npz)
    are written to the same folder. The order does not depend on regions or workers. Models of counted contexts also
    export their 5-gram model, for decoders: one file .arpa or .arpa.gz.
    """
    from giaann_dask.api.network import Network

    opened = Network(network, commit)
    with progress() as observer:
        files = opened.export(out, observer, **written)
    names = [str(file) for file in files if file is not None]
    counts = {
        "connections": opened.manifest.connections,
        "neurons": opened.manifest.neurons,
        "files": names,
        "dictionaries": None if files.dictionaries is None else str(files.dictionaries),
        "commit": opened.commit,
    }
    answer(counts, [*names, *figures(counts, "connections", "neurons", "commit")])


@click.command(cls=Command)
@NETWORK
@click.option("--ref", "commit", metavar="NAME", help="Of an older commit, tag or branch.")
@output_options
def digest(network: Path, commit: str | None) -> None:
    """Print the SHA-256 of the content of a network's export.

    Networks with the same digest have the same connections, dictionaries and counts.
    """
    from giaann_dask.api.network import Network

    opened = Network(network, commit)
    with waiting("read all connections"):
        found = {"digest": opened.digest(), "commit": opened.commit}
    answer(found, [found["digest"]])


@click.command(cls=Command)
@click.argument("network", required=False, type=NETWORK_PATH, metavar="[NETWORK]")
@running_options
@_REF
@output_options
def persist(network: Path | None, cluster: ClusterOptions | None, ref: str | None) -> None:
    """Keep a commit in the memory of a cluster's workers, or list the persisted commits.

    Every command on that cluster uses it instead of the store, and its commits take its place.
    """
    from giaann_dask.api.network import open as open_network
    from giaann_dask.cluster import connect
    from giaann_dask.cluster.persistence import published_commits

    with connect(options=require_cluster(cluster)) as client:
        if network is not None:
            with waiting("open the regions"):
                open_network(network, ref).persist(client)
        found = published_commits(client)
    answer({"persisted": [each.as_dict() for each in found]}, found)


@click.command(cls=Command)
@NETWORK
@running_options
@output_options
def unpersist(network: Path, cluster: ClusterOptions | None) -> None:
    """Release a network from the memory of a cluster's workers; the store keeps it."""
    from giaann_dask.cluster import connect
    from giaann_dask.training.committing import unpersist_network

    with connect(options=require_cluster(cluster)) as client:
        kept = unpersist_network(client, str(network))
    answer({"released": kept}, ["released" if kept else "it was not persisted"])


@click.command(cls=Command)
@NETWORK
@click.option("--keep-commits", type=int, metavar="N", help="Delete all but the last N commits.  [default: keep all]")
@common_options
def compact(network: Path, keep_commits: int | None, **values: Any) -> None:
    """Merge the runs of a network and remove unreferenced data.

    The connections do not change. The runs of older commits stay on disk until these commits are deleted.
    """
    from giaann_dask.cluster import connect
    from giaann_dask.store.network_store import NetworkStore
    from giaann_dask.training.maintenance import check_kept, compact_network

    check_kept(keep_commits)
    store = NetworkStore(network)
    with connect(options=prepared(values["cluster"], LOCAL)) as client, progress() as observer:
        report = compact_network(client, store, keep_commits, observer)
    counts = report.as_dict()
    answer(counts, [f"network {place_name(network)}", *figures(counts, *counts)])
