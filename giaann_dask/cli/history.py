"""Define the commands of a network's history: ``log``, ``tag``, ``branch`` and ``checkout``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import click

from giaann_dask.cli.click_ext import Command
from giaann_dask.cli.output import answer
from giaann_dask.cli.shared_options import NETWORK, output_options

_REF = click.option("--ref", default=None, metavar="NAME", help="Commit, tag or branch.  [default: the last commit]")
_DELETE = click.option("--delete", is_flag=True, help="Remove the name; the commit stays as long as others need it.")


@click.command(cls=Command)
@NETWORK
@_REF
@output_options
def log(network: Path, ref: str | None, **values: Any) -> None:
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
    answer({"commits": found}, values["as_json"], lines)


@click.command(cls=Command)
@NETWORK
@click.argument("name", required=False)
@_REF
@_DELETE
@output_options
def tag(network: Path, name: str | None, ref: str | None, delete: bool, **values: Any) -> None:
    """Give a commit a NAME that stays with it, or list the tags.

    Any command with --ref reads a tag. A tagged commit is kept when earlier commits are deleted.
    """
    _refer("tag", network, name, ref, delete=delete, as_json=values["as_json"])


@click.command(cls=Command)
@NETWORK
@click.argument("name", required=False)
@_REF
@_DELETE
@output_options
def branch(network: Path, name: str | None, ref: str | None, delete: bool, **values: Any) -> None:
    """Begin a branch NAME at a commit, or list the branches.

    train --branch NAME makes its commits there and leaves main as it is.
    """
    _refer("branch", network, name, ref, delete=delete, as_json=values["as_json"])


@click.command(cls=Command)
@NETWORK
@click.argument("ref")
@output_options
def checkout(network: Path, ref: str, **values: Any) -> None:
    """Make commit, tag or branch REF the last commit of main.

    The former last commit gets a tag, so that nothing is lost.
    """
    from giaann_dask.store.network_store import NetworkStore

    store = NetworkStore(network)
    with store.lock():
        former = store.reset(ref)
    found = {"commit": store.head(), "former": former}
    said = f"the former one is tagged {former}" if former else "it was the last one already"
    answer(found, values["as_json"], [f"commit  {found['commit']}", said])


def _refer(
    kind: Literal["tag", "branch"], network: Path, name: str | None, ref: str | None, *, delete: bool, as_json: bool
) -> None:
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
    answer({"names": found}, as_json, [f"{commit}  {each}" for each, commit in found.items()])
