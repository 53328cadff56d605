"""Define the commands of arithmetic with networks: ``add``, ``forget``, ``diff``, ``digest`` and ``prune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import PLAIN, Command, options_of
from giaann_dask.cli.output import answer, figures, place_name
from giaann_dask.cli.progress import progress
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    LOCAL,
    NETWORK,
    WRITTEN_PATH,
    as_files,
    common_options,
    generation_options,
    network_path,
    prepared,
    text_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import InputMissingError
from giaann_dask.local_files import local_path, read_utf8

if TYPE_CHECKING:
    from giaann_dask.algebra.algebra_options import PruningOptions
    from giaann_dask.api.network import Network

_OPTIONS = "giaann_dask.algebra.algebra_options."


def open_at_ref(name: str) -> Network:
    """Open a network that is named as NETWORK, or as NETWORK@REF with a commit, tag or branch."""
    from giaann_dask.api.network import Network

    path, at, ref = name.rpartition("@")
    # An @ in a path or a URL is no reference.
    if not at or "/" in ref or local_path(name).exists():
        return Network(network_path(name))
    return Network(network_path(path), ref or None)


def read_prompts(path: Path) -> list[str]:
    """Return the lines of a file that are not blank.

    Raises
    ------
    InputMissingError, InputEncodingError
        If it cannot be read, or is not UTF-8.
    """
    try:
        lines = read_utf8(path).splitlines()
    except OSError as error:
        raise InputMissingError(f"the prompts {path} cannot be read ({error.strerror})", "a text file") from error
    return [line.strip() for line in lines if line.strip()]


@click.command(cls=Command)
@click.argument("networks", nargs=-1, required=True, metavar="NETWORK[@REF]...")
@click.option("--out", required=True, type=WRITTEN_PATH, help="Folder or URL of the sum, a new network.")
@options_of("shared", "giaann_dask.api.algebra.add", PLAIN, only=("overlap",))
@click.option(
    "--texts",
    multiple=True,
    metavar="INPUT",
    help="The text to count once, if no commit of the NETWORKS holds only that text: files, folders or encoded "
    "corpora; repeatable.",
)
@text_options
@common_options
def add(networks: tuple[str, ...], out: Path, shared: dict[str, Any], texts: tuple[str, ...], **values: Any) -> None:
    """Add NETWORKS that were trained apart into a new one.

    The export of the sum is identical to that of one training on all their text. NETWORK@REF is an older commit, a tag
    or a branch. They need the same specification, with canonical flags (the default of train) or profile contexts.
    """
    from giaann_dask.api.algebra import add as add_networks
    from giaann_dask.cluster import connect
    from giaann_dask.text.inputs import Files

    opened = [open_at_ref(each) for each in networks]
    again, text = Files(texts) if texts else None, values["text"]
    with connect(options=prepared(values["cluster"], LOCAL)) as client, progress() as observer:
        made = add_networks(opened, out, client=client, texts=again, text=text, observer=observer, **shared)
    counts = {"sequences": made.manifest.sequences, "connections": made.manifest.connections, "commit": made.commit}
    answer({"network": str(out), **counts}, [f"network {place_name(out)}", *figures(counts, *counts)])


@click.command(cls=Command)
@NETWORK
@click.option(
    "--document",
    "documents",
    multiple=True,
    required=True,
    callback=as_files,
    metavar="FILE|ID",
    help="Text to subtract, named as for train, or the identity of a part of text (inspect --parts); repeatable.",
)
@click.option(
    "--texts",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="Files or corpora that contain the text of each ID.  [default: where training with --trace read it]",
)
@click.option(
    "--renumber",
    is_flag=True,
    help="Remove names that no remaining text has, and renumber the others; --purge does so, too.",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Remove all earlier commits, tags and other branches, which may hold the text, with their files, and all "
    "names that no remaining text has.",
)
@click.option("--branch", metavar="NAME", help="Branch of the network to commit to.  [default: main]")
@click.option("--certificate", type=FILE_PATH, metavar="FILE", help="Write what was removed as JSON.")
@text_options
@common_options
def forget(
    network: Path,
    documents: tuple[str, ...],
    texts: tuple[str, ...],
    branch: str | None,
    certificate: Path | None,
    **values: Any,
) -> None:
    """Subtract documents from a network, exactly.

    The export of the network is then identical to that of a network trained without them. The text itself is needed: as
    FILE, or for an ID (the identity of a part of text, from inspect --parts, trace --json or a certificate) in --texts;
    if the network was trained with --trace, the text of an ID is read where training read it. The network needs
    canonical flags (the default of train) or profile contexts.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.algebra import forget as forget_inputs
    from giaann_dask.cluster import connect
    from giaann_dask.storage import require_writable

    if certificate is not None:
        # Before workers are started.
        require_writable(certificate)
    text = values["text"]
    workload = Workload(documents, text.reading, None)
    with connect(options=where) as client, progress(workload) as observer:
        report = forget_inputs(
            network,
            documents,
            client=client,
            texts=texts or None,
            text=text,
            renumber=values["renumber"],
            purge=values["purge"],
            certificate=certificate,
            branch=branch,
            observer=observer,
        )
    counts = report.as_dict()
    shown = ("sequences", "tokens", "connections_before", "connections", "purged_commits", "commit", "digest")
    lines = [f"network {place_name(network)}", *figures(counts, *shown)]
    lines += [f"may hold the text still: {place}" for place in report.elsewhere]
    lines += ["may hold the text still: other machines and processes that opened the network, exports and copies"]
    answer(counts, lines if values["purge"] else lines[: 1 + len(shown)])


