"""Define the commands of islands, networks that are trained apart: ``island create``, ``join``, ``pack`` and others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import PLAIN, Group, options_of
from giaann_dask.cli.output import answer, figures, place_name
from giaann_dask.cli.progress import progress, waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    INPUTS,
    LOCAL,
    NETWORK,
    as_files,
    common_options,
    output_options,
    prepared,
    read_fields,
    specification_options,
    text_options,
)
from giaann_dask.diagnostics.progress import Workload
from giaann_dask.errors import OptionError

if TYPE_CHECKING:
    from giaann_dask.islands.pack_options import PackOptions

# Fields of a bundle that are shown without its island.
_OF_BUNDLES = ("signer", "island", "tagger", "groups", "sequences", "trained", "tokens")
_ISLAND = click.option("--island", required=True, type=FILE_PATH, metavar="FILE", help="The island file.")


@click.group(cls=Group)
def island() -> None:
    """Train parts of a network separately, exchange signed bundles, and merge them."""


@island.command()
@click.argument("path", type=FILE_PATH, metavar="FILE")
@output_options
def key(path: Path) -> None:
    """Generate an Ed25519 key pair: the private key in FILE, the public key in FILE.pub.

    Only the owner can read FILE. If GIAANN_ISLAND_PASSPHRASE is set, FILE is encrypted with it.
    """
    from giaann_dask.islands.definition import generate_key, public_path

    found = {"private": str(path), "public": str(public_path(path)), "key": generate_key(path)}
    answer(found)


@island.command()
@NETWORK
@click.argument("island", type=FILE_PATH)
@click.option("--key", "keys", multiple=True, metavar="NAME=PUBLIC", help="A name and the file of its public key.")
@click.option("--ever-pos", metavar="lemminflect|FILE", help="Ever-POS lexicon of a new network.")
@click.option("--ref", default=None, metavar="NAME", help="Begin with an older commit, tag or branch of NETWORK.")
@specification_options
@output_options
def create(
    network: Path, island: Path, keys: tuple[str, ...], ever_pos: str | None, ref: str | None, **values: Any
) -> None:
    """Write the file ISLAND of a NETWORK, which is created if it does not exist.

    Send the file to all islands. The network has canonical flags, the default, or profile contexts.
    """
    from giaann_dask.api.islands import create_island
    from giaann_dask.api.network import Network
    from giaann_dask.spec import Specification

    base = network if ref is None else Network(network, ref)
    fields = read_fields(values)
    specification = None
    if fields:
        specification = Specification(**fields)
    with waiting("write the island file"):
        made = create_island(base, island, _pairs(keys), specification=specification, ever_pos=ever_pos)
    found = {
        "network": str(network),
        "island": str(island),
        "identity": made.identity,
        "commit": made.commit,
        "digest": made.digest,
        "keys": dict(made.keys),
    }
    answer(found, figures(found, "island", "identity", "commit", "digest", "keys"))


@island.command("keys")
@click.argument("island", type=FILE_PATH)
@click.option("--key", "keys", multiple=True, metavar="NAME=PUBLIC", help="Add a name and the file of its public key.")
@click.option("--remove", multiple=True, metavar="NAME", help="Remove a name; merged bundles are kept.")
@output_options
def change_keys(island: Path, keys: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """List the public keys of an ISLAND file, add some, or remove some."""
    from giaann_dask.api.islands import change_keys as change

    changed = change(island, _pairs(keys), remove)
    lines = [f"{name}  {public}" for name, public in changed.keys.items()]
    answer({"island": str(island), "keys": dict(changed.keys)}, lines)


@island.command()
@click.argument("island", type=FILE_PATH)
@NETWORK
@output_options
def join(island: Path, network: Path) -> None:
    """Create the empty NETWORK of an ISLAND, to be trained by train."""
    from giaann_dask.api.islands import join_island

    joined = join_island(island, network)
    counts = {"network": str(network), "columns": joined.manifest.concepts, "features": joined.manifest.features}
    answer(counts, [f"network {place_name(network)}", *figures(counts, "columns", "features")])


@island.command()
@NETWORK
@INPUTS
@_ISLAND
@click.option("--key", required=True, type=FILE_PATH, metavar="FILE", help="The private key.")
@click.option("--out", required=True, type=FILE_PATH, metavar="FILE", help="The bundle to write.")
@options_of("packing", "giaann_dask.islands.pack_options.PackOptions", PLAIN)
@click.option("--ref", default=None, metavar="NAME", help="Pack of an older commit, tag or branch of NETWORK.")
@text_options
@common_options
def pack(
    network: Path,
    inputs: tuple[str, ...],
    island: Path,
    key: Path,
    out: Path,
    packing: PackOptions,
    ref: str | None,
    **values: Any,
) -> None:
    """Pack the increments of INPUTS, which NETWORK was trained on, as a signed bundle.

    The text is counted a second time, part by part; a network that is not the sum of it is refused.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.islands import pack_bundle
    from giaann_dask.api.network import Network
    from giaann_dask.cluster import connect

    text = values["text"]
    workload = Workload(inputs, text.reading, None)
    packed = Network(network, ref)
    with connect(options=where) as client, progress(workload) as observer:
        report = pack_bundle(
            packed,
            inputs,
            out,
            island=island,
            key=key,
            options=packing,
            client=client,
            text=text,
            observer=observer,
        )
    counts = report.as_dict()
    shown = ("signer", "groups", "parts", "sequences", "tokens", "connections", "bytes", "complete")
    answer(counts, [f"bundle {out}", *figures(counts, *shown)])


