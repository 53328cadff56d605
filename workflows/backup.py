"""Copy a commit of a network to a folder or an S3 bucket, and compare the copy with it byte by byte.

The copy is a network that every command reads; it holds one commit for each time something was copied, and a later
copy writes only what is new. An incomplete copy is not visible. With source and destination exchanged, it restores.
Exit codes: 0 done, 2 bad input, 3 the copy differs or is damaged, 75 try again later (another run, disk full).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from giaann_dask.cli.logs import log_options
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.showing import answer, figures
from giaann_dask.workflows.exits import run_script
from giaann_dask.workflows.settings import job_command


@job_command("backup")
@click.option("--network", required=True, metavar="PLACE", help="The network: a folder or s3://BUCKET/PREFIX.")
@click.option("--to", "destination", required=True, metavar="PLACE", help="The copies: a folder or s3://BUCKET/PREFIX.")
@click.option("--commit", help="Copy an older commit.")
@click.option("--keep", type=int, metavar="N", help="Delete all but the last N copies.")
@click.option(
    "--history", type=click.Path(path_type=Path), help="File of JSON lines.  [default: NETWORK.history.jsonl]"
)
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait so long for another run to end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@log_options
def backup(network: str, destination: str, **values: Any) -> None:
    """Copy a commit to another place and verify the copy."""
    from giaann_dask.store.backup import NetworkPlace, answering, copy_commit
    from giaann_dask.workflows.history import history_of, recorded

    source, target = NetworkPlace(network), NetworkPlace(destination)
    # The lock and the history are written next to the one that is a folder.
    beside = source.folder or target.folder or Path("backup")
    with answering():
        source.repository()
    if values["dry_run"]:
        with answering():
            there = target.exists()
        found = {"network": network, "to": destination, "dry_run": True, "copies_there": there}
        answer(found, values["as_json"], figures(found, *found))
        return
    with recorded("backup", beside, history_of(beside, values["history"]), values["wait"]) as entry, waiting("copy"):
        entry |= {"network": network, "to": destination}
        entry["copied"] = copy_commit(source, target, values["commit"], values["keep"]).as_dict()
    answer(
        entry, values["as_json"], figures({**entry, **entry["copied"]}, "network", "to", *entry["copied"], "seconds")
    )


if __name__ == "__main__":
    sys.exit(run_script(backup))