@click.command(cls=Command)
@NETWORK
@click.argument("texts", nargs=-1, required=True, callback=as_files, metavar="TEXT...")
@click.option("--branch", metavar="NAME", help="Branch of the network to commit to.  [default: main]")
@text_options
@common_options
def index(network: Path, texts: tuple[str, ...], branch: str | None, **values: Any) -> None:
    """Index the sequences of a NETWORK that was trained without --trace, for the command trace.

    TEXT is all training text of the network, named as for train; it is counted again, and other text in it is skipped.
    The index is the same as that of train --trace. Later training extends it.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.algebra import index as index_texts
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect

    before, text = Network(network, branch), values["text"]
    with connect(options=where) as client, progress(Workload(texts, text.reading)) as observer:
        made = index_texts(network, texts, client=client, text=text, branch=branch, observer=observer)
    index_bytes = int(made.manifest.index_size()["bytes"])
    counts = {"sequences": made.manifest.sequences, "index_bytes": index_bytes, "commit": made.commit}
    there = made.commit == before.commit
    title = f"network {place_name(network)}" + (" has an index already" if there else "")
    answer({"network": str(network), **counts}, [title, *figures(counts, *counts)])


@click.command(cls=Command)
@NETWORK
@click.option("--out", required=True, type=WRITTEN_PATH, help="Folder or URL of the pruned network, a new one.")
@options_of("kept", _OPTIONS + "PruningOptions", PLAIN)
@click.option("--ref", default=None, metavar="NAME", help="Prune an older commit, tag or branch.")
@common_options
def prune(network: Path, out: Path, kept: PruningOptions, ref: str | None, **values: Any) -> None:
    """Write the strongest connections of a NETWORK to a new, smaller and faster one.

    Give --keep or --min-strength. A pruned network predicts almost as well. It cannot be trained, added or forget
    documents, because it is no longer the sum over its text.
    """
    from giaann_dask.api.algebra import prune as prune_network
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect

    before = Network(network, ref)
    with connect(options=prepared(values["cluster"], LOCAL)) as client, progress() as observer:
        made = prune_network(
            before, out, min_strength=kept.min_strength, keep=kept.keep, client=client, observer=observer
        )
    counts: dict[str, Any] = {"pruned_below": made.pruned_below}
    for name, each in (("before", before.manifest), ("kept", made.manifest)):
        counts[f"connections_{name}"] = each.connections
        counts[f"bytes_{name}"] = sum(run.nbytes for run in each.runs)
    counts["commit"] = made.commit
    answer({"network": str(out), **counts}, [f"network {place_name(out)}", *figures(counts, *counts)])


@click.command(cls=Command)
@click.argument("old")
@click.argument("new")
@options_of("compared", "giaann_dask.api.algebra.diff", PLAIN, only=("largest",))
@click.option("--prompts", type=FILE_PATH, metavar="FILE", help="Also list the lines that they continue differently.")
@generation_options("max_tokens", defaults={"max_tokens": 1})
@click.option("--picture", type=FILE_PATH, metavar="FILE", help="Draw the difference as .svg, .png or .pdf.")
@common_options
def diff(old: str, new: str, prompts: Path | None, picture: Path | None, **values: Any) -> None:
    """Compare networks OLD and NEW, or two commits of one.

    NETWORK@REF is an older commit, a tag or a branch. Names are compared, so the networks may have different
    dictionaries and regions. --prompts names a file of prompts, one per line.
    """
    if picture is not None:
        from giaann_dask.diagnostics.pictures.draw_options import SUFFIXES, check_suffix
        from giaann_dask.storage import require_writable

        check_suffix(picture, SUFFIXES)
        require_writable(picture)
    lines_read = [] if prompts is None else read_prompts(prompts)
    from giaann_dask.api.algebra import diff as compare
    from giaann_dask.cluster import connect

    opened = [open_at_ref(each) for each in (old, new)]
    with connect(options=prepared(values["cluster"], LOCAL)) as client, progress() as observer:
        found = compare(
            *opened,
            client=client,
            prompts=lines_read,
            max_tokens=values["generation"].max_tokens,
            observer=observer,
            **values["compared"],
        )
    counts = found.as_dict()
    if picture is not None:
        from giaann_dask.diagnostics.pictures.charts import draw_difference
        from giaann_dask.diagnostics.pictures.draw_options import save_figure

        counts["picture"] = str(save_figure(draw_difference(found), picture))
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
    if lines_read:
        lines.append(f"predictions: {len(found.predictions):,} of {found.prompts:,} changed")
        lines.extend(f"{each.prompt} ... {each.old or '(nothing)'} -> {each.new or '(nothing)'}"
                     for each in found.predictions)  # fmt: skip
    answer(counts, lines)
