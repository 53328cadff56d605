"""Store which commit wrote each run of a commit, so that commits that have a run in common name it alike in memory.

An identity names a run within one line of commits alone: after a checkout of an older commit, another run may have it.
An attribute of the root has the runs that were kept from earlier commits, by the commit that wrote them, with a
checksum over these and the manifest, so that a program that commits without writing it cannot leave that of another
commit behind. Runs that it does not name were written by the commit itself, or are taken for such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from giaann_dask.storage import checksum_of_json

_ATTRIBUTE = "run_commits"


def seal_run_commits(commits: Mapping[str, str], manifest: int) -> dict[str, Any]:
    """Return the attribute of the root, given the commits by run and the checksum of the manifest."""
    runs: dict[str, list[str]] = {}
    for identity, commit in sorted(commits.items()):
        runs.setdefault(commit, []).append(identity)
    return {_ATTRIBUTE: {"runs": runs, "checksum": checksum_of_json([runs, manifest])}}


def read_run_commits(attributes: Mapping[str, Any], manifest: int) -> dict[str, str]:
    """Return the commits by the runs that were kept from them; none where the attribute is not of this very commit.

    Parameters
    ----------
    attributes : mapping
        Of the root.
    manifest : int
        Checksum of the manifest.
    """
    stored = attributes.get(_ATTRIBUTE)
    runs: Any = stored.get("runs") if isinstance(stored, Mapping) else None
    if not isinstance(stored, Mapping) or stored.get("checksum") != checksum_of_json([runs, manifest]):
        return {}
    return {identity: commit for commit, identities in runs.items() for identity in identities}