@island.command()
@NETWORK
@click.argument("bundles", nargs=-1, required=True, type=FILE_PATH, metavar="BUNDLE...")
@_ISLAND
@options_of("checks", "giaann_dask.api.islands.merge_bundles", PLAIN, only=("audit", "audit_seed", "overlap"))
@click.option(
    "--texts",
    multiple=True,
    callback=as_files,
    metavar="INPUT",
    help="Text of bundles that do not contain it.",
)
@text_options
@common_options
def merge(
    network: Path,
    bundles: tuple[Path, ...],
    island: Path,
    checks: dict[str, Any],
    texts: tuple[str, ...],
    **values: Any,
) -> None:
    """Verify BUNDLES and add those that NETWORK does not hold yet, a commit for each.

    When one is refused, none is added. Run the same command again after an interruption.
    """
    where = prepared(values["cluster"], LOCAL)
    from giaann_dask.api.islands import merge_bundles
    from giaann_dask.cluster import connect
    from giaann_dask.text.inputs import Files

    text = values["text"]
    with connect(options=where) as client, progress() as observer:
        reports = merge_bundles(
            network,
            bundles,
            island=island,
            texts=Files(texts) if texts else None,
            client=client,
            text=text,
            observer=observer,
            **checks,
        )
    lines = []
    for each in reports:
        if not each.merged:
            lines.append(f"{each.bundle} of {each.signer}: network {place_name(network)} holds all of it already")
            continue
        line = (
            f"{each.bundle} of {each.signer}: {each.merged:,} of {each.groups:,} groups, {each.sequences:,} sequences"
        )
        audited = f", {len(each.audited):,} of the groups audited with seed {each.audit_seed}" if each.audited else ""
        lines.append(f"{line}{audited}, commit {each.commit}")
    answer({"network": str(network), "bundles": [each.as_dict() for each in reports]}, lines)


@island.command()
@click.argument("path", type=FILE_PATH, metavar="FILE")
@click.option("--island", type=FILE_PATH, metavar="FILE", help="Verify a bundle: signature, hashes, ledger and names.")
@output_options
def show(path: Path, island: Path | None) -> None:
    """Show the content of an island file or a bundle."""
    found = _describe(path, island)
    answer(found)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return the files of public keys by name."""
    pairs = {}
    for text in given:
        name, separator, file = text.partition("=")
        if not separator or not name or not file or name in pairs:
            raise OptionError(f"--key {text!r}", "NAME=FILE, each name once", "such as mill=mill.key.pub")
        pairs[name] = file
    return pairs


def _describe(path: Path, island: Path | None) -> dict[str, Any]:
    """Return what an island file or a bundle says about itself.

    Parameters
    ----------
    path : Path
        Either of them.
    island : Path, optional
        An island file with which a bundle is verified, all but its increments.

    Raises
    ------
    GiaannError
        If it is neither, or the bundle is not accepted.
    """
    from giaann_dask.islands.archive import Archive
    from giaann_dask.islands.bundle import BundleManifest, open_bundle, read_manifest
    from giaann_dask.islands.definition import read_island

    if _is_json(path):
        read = read_island(path)
        return {
            "island": str(path),
            "identity": read.identity,
            "profile": read.specification.profile,
            "columns": len(read.concepts),
            "features": 1 + len(read.features),
            "commit": read.commit,
            "digest": read.digest,
            "keys": dict(read.keys),
        }
    if island is not None:
        bundle = open_bundle(path, read_island(island))
        counts = {name: getattr(bundle, name) for name in ("signer", "tagger", "sequences", "trained", "tokens")}
        texts = sum(map(bundle.has_text, range(len(bundle.groups))))
        return {"bundle": str(path), "verified": True, **counts, "groups": len(bundle.groups), "texts": texts}
    manifest = BundleManifest.parse(read_manifest(Archive(path)), path)
    return {"bundle": str(path), "verified": False, **{name: getattr(manifest, name) for name in _OF_BUNDLES}}


def _is_json(path: Path) -> bool:
    """Return whether a file begins as an island file does."""
    # What is no ordinary file may wait for a writer.
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False
